"""Counters that go over to another process stand there as they did here, now and later."""

import pytest

from quotas.connections import CarriedConnections, ConnectionLimits, ConnectionQuotas, ConnectionRates, ListenerLimits
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.rate import SampledRate

LISTENER = "clients"


@pytest.mark.parametrize(
    "records", [[(0, 100.0)], [(0, 5.0), (400, 7.0), (2_500, 3.0)], [(t, 1.0) for t in range(0, 30_000, 700)]]
)
def test_rate_that_was_taken_over_tells_the_same_at_every_later_moment(records: list[tuple[int, float]]) -> None:
    before = SampledRate(11, 1_000, now_ms=0)
    for at_ms, value in records:
        before.record(value, now_ms=at_ms)
    now_ms = records[-1][0] + 100
    after = SampledRate(11, 1_000, now_ms=now_ms)
    after.take_over(before.samples(now_ms=now_ms), now_ms=now_ms)
    for later_ms in range(now_ms, now_ms + 14_000, 350):
        if later_ms % 3 == 0:
            for each in (before, after):
                each.record(2.0, now_ms=later_ms)
        assert after.rate(now_ms=later_ms) == pytest.approx(before.rate(now_ms=later_ms))
        assert after.throttle_time_ms(0.5, now_ms=later_ms) == before.throttle_time_ms(0.5, now_ms=later_ms)


def test_nothing_is_left_of_a_rate_that_was_taken_over_when_its_windows_are_over() -> None:
    """A rounding error that stayed would keep its counter for ever."""
    before, after = SampledRate(11, 1_000, now_ms=0), SampledRate(11, 1_000, now_ms=9_000)
    for at_ms in range(0, 9_000, 1_000):
        before.record(0.1 * at_ms + 0.7, now_ms=at_ms)
    after.take_over(before.samples(now_ms=9_000), now_ms=9_000)
    assert after.total(now_ms=21_000) == 0


def test_rate_of_other_windows_counts_as_recorded_now() -> None:
    before = SampledRate(11, 1_000, now_ms=0)
    for at_ms in range(0, 9_000, 500):
        before.record(1.0, now_ms=at_ms)
    after = SampledRate(3, 500, now_ms=9_000)
    after.take_over(before.samples(now_ms=9_000), now_ms=9_000)
    assert after.total(now_ms=9_000) == before.total(now_ms=9_000) == 18


def test_connections_of_the_process_before_count_until_they_have_ended() -> None:
    limits = ConnectionLimits({LISTENER: ListenerLimits()}, max_connections_per_ip=3)
    before, after = (ConnectionQuotas(Limits(), limits, now_ms=0) for _ in range(2))
    for _ in range(2):
        assert before.admit(LISTENER, "10.0.0.1", now_ms=0).decision == "admit"
    after.take_over(before.rates(now_ms=0), now_ms=0)
    after.carry(before.counts())
    assert [after.admit(LISTENER, "10.0.0.1", now_ms=1).decision for _ in range(2)] == ["admit", "refuse"]
    before.release(LISTENER, "10.0.0.1")
    after.carry(before.counts())
    assert after.admit(LISTENER, "10.0.0.1", now_ms=2).decision == "admit"
    after.carry(CarriedConnections({}, {}))
    assert after.snapshot(now_ms=3).connections == after.connections_of("10.0.0.1") == 2
    assert after.snapshot(now_ms=3).accept_rate == pytest.approx(0.4, rel=0.01)  # 2 before, 2 here, over 10 windows


@pytest.mark.parametrize(
    ("entity", "address", "other"),
    [
        (QuotaEntity(ip="10.1.2.3"), "10.1.2.3", "10.1.2.4"),
        (QuotaEntity(ip="10.1.0.0/16"), "10.1.2.3", "10.2.0.1"),
        (QuotaEntity(ip=DEFAULT), "10.1.2.3", "10.1.2.4"),
        (QuotaEntity(ip=DEFAULT), "2001:db8::1", "2001:db8:0:1::1"),
        (QuotaEntity(ip="2001:db8::/32"), "2001:db8::1", "2001:db9::1"),
    ],
)
def test_rates_of_addresses_blocks_and_networks_go_along(entity: QuotaEntity, address: str, other: str) -> None:
    limits = Limits()
    limits.set(entity, QuotaKey.CONNECTION_CREATION_RATE, 5)
    of_listener = ConnectionLimits({LISTENER: ListenerLimits()})
    before, after = (ConnectionQuotas(limits, of_listener, now_ms=0) for _ in range(2))
    before.admit(LISTENER, address, now_ms=0)
    after.take_over(before.rates(now_ms=0), now_ms=0)
    assert after.ip_rate(address, now_ms=0) == before.ip_rate(address, now_ms=0) == pytest.approx(0.1)
    assert not after.ip_rate(other, now_ms=0)


