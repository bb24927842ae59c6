"""Quotas of topics: which entities there may be, which apply, and that quotas of clients know nothing of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entities import DEFAULT, MAX_NAME_CHARS, EntityType, Family, Name, QuotaEntity, QuotaKey, parse_entity
from quotas.limits import Enforcement, Limits, validate
from quotas.rate_quotas import RateSettings
from quotas.resolution import Rule, entity_of, resolve
from quotas.topic_quotas import TopicKey, TopicQuotas, _Client

PRODUCE = QuotaKey.PRODUCER_BYTE_RATE
SETTINGS = RateSettings()


def applying(limits: Limits, user: str, client_id: str, topic: str) -> dict[Rule, tuple[str, float]]:
    """By family, the entity that applies and its limit."""
    quotas = TopicQuotas(limits, PRODUCE, SETTINGS)
    found = quotas.trackers(user, client_id, topic, kind=user, now_ms=0)
    return {each.match.rule: (str(entity_of(each.match)), each.limit_per_s) for each in found}


@pytest.mark.parametrize(
    ("entity", "key", "valid"),
    [
        ("topic=t", PRODUCE, True),
        ("topic=<default>,user=<default>", PRODUCE, True),
        ("topic=t,client-id=c", QuotaKey.CONSUMER_BYTE_RATE, True),
        ("topic=t,user=u,client-id=c", PRODUCE, False),
        ("topic=t,ip=::1", PRODUCE, False),
        ("topic=a b", PRODUCE, False),
        ('topic=""', PRODUCE, False),
        (f"topic={'t' * 250}", PRODUCE, False),
        ("topic=t", QuotaKey.REQUEST_PERCENTAGE, False),
        ("topic=t", QuotaKey.CONTROLLER_MUTATION_RATE, False),
        ("topic=t", QuotaKey.CONNECTION_CREATION_RATE, False),
    ],
)
def test_a_topic_stands_alone_or_with_a_user_or_a_client_id_and_has_byte_rates(
    entity: str, key: QuotaKey, valid: bool
) -> None:
    assert (validate(parse_entity(entity), key, 5.0) is None) is valid


def test_quotas_of_clients_and_what_they_are_counted_by_stay_as_they_are() -> None:
    limits = Limits(prefixes=True)
    limits.set(QuotaEntity(user="u*", topic="t"), PRODUCE, 5.0)
    assert not limits.enabled(PRODUCE)
    assert limits.topics_enabled(PRODUCE)
    assert limits.prefixes_of(PRODUCE, EntityType.USER, "u1") == []
    limits.set(QuotaEntity(client_id="c"), PRODUCE, 7.0)
    assert resolve(limits, PRODUCE, "u1", "c").tracker_key == ("", "c")
    limits.set_mode(Enforcement.OFF)
    assert not limits.topics_enabled(PRODUCE)
    limits.set_mode(Enforcement.ENFORCE)
    limits.remove(QuotaEntity(user="u*", topic="t"), PRODUCE)
    assert not limits.topics_enabled(PRODUCE)
    limits.replace_all([(QuotaEntity(topic="t"), PRODUCE, 1.0)])
    assert (limits.enabled(PRODUCE), limits.topics_enabled(PRODUCE)) == (False, True)


names = st.sampled_from(["a", "b", DEFAULT])
entities = (
    st.builds(lambda topic: QuotaEntity(topic=topic), names)
    | st.builds(lambda topic, user: QuotaEntity(user, topic=topic), names, names)
    | st.builds(lambda topic, client: QuotaEntity(None, client, topic=topic), names, names)
)


@given(
    st.dictionaries(entities, st.integers(1, 9)), st.sampled_from("ab"), st.sampled_from("ab"), st.sampled_from("ab")
)
def test_of_each_family_the_most_exact_entity_applies(
    quotas: dict[QuotaEntity, int], user: str, client_id: str, topic: str
) -> None:
    limits = Limits()
    for entity, value in quotas.items():
        limits.set(entity, PRODUCE, float(value))

    def first(*wanted: QuotaEntity) -> tuple[str, float] | None:
        return next(((str(each), float(quotas[each])) for each in wanted if each in quotas), None)

    both: tuple[Name, ...] = (topic, DEFAULT)
    expected = {
        Rule.TOPIC: first(*(QuotaEntity(topic=one) for one in both)),
        Rule.USER_TOPIC: first(*(QuotaEntity(who, topic=one) for one in both for who in (user, DEFAULT))),
        Rule.CLIENT_TOPIC: first(
            *(QuotaEntity(None, who, topic=one) for one in both for who in (client_id, DEFAULT))
        ),
    }
    assert applying(limits, user, client_id, topic) == {
        rule: found for rule, found in expected.items() if found is not None
    }


def test_counters_are_those_of_the_topic_and_of_whom_the_entity_names() -> None:
    limits = Limits()
    limits.set(QuotaEntity(topic=DEFAULT), PRODUCE, 1.0)
    limits.set(QuotaEntity(DEFAULT, topic=DEFAULT), PRODUCE, 2.0)
    quotas = TopicQuotas(limits, PRODUCE, SETTINGS)

    def of(user: str, client_id: str, topic: str) -> tuple[int, ...]:
        return tuple(map(id, quotas.trackers(user, client_id, topic, kind=user, now_ms=0)))

    assert of("a", "x", "t") == of("a", "y", "t")
    assert of("a", "x", "t")[0] == of("b", "x", "t")[0]
    assert of("a", "x", "t")[1] != of("b", "x", "t")[1]
    assert set(of("a", "x", "t")).isdisjoint(of("a", "x", "other"))
    before = of("a", "x", "t")
    limits.set(QuotaEntity(topic="t"), PRODUCE, 9.0)
    assert of("a", "x", "t") == before
    assert quotas.trackers("a", "x", "t", kind="a", now_ms=0)[0].limit_per_s == 9.0


def test_a_counter_that_its_table_dropped_is_looked_up_anew_and_long_names_are_cut() -> None:
    limits = Limits()
    limits.set(QuotaEntity(client_id=DEFAULT, topic=DEFAULT), PRODUCE, 5.0)
    quotas = TopicQuotas(limits, PRODUCE, RateSettings(max_trackers=1))
    (dropped,) = quotas.trackers("u", "c" * 5_000, "t" * 30_000, kind="u", now_ms=0)
    ((key, _),) = quotas.own()
    assert len(key.topic) == len(key.client_id) == MAX_NAME_CHARS
    (newer,) = quotas.trackers("u", "c", "other", kind="u", now_ms=1)
    assert [each for _, each in quotas.own()] == [newer]
    (again,) = quotas.trackers("u", "c" * 5_000, "t" * 30_000, kind="u", now_ms=2)
    assert again is not dropped
    assert [each for _, each in quotas.own()] == [again]


@pytest.mark.parametrize(
    ("entity", "clients"),
    [
        (QuotaEntity(topic="t"), {"uc", "ux", "xc", "xx"}),
        (QuotaEntity("u", topic="t"), {"uc", "ux"}),
        (QuotaEntity(None, "c", topic="t"), {"uc", "xc"}),
    ],
)
def test_a_topic_that_is_used_up_concerns_the_clients_that_its_quota_counts_until_its_debt_is_paid(
    entity: QuotaEntity, clients: set[str]
) -> None:
    limits = Limits()
    limits.set(entity, PRODUCE, 10.0)
    quotas = TopicQuotas(limits, PRODUCE, SETTINGS)

    def concerned(now_ms: int) -> set[str]:
        return {names for names in ("uc", "ux", "xc", "xx") if quotas.any_used_up(*names, kind="", now_ms=now_ms)}

    (tracker,) = quotas.trackers("u", "c", "t", kind="k", now_ms=0)
    quotas.note_wait(tracker, "k", now_ms=0)
    assert concerned(0) == set()
    tracker.record(1_000, now_ms=0)
    quotas.note_wait(tracker, "k", now_ms=0)
    free_ms = math.ceil(tracker.blocked_until_ms)
    assert (concerned(0), concerned(free_ms - 1), concerned(free_ms)) == (clients, clients, set())
    limits.set(QuotaEntity(topic="another"), PRODUCE, 10.0)
    assert concerned(0) == clients
    assert concerned(tracker.window_ms) == set(), "after a change for a window alone"


def test_a_topic_may_be_used_up_by_other_processes_and_then_is() -> None:
    limits = Limits()
    limits.set(QuotaEntity(DEFAULT, topic="t"), PRODUCE, 10.0)
    quotas = TopicQuotas(limits, PRODUCE, SETTINGS)
    key = TopicKey(None, Family.USER_TOPIC, "t", "u", "")

    def used_up(user: str, now_ms: int) -> bool:
        return quotas.any_used_up(user, "any", kind="", now_ms=now_ms)

    tracker = quotas.counter_of(key, "k", now_ms=0)
    assert tracker is not None
    window_ms = tracker.window_ms
    assert [used_up("u", at) for at in (0, window_ms)] == [True, False]
    tracker.record_others(10_000, now_ms=0)
    quotas.counter_of(key, "k", now_ms=0)
    assert used_up("u", window_ms)
    assert not used_up("another", 0)


def test_a_shared_counter_that_is_used_up_concerns_its_kind_of_clients() -> None:
    limits = Limits()
    limits.set(QuotaEntity(DEFAULT, topic="t"), PRODUCE, 10.0)
    quotas = TopicQuotas(limits, PRODUCE, RateSettings(max_trackers=1))
    quotas.trackers("u", "c", "t", kind="k", now_ms=0)[0].record(1_000, now_ms=0)
    (shared,) = quotas.trackers("v", "c", "t", kind="k", now_ms=0)
    assert shared.shared
    shared.record(1_000, now_ms=0)
    quotas.note_wait(shared, "k", now_ms=0)
    assert quotas.any_used_up("new", "any", kind="k", now_ms=0)
    assert not quotas.any_used_up("new", "any", kind="other", now_ms=0)


def test_waits_are_forgotten_when_they_are_over_and_bounded_by_the_number_of_counters() -> None:
    limits = Limits()
    limits.set(QuotaEntity(DEFAULT, topic="t"), PRODUCE, 10.0)
    quotas = TopicQuotas(limits, PRODUCE, RateSettings(max_trackers=10))

    def use_up(user: str, now_ms: int) -> None:
        tracker = quotas.counter_of(TopicKey(None, Family.USER_TOPIC, "t", user, ""), user, now_ms=now_ms)
        assert tracker is not None
        tracker.record(10_000, now_ms=now_ms)
        quotas.note_wait(tracker, user, now_ms=now_ms)

    for at in range(10):
        use_up(f"u{at}", 0)
    assert not quotas.any_used_up("new", "c", kind="", now_ms=0)
    quotas._note(_Client("eleventh"), 5_000_000, 0)
    assert quotas.any_used_up("new", "c", kind="", now_ms=0), "all clients, as there is no place for one more"
    quotas.expire(now_ms=5_000_000)
    assert not quotas._waits


def test_a_topic_whose_quota_is_only_observed_is_not_used_up() -> None:
    limits = Limits()
    limits.set(QuotaEntity(topic="t"), PRODUCE, 10.0)
    limits.set_mode(Enforcement.OBSERVE)
    quotas = TopicQuotas(limits, PRODUCE, SETTINGS)
    (tracker,) = quotas.trackers("u", "c", "t", kind="k", now_ms=0)
    tracker.record_others(1_000, now_ms=0)
    quotas.note_wait(tracker, "k", now_ms=0)
    assert not quotas.any_used_up("u", "c", kind="k", now_ms=0)
