from typing import Any

import pytest

from quotas.entities import DEFAULT, Name, QuotaEntity, QuotaKey
from quotas.limits import Enforcement, Limits
from quotas.rate_quotas import ByteRateQuotas, RateQuotas, RateSettings, RateTracker, RequestTimeQuotas
from quotas.resolution import Rule
from testkit.clock import FakeClock
from testkit.scenarios import scenarios, steps

KEY, FETCH = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE
NS_PER_PERCENT_SECOND = 10_000_000


class Setup:
    """Quotas of one key, and a clock."""

    def __init__(self, clock: FakeClock, quotas: dict[QuotaEntity, float], **settings: Any) -> None:
        self.clock = clock
        self.limits = Limits()
        for entity, value in quotas.items():
            self.limits.set(entity, KEY, value)
        self.quotas = RateQuotas(self.limits, KEY, RateSettings(**settings))

    def tracker(self, user: str, client_id: str, scope: int | None = None) -> RateTracker:
        tracker = self.quotas.tracker(user, client_id, scope=scope, now_ms=self.clock.now_ms)
        assert tracker is not None
        return tracker

    def record(self, user: str, client_id: str, value: float, scope: int | None = None) -> int:
        return self.tracker(user, client_id, scope).record(value, now_ms=self.clock.now_ms)


def _name(text: str | None) -> Name | None:
    return DEFAULT if text == "<default>" else text


@pytest.mark.parametrize("row", scenarios("cq"))
def test_scenario_client_quota(row: dict[str, Any], clock: FakeClock) -> None:
    setup = Setup(clock, {})
    for step in row["steps"]:
        if step[0] == "set":
            entity = QuotaEntity(_name(step[1]), _name(step[2]))
            if step[3] is None:
                setup.limits.remove(entity, KEY)
            else:
                setup.limits.set(entity, KEY, step[3])
            continue
        user, client_id, value, throttle_ms = step
        tracker = setup.quotas.tracker(user, client_id, now_ms=clock.now_ms)
        recorded = 0 if tracker is None else tracker.record(value, now_ms=clock.now_ms)
        assert recorded == throttle_ms


def test_without_a_quota_nothing_is_counted_or_clamped_and_an_unlimited_client_never_waits(clock: FakeClock) -> None:
    setup = Setup(clock, {})
    assert setup.quotas.tracker("u", "c", now_ms=clock.now_ms) is None
    setup.limits.set(QuotaEntity("u"), KEY, 10)
    assert setup.record("u", "c", 100) == 0  # what went before was not counted
    setup = Setup(clock, {QuotaEntity("u"): 100})
    assert setup.record("someone", "c", 10**15) == 0
    (row,) = setup.quotas.snapshot(now_ms=clock.now_ms)
    assert (row.user, row.limit, row.rule, row.utilisation) == ("someone", None, Rule.NONE, None)
    assert row.rate == 10**14
    off = ByteRateQuotas(Limits(), FETCH, RateSettings())
    assert off.tracker("u", "c", now_ms=clock.now_ms) is None
    unlimited = byte_quotas(1).tracker("nobody", "c", now_ms=clock.now_ms)
    assert unlimited is None or unlimited.max_in_window() is None


def test_clients_of_one_user_share_a_counter_and_brokers_and_pairs_do_not(clock: FakeClock) -> None:
    setup = Setup(clock, {QuotaEntity("u"): 100, QuotaEntity(DEFAULT, DEFAULT): 100})
    assert setup.record("u", "a", 1_000) == 0
    assert setup.record("u", "b", 1_000) == 10_000
    assert setup.record("v", "a", 1_000) == 0
    assert setup.record("v", "b", 1_000) == 0
    setup = Setup(clock, {QuotaEntity("u"): 100})
    assert setup.record("u", "c", 1_000, scope=1) == 0
    assert setup.record("u", "c", 1_000, scope=2) == 0
    assert setup.record("u", "c", 1_000, scope=1) == 10_000


def test_limits_that_change_apply_to_what_was_recorded_and_new_levels_count_from_zero(clock: FakeClock) -> None:
    setup = Setup(clock, {QuotaEntity("u"): 1_000})
    assert setup.record("u", "c", 10_000) == 0
    setup.limits.set(QuotaEntity("u"), KEY, 500)
    assert setup.record("u", "c", 0) == 10_000
    setup = Setup(clock, {QuotaEntity("u"): 100})
    assert setup.record("u", "c", 10_000) > 0
    setup.limits.set(QuotaEntity("u", "c"), KEY, 100)
    assert setup.record("u", "c", 1_000) == 0
    assert setup.record("u", "other", 0) > 0
    setup = Setup(clock, {QuotaEntity("u"): 100})
    setup.record("u", "c", 500)
    setup.limits.set(QuotaEntity("u"), KEY, 200)
    (row,) = setup.quotas.snapshot(now_ms=clock.now_ms)
    assert (row.limit, row.rate, row.utilisation, row.rule) == (200, 50, 0.25, Rule.USER)