def test_rates_of_addresses_without_a_quota_by_now_do_not_go_along() -> None:
    limits = Limits()
    of_listener = ConnectionLimits({LISTENER: ListenerLimits()})
    after = ConnectionQuotas(limits, of_listener, now_ms=0)
    after.take_over(ConnectionRates((), {}, {"10.1.0.0/16": [(0, 0, 1.0)], "junk": [(0, 0, 1.0)]}), now_ms=0)
    assert after.ip_rate("10.1.2.3", now_ms=0) is None


def test_mutations_and_mutes_left_behind_go_along() -> None:
    from gateway.fleet.counters import counters_of
    from gateway.server.carried import OwnUse, states, take_states, take_use
    from quotas.entities import QuotaEntity
    from quotas.mutations import MutationQuotas, MutationSettings
    from quotas.rate_quotas import RateQuotas, RateSettings
    from quotas.topic_quotas import TopicQuotas

    limits = Limits()
    limits.set(QuotaEntity(topic="t"), QuotaKey.PRODUCER_BYTE_RATE, 100.0)
    limits.set(QuotaEntity(client_id="c"), QuotaKey.CONTROLLER_MUTATION_RATE, 1.0)
    limits.set(QuotaEntity(client_id="c"), QuotaKey.PRODUCER_BYTE_RATE, 100.0)

    def process() -> tuple[RateQuotas, TopicQuotas, MutationQuotas, dict]:
        produce, fetch, time = (
            RateQuotas(limits, key, RateSettings())
            for key in (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE, QuotaKey.REQUEST_PERCENTAGE)
        )
        mutations = MutationQuotas(limits, MutationSettings())
        by_topic = (
            TopicQuotas(limits, QuotaKey.PRODUCER_BYTE_RATE, RateSettings()),
            TopicQuotas(limits, QuotaKey.CONSUMER_BYTE_RATE, RateSettings()),
        )
        return produce, by_topic[0], mutations, counters_of(produce, fetch, time, mutations, by_topic)

    old, old_topics, old_mutations, old_counters = process()
    new, new_topics, new_mutations, new_counters = process()
    old_mutations.charge("u", "c", 30.0, strict=True, now_ms=0)
    of_old = old.tracker("u", "c", now_ms=0)
    of_old.record(1_500, now_ms=0)
    (topic_of_old,) = old_topics.trackers("u", "c", "t", kind="u", now_ms=0)
    topic_of_old.record(1_400, now_ms=0)
    use = OwnUse(old_counters)
    take_states(new_counters, states(old_counters, now_ms=10), now_ms=10)
    of_new = new.tracker("u", "c", now_ms=10)
    assert of_new.throttle_time_ms(now_ms=10) == of_old.throttle_time_ms(now_ms=10) > 0
    assert new_mutations.throttle_time_ms("u", "c", now_ms=10) == old_mutations.throttle_time_ms("u", "c", now_ms=10)
    topic_of_old.record(600, now_ms=50)
    of_old.record(700, now_ms=50)  # of a connection that the old process has yet
    of_old.left_until_ms = 9_000
    take_use(new_counters, use.take(), now_ms=60)
    assert (of_new.level(now_ms=60)[0], of_new.left_until_ms) == (2_200, 9_000)
    assert of_new.recorded_here == 0  # so that it is not reported back
    (topic_of_new,) = new_topics.trackers("u", "c", "t", kind="u", now_ms=60)
    assert topic_of_new.level(now_ms=60)[0] == 2_000
    assert use.take() == []
