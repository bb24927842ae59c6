"""Groups: who is a member of which, what may be set for them, and that no client leaves one by its own choice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entities import (
    ATTRIBUTE_KEYS,
    BURST_KEYS,
    DEFAULT,
    FURTHER_RATE_KEYS,
    QuotaEntity,
    QuotaKey,
    parse_entity,
)
from quotas.group_quotas import GroupQuotas
from quotas.groups import MOST_OF_CLIENT, Group, Groups
from quotas.limits import Enforcement, Limits, validate
from quotas.rate_quotas import RateSettings
from quotas.resolution import Rule, entity_of, resolve

PRODUCE = QuotaKey.PRODUCER_BYTE_RATE


@pytest.mark.parametrize(
    ("entity", "key", "valid"),
    [
        ("group=g", PRODUCE, True),
        ("group=g", QuotaKey.CONSUMER_BYTE_RATE, True),
        ("group=g", QuotaKey.REQUEST_PERCENTAGE, True),
        ("group=g", QuotaKey.CONNECTION_CREATION_RATE, False),
        *(("group=g", key, key in BURST_KEYS.values()) for key in sorted(ATTRIBUTE_KEYS)),
        *(("group=g", key, False) for key in FURTHER_RATE_KEYS),
        ("group=<default>", PRODUCE, False),
        ("group=a b", PRODUCE, False),
        (f"group={'g' * 101}", PRODUCE, False),
        ("group=g,user=u", PRODUCE, False),
        ("group=g,topic=t", PRODUCE, False),
        ("group=g,ip=::1", PRODUCE, False),
    ],
)
def test_a_group_stands_alone_and_has_a_name(entity: str, key: QuotaKey, valid: bool) -> None:
    assert (validate(parse_entity(entity), key, 5.0) is None) is valid
    assert parse_entity(str(parse_entity(entity))) == parse_entity(entity)


def test_the_eight_levels_do_not_know_of_groups() -> None:
    limits = Limits()
    limits.set(QuotaEntity(group="g"), PRODUCE, 5.0)
    limits.set_groups(Groups([Group("g", users=("alice",))]))
    assert (limits.enabled(PRODUCE), limits.topics_enabled(PRODUCE), limits.groups_enabled(PRODUCE)) == (
        False,
        False,
        True,
    )
    limits.set(QuotaEntity(client_id="c"), PRODUCE, 7.0)
    assert resolve(limits, PRODUCE, "alice", "c").tracker_key == ("", "c")
    limits.set_mode(Enforcement.OFF)
    assert not limits.groups_enabled(PRODUCE)
    limits.set_mode(Enforcement.ENFORCE)
    limits.replace_all([])
    assert not limits.groups_enabled(PRODUCE)


@pytest.mark.parametrize(
    ("user", "client_id", "address", "groups"),
    [
        ("alice", "x", "", ("users", "prefix")),
        ("al", "x", "", ("prefix",)),
        ("a", "x", "", ()),
        ("bob", "app-1", "", ("clients",)),
        ("bob", "app-", "", ("clients",)),
        ("bob", "app", "", ()),
        ("bob", "app-*", "", ("clients",)),
        ("bob", "x", "10.1.2.3", ("addresses", "block")),
        ("bob", "x", "::ffff:10.1.2.3", ("addresses", "block")),
        ("bob", "x", "10.1.9.9", ("block",)),
        ("bob", "x", "10.2.0.1", ()),
        ("bob", "x", "2001:db8::1", ("block",)),
        ("bob", "x", "no address", ()),
        ("alice", "app-1", "10.1.2.3", ("users", "prefix", "addresses", "block", "clients")),
    ],
)
def test_a_client_is_in_the_groups_that_list_its_user_address_or_client_id(
    user: str, client_id: str, address: str, groups: tuple[str, ...]
) -> None:
    defined = Groups(
        [
            Group("clients", client_ids=("app-*",)),
            Group("users", users=("alice", "carol")),
            Group("prefix", users=("al*",)),
            Group("addresses", addresses=("10.1.2.3",)),
            Group("block", addresses=("10.1.0.0/16", "2001:db8::/32")),
        ]
    )
    assert defined.of(user, client_id, address) == groups


@given(st.text(st.sampled_from("ab*"), max_size=8))
def test_no_choice_of_a_client_id_leaves_a_group_of_the_user_or_the_address(client_id: str) -> None:
    """More groups by client id than a client is counted by, one inside the other."""
    by_client = [Group(f"c{n}", client_ids=("a" * n + "*", "b" * n + "*")) for n in range(1, 3 * MOST_OF_CLIENT)]
    groups = Groups([*by_client, Group("team", users=("alice",)), Group("site", addresses=("10.0.0.0/8",))])
    found = groups.of("alice", client_id * 9, "10.1.1.1")
    assert found[:2] == ("team", "site")
    assert len(found) <= MOST_OF_CLIENT


def quotas_of(limits: Limits) -> GroupQuotas:
    return GroupQuotas(limits, PRODUCE, RateSettings())


def test_members_share_one_counter_and_others_have_none() -> None:
    limits = Limits()
    limits.set(QuotaEntity(group="g"), PRODUCE, 5.0)
    limits.set_groups(Groups([Group("g", users=("alice", "bob")), Group("without", users=("alice",))]))
    quotas = quotas_of(limits)
    (of_alice,) = quotas.trackers("alice", "c", "", now_ms=0)
    assert quotas.trackers("bob", "d", "", now_ms=0) == (of_alice,)
    assert quotas.trackers("carol", "c", "", now_ms=0) == ()
    assert (of_alice.match.rule, entity_of(of_alice.match)) == (Rule.GROUP, QuotaEntity(group="g"))
    (of_broker,) = quotas.trackers("bob", "d", "", scope=1, now_ms=0)
    assert of_broker is not of_alice


def test_a_counter_stays_with_a_changed_quota_and_goes_with_its_quota_or_its_group() -> None:
    limits = Limits()
    quotas = quotas_of(limits)
    entity = QuotaEntity(group="g")
    limits.set(entity, PRODUCE, 5.0)
    assert quotas.trackers("alice", "c", "", now_ms=0) == ()  # no such group yet
    limits.set_groups(Groups([Group("g", users=("alice",))]))
    (counter,) = quotas.trackers("alice", "c", "", now_ms=0)
    counter.record(1_000, now_ms=0)
    limits.set(entity, PRODUCE, 7.0)
    assert quotas.trackers("alice", "c", "", now_ms=0) == (counter,)
    assert counter.limit_per_s == 7.0
    limits.set_groups(Groups([Group("g", users=("bob",))]))
    assert quotas.trackers("alice", "c", "", now_ms=0) == ()
    assert quotas.trackers("bob", "c", "", now_ms=0) == (counter,)
    limits.set_groups(Groups())
    assert quotas.trackers("bob", "c", "", now_ms=0) == ()
    assert not quotas.own()
    limits.set_groups(Groups([Group("g", users=("bob",))]))
    (fresh,) = quotas.trackers("bob", "c", "", now_ms=0)
    assert fresh.throttle_time_ms(now_ms=0) == 0
    limits.remove(entity, PRODUCE)
    assert quotas.trackers("bob", "c", "", now_ms=0) == ()
    assert not quotas.own()


def test_a_group_with_a_burst_is_counted_by_a_bucket_that_members_share() -> None:
    limits = Limits()
    entity = QuotaEntity(group="g")
    limits.set(entity, PRODUCE, 1_000.0)
    limits.set_groups(Groups([Group("g", users=("alice", "bob"))]))
    quotas = quotas_of(limits)
    (of_alice,) = quotas.trackers("alice", "c", "", now_ms=0)
    assert of_alice.record(10_000, now_ms=0) == 0  # Kafka's window passes ten seconds' worth
    limits.set(entity, BURST_KEYS[PRODUCE], 2.0)
    start_ms = 100_000
    (of_alice,) = quotas.trackers("alice", "c", "", now_ms=start_ms)
    (of_bob,) = quotas.trackers("bob", "d", "", now_ms=start_ms)
    assert of_alice.record(2_000, now_ms=start_ms) == 0
    assert of_bob.record(500, now_ms=start_ms) == 500
    assert of_alice.tokens(now_ms=start_ms) == -500
    limits.remove(entity, BURST_KEYS[PRODUCE])
    (of_bob,) = quotas.trackers("bob", "d", "", now_ms=2 * start_ms)
    assert of_bob.record(10_000, now_ms=2 * start_ms) == 0
    assert of_bob.tokens(now_ms=2 * start_ms) is None


def test_a_burst_of_a_member_does_not_change_its_group_nor_the_other_way_round() -> None:
    limits = Limits()
    limits.set_groups(Groups([Group("g", users=("alice",))]))
    for entity, burst_s in ((QuotaEntity(group="g"), 2.0), (QuotaEntity("alice"), 60.0)):
        limits.set(entity, PRODUCE, 1_000.0)
        limits.set(entity, BURST_KEYS[PRODUCE], burst_s)
    (of_group,) = quotas_of(limits).trackers("alice", "c", "", now_ms=0)
    assert (of_group.match.burst_s, resolve(limits, PRODUCE, "alice", "c").burst_s) == (2.0, 60.0)


def test_a_burst_without_a_rate_limits_no_group() -> None:
    limits = Limits()
    limits.set(QuotaEntity(group="g"), BURST_KEYS[PRODUCE], 2.0)
    limits.set_groups(Groups([Group("g", users=("alice",))]))
    assert not limits.groups_enabled(PRODUCE)
    assert quotas_of(limits).trackers("alice", "c", "", now_ms=0) == ()


def test_a_group_may_only_be_watched() -> None:
    limits = Limits()
    entity = QuotaEntity(group="g")
    limits.set(entity, PRODUCE, 5.0)
    limits.set_groups(Groups([Group("g", users=("alice",))]))
    limits.set_observed([entity])
    (counter,) = quotas_of(limits).trackers("alice", "c", "", now_ms=0)
    assert counter.record(1_000_000, now_ms=0) == 0
    assert counter.throttles.would_throttle_total == 1


def test_groups_are_equal_when_their_members_are() -> None:
    group = Group("g", users=("alice",))
    assert Groups([group]) == Groups([Group("g", users=("alice",))])
    assert Groups([group]) != Groups([Group("g", client_ids=("alice",))])
    limits = Limits()
    limits.set_groups(Groups([group]))
    version = limits.version
    limits.set_groups(Groups([group]))
    assert limits.version == version


def test_the_default_is_no_group() -> None:
    assert validate(QuotaEntity(group=DEFAULT), PRODUCE, 1.0) == "There is no default group"