def test_a_counter_is_looked_up_once_and_one_that_was_dropped_is_not_recorded_to(clock: FakeClock) -> None:
    setup = Setup(clock, {QuotaEntity("u"): 100})
    shared = setup.tracker("u", "a")
    assert setup.tracker("u", "a") is shared
    setup.limits.set(QuotaEntity("u", "a"), KEY, 5)
    # The other client of the user looks first: that must not keep this one on the old counter.
    assert setup.tracker("u", "b") is shared
    assert setup.tracker("u", "a") is not shared
    setup = Setup(clock, {QuotaEntity(client_id=DEFAULT): 100}, max_trackers=1)
    setup.record("u", "a", 50)
    clock.advance(11_000)
    setup.record("u", "b", 50)  # takes the only place
    clock.advance(11_000)
    setup.record("u", "a", 50)
    rows = [row for row in setup.quotas.snapshot(now_ms=clock.now_ms) if not row.other]
    assert [(row.client_id, row.rate) for row in rows] == [("a", 5)]
    (row,) = setup.quotas.snapshot(now_ms=clock.advance(11_000))
    assert (row.rate, row.utilisation) == (0, 0)


def test_a_client_that_shares_a_counter_looks_for_one_of_its_own_once_a_second(clock: FakeClock) -> None:
    setup = Setup(clock, {QuotaEntity(client_id=DEFAULT): 100}, max_trackers=1)
    setup.record("u", "a", 50)
    clock.advance(10_500)
    assert [setup.tracker("u", client_id).shared for client_id in "bc"] == [True, True]
    clock.advance(600)  # there is room for it by now
    assert setup.tracker("u", "b").shared
    clock.advance(400)
    assert not setup.tracker("u", "b").shared


def test_unchecked_records_weigh_on_the_next_one(clock: FakeClock) -> None:
    setup = Setup(clock, {QuotaEntity("u"): 100})
    tracker = setup.tracker("u", "c")
    tracker.record_unchecked(2_000, now_ms=clock.now_ms)
    assert tracker.throttle_time_ms(now_ms=clock.now_ms) == 10_000
    assert tracker.record(0, now_ms=clock.now_ms) == 10_000


def test_observe_mode_reports_and_delays_nobody(clock: FakeClock) -> None:
    setup = Setup(clock, {QuotaEntity("u"): 100, QuotaEntity("v"): 100})
    setup.limits.set_observed([QuotaEntity("u")])
    assert setup.record("u", "c", 5_000) == 0
    assert setup.tracker("u", "c").max_in_window() is None
    assert setup.record("v", "c", 5_000) > 0
    rows = {row.user: row for row in setup.quotas.snapshot(now_ms=clock.now_ms)}
    assert (rows["u"].would_throttle_total, rows["v"].would_throttle_total) == (1, 0)
    assert rows["u"].utilisation == 5
    setup.limits.set_mode(Enforcement.OBSERVE)
    assert setup.record("v", "c", 5_000) == 0
    setup.limits.set_mode(Enforcement.ENFORCE)
    setup.limits.set_observed()
    assert setup.record("u", "c", 0) > 0


def test_hazard_c24_a_flood_of_ids_shares_one_counter_and_totals_add_up(clock: FakeClock) -> None:
    setup = Setup(clock, {QuotaEntity(client_id=DEFAULT): 100}, max_trackers=4)
    throttled = 0
    for i in range(50):
        throttle_ms = setup.record("u", f"id-{i}", 400)
        throttled += throttle_ms > 0
        setup.tracker("u", f"id-{i}").throttles.record(throttle_ms, now_ms=clock.now_ms)
    rows = setup.quotas.snapshot(now_ms=clock.now_ms)
    assert len(rows) == 5
    assert rows[-1].other
    assert throttled > 40
    assert sum(row.throttled_total for row in rows) == throttled
    # The flood is over: the samples leave, and a client finds a place of its own again.
    clock.advance(11_000)
    assert not setup.tracker("u", "id-49").shared
    for i in range(100, 120):
        setup.tracker("u", f"id-{i}")
    assert sum(row.throttled_total for row in setup.quotas.snapshot(now_ms=clock.now_ms)) == throttled


# -- bytes ---------------------------------------------------------------------------------------------------
def byte_quotas(limit: float, window_num: int = 11) -> ByteRateQuotas:
    limits = Limits()
    limits.set(QuotaEntity("u"), FETCH, limit)
    return ByteRateQuotas(limits, FETCH, RateSettings(window_num=window_num))


@pytest.mark.parametrize(("window_num", "most"), [(11, 10_000), (2, 1_000), (1, 0)])
def test_a_fetch_is_clamped_to_what_the_whole_windows_can_pass(window_num: int, most: int, clock: FakeClock) -> None:
    tracker = byte_quotas(1_000, window_num).tracker("u", "c", now_ms=clock.now_ms)
    assert tracker is not None
    assert tracker.max_in_window() == most
    if most:
        assert tracker.record(most, now_ms=clock.now_ms) == 0
        assert tracker.record(1, now_ms=clock.now_ms) > 0


def test_only_byte_rates_are_byte_rates() -> None:
    with pytest.raises(ValueError, match="request_percentage is no byte rate"):
        ByteRateQuotas(Limits(), QuotaKey.REQUEST_PERCENTAGE, RateSettings())


def test_long_run_stays_within_limit_and_burst(clock: FakeClock) -> None:
    # A client that sends as fast as it may, in frames of half a second's worth.
    tracker = byte_quotas(1_000).tracker("u", "c", now_ms=clock.now_ms)
    assert tracker is not None
    start_ms, sent = clock.now_ms, 0
    while clock.now_ms - start_ms < 600_000:
        clock.advance(max(1, tracker.record(500, now_ms=clock.now_ms)))
        sent += 500
    elapsed_s = (clock.now_ms - start_ms) / 1000
    assert 0.90 * 1_000 * elapsed_s <= sent <= 1_000 * elapsed_s + 10_000 + 500


# -- members of a fleet --------------------------------------------------------------------------------------
def member_of_four(clock: FakeClock) -> tuple[ByteRateQuotas, RateTracker]:
    quotas = byte_quotas(1_000)
    quotas.urgent.members = 4
    tracker = quotas.tracker("u", "c", now_ms=clock.now_ms)
    assert tracker is not None
    return quotas, tracker


def test_what_other_members_report_leaves_less_to_this_one(clock: FakeClock) -> None:
    _, tracker = member_of_four(clock)
    assert tracker.max_in_window() == 10_000 / 4
    tracker.record_others(6_000, now_ms=clock.now_ms)
    assert tracker.max_in_window() == 4_000 / 4


def test_each_part_of_the_limit_that_is_used_is_reported_at_once(clock: FakeClock) -> None:
    quotas, tracker = member_of_four(clock)
    for _ in range(3):
        tracker.record(10_000 / 64, now_ms=clock.now_ms)
        assert [each for _, each in quotas.urgent.found] == [tracker]
        quotas.urgent.found.clear()
        tracker.settle(tracker.untold(now_ms=clock.now_ms))


# -- time of requests ----------------------------------------------------------------------------------------
def request_quotas(percent: float, **settings: Any) -> RequestTimeQuotas:
    limits = Limits()
    limits.set(QuotaEntity("u"), QuotaKey.REQUEST_PERCENTAGE, percent)
    return RequestTimeQuotas(limits, RateSettings(**settings))


@pytest.mark.parametrize("row", [p for p in scenarios("rate") if "cap_ms" in p.values[0]])
def test_scenario_rate(row: dict[str, Any], clock: FakeClock) -> None:
    start_ms = clock.now_ms
    quotas = request_quotas(row["q"], window_num=row["S"], window_ms=row["W"] * 1000)
    for at_ms, verb, percent, throttle_ms in steps(row):
        assert verb == "rec"
        time_ns = round(percent * NS_PER_PERCENT_SECOND)
        assert quotas.record("u", "c", time_ns, now_ms=start_ms + at_ms) == throttle_ms


def test_time_weighs_on_the_next_request_at_most_a_window(clock: FakeClock) -> None:
    quotas = request_quotas(1)
    for _ in range(60):  # eleven samples lie within ten seconds when they come on the second
        assert quotas.record("u", "c", 10_000_000 * 10 // 11, now_ms=clock.advance(1_000)) == 0
    (row,) = quotas.snapshot(now_ms=clock.now_ms)
    assert row.utilisation == pytest.approx(1, abs=0.01)
    quotas = request_quotas(1)
    quotas.record("u", "c", 105_000_000, now_ms=clock.now_ms)
    assert quotas.record("u", "c", 0, now_ms=clock.now_ms) == 500
    assert request_quotas(1, window_ms=2_000).record("u", "c", 10**12, now_ms=clock.now_ms) == 2_000
    quotas = request_quotas(1)
    quotas.record_exempt(10**12)
    assert quotas.exempt_ns == 10**12
    assert quotas.record("u", "c", 0, now_ms=clock.now_ms) == 0
    quotas = RequestTimeQuotas(Limits(), RateSettings())
    assert quotas.record("u", "c", 10**12, now_ms=clock.now_ms) == 0
    assert quotas.snapshot(now_ms=clock.now_ms) == []


def test_the_load_of_a_counter_is_the_part_of_its_limit_that_is_in_use(clock: FakeClock) -> None:
    limits = Limits()
    limits.set(QuotaEntity(user="u"), QuotaKey.PRODUCER_BYTE_RATE, 10.0)
    tracker = ByteRateQuotas(limits, QuotaKey.PRODUCER_BYTE_RATE, RateSettings()).tracker(
        "u", "c", now_ms=clock.now_ms
    )
    assert tracker is not None
    tracker.record(15, now_ms=clock.now_ms)
    assert (tracker.rough_rate(now_ms=clock.now_ms), tracker.load(now_ms=clock.now_ms)) == (1.5, 0.15)
    assert tracker.load(now_ms=clock.advance(11_000)) == 0
