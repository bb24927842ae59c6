"""Controller mutations of groups: permits count for a member and its groups, once, and are refunded to all, once."""

from __future__ import annotations

from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entities import QuotaEntity, QuotaKey
from quotas.group_quotas import GroupKey
from quotas.groups import Group, Groups
from quotas.limits import Limits
from quotas.mutations import MutationDecision, MutationQuotas, MutationSettings
from quotas.resolution import Rule, TrackerKey
from quotas.token_bucket import TokenBucket

KEY = QuotaKey.CONTROLLER_MUTATION_RATE
TEAM = QuotaEntity(group="team")
ALICE = QuotaEntity(user="alice")
WINDOW_S = 10
GROUPS = (Group("team", users=("alice", "bob")), Group("site", addresses=("10.0.0.0/8",)))


def quotas_of(rates: dict[str, float], *groups: Group) -> tuple[MutationQuotas, Limits]:
    """With these quotas of groups, and of users: ``user=``."""
    limits = Limits()
    limits.set_groups(Groups(groups or GROUPS))
    for name, rate in rates.items():
        user = name.removeprefix("user=")
        limits.set(QuotaEntity(group=name) if user == name else QuotaEntity(user=user), KEY, rate)
    return MutationQuotas(limits, MutationSettings(window_num=WINDOW_S)), limits


def tokens(quotas: MutationQuotas, user: str = "", *, group: str = "", now_ms: int = 0) -> float | None:
    return quotas.level(TrackerKey(user, ""), group, now_ms=now_ms)[1]


def charge(quotas: MutationQuotas, user: str, permits: float, *, now_ms: int = 0) -> MutationDecision:
    return quotas.charge(user, "c", permits, strict=True, now_ms=now_ms)


def test_what_one_member_mutates_the_other_is_refused_for_and_no_other_client() -> None:
    quotas, _ = quotas_of({"team": 1})
    first = charge(quotas, "alice", 15)
    assert (first.accepted, first.charged, first.groups, first.own) == (True, 15, ("team",), False)
    refused = charge(quotas, "bob", 1)
    assert (refused.accepted, refused.throttle_time_ms, refused.group, refused.charged) == (False, 5_000, "team", 0)
    assert charge(quotas, "carol", 1_000).charged == 0
    assert charge(quotas, "bob", 1, now_ms=5_000).accepted
    assert quotas.throttle_time_ms("alice", "c", now_ms=5_000) == 1_000
    assert quotas.throttle_time_ms("carol", "c", now_ms=5_000) == 0


def test_a_member_by_address_is_limited_where_it_comes_from() -> None:
    quotas, _ = quotas_of({"site": 1})
    assert quotas.is_limited("carol", "c", "10.1.1.1")
    assert not quotas.is_limited("carol", "c")
    quotas.charge("carol", "c", 30, strict=False, address="10.1.1.1", now_ms=0)
    assert quotas.held_ms("dave", "c", address="10.2.2.2", now_ms=0) == 10_000
    assert quotas.held_ms("dave", "c", address="192.0.2.1", now_ms=0) == 0


@pytest.mark.parametrize(("own", "team", "named"), [(1, 2, ""), (2, 1, "team")])
@pytest.mark.parametrize("strict", [True, False])
def test_the_longer_wait_decides_and_has_its_name(own: float, team: float, named: str, strict: bool) -> None:
    quotas, _ = quotas_of({"user=alice": own, "team": team})
    quotas.charge("alice", "c", 40, strict=False, now_ms=0)
    again = quotas.charge("alice", "c", 1, strict=strict, now_ms=0)
    assert (again.group, again.throttle_time_ms) == (named, 30_000 if strict else 31_000)
    assert (again.rule, again.limit) == (Rule.USER, own)


def test_a_topic_that_a_group_refuses_is_charged_to_none() -> None:
    quotas, _ = quotas_of({"user=bob": 5, "team": 1})
    charge(quotas, "alice", 15)
    assert not charge(quotas, "bob", 1).accepted
    assert tokens(quotas, "bob") == 5 * WINDOW_S
    assert tokens(quotas, group="team") == -5


def test_a_refund_goes_to_each_counter_that_was_charged_and_outlives_the_group() -> None:
    quotas, limits = quotas_of({"user=alice": 2, "team": 1})
    first = charge(quotas, "alice", 8)
    quotas.refund(first, 3, now_ms=0)
    assert (tokens(quotas, "alice"), tokens(quotas, group="team")) == (15, 5)
    second = charge(quotas, "alice", 4)
    limits.remove(TEAM, KEY)
    quotas.expire(now_ms=0)
    quotas.refund(second, now_ms=0)
    assert (tokens(quotas, "alice"), tokens(quotas, group="team")) == (15, None)


def test_a_group_that_is_only_observed_refuses_and_collects_nothing() -> None:
    quotas, limits = quotas_of({"user=alice": 5, "team": 1})
    limits.set_observed([TEAM])
    assert quotas.is_limited("alice", "c")
    assert not quotas.is_limited("bob", "c")
    charge(quotas, "alice", 15)
    again = charge(quotas, "alice", 1)
    assert (again.accepted, again.groups, again.own) == (True, (), True)
    assert (tokens(quotas, "alice"), tokens(quotas, group="team")) == (34, -5)
    counter = quotas.groups.find(GroupKey(None, "team"))
    assert counter is not None
    assert counter.throttles.would_throttle_total == 1
    limits.set_observed([ALICE])
    quotas.charge("alice", "c", 40, strict=False, now_ms=10_000)
    other = charge(quotas, "alice", 1, now_ms=10_000)
    assert (other.accepted, other.group) == (False, "team")


def test_waits_and_refusals_are_counted_by_the_counter_that_asked() -> None:
    quotas, _ = quotas_of({"user=alice": 100, "team": 1})
    charge(quotas, "alice", 15)
    charge(quotas, "alice", 1)
    quotas.count_throttle("alice", "c", 5_000, group="team", now_ms=0)
    counter = quotas.groups.find(GroupKey(None, "team"))
    assert counter is not None
    assert (counter.throttles.refused_total, counter.throttles.throttled_ms_total) == (1, 5_000)
    (own,) = quotas.snapshot(now_ms=0)
    assert (own.refused_total, own.throttled_total) == (0, 0)


@pytest.mark.parametrize("group", [Group("other", users=("alice",)), Group("team", users=("bob",))])
def test_a_client_that_is_in_no_group_with_a_quota_is_not_counted(group: Group) -> None:
    quotas, _ = quotas_of({"team": 1}, group)
    assert charge(quotas, "alice", 100).charged == 0
    assert not quotas.groups.own()


Step: TypeAlias = tuple[str, int, bool, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["alice", "bob", "carol"]),
        st.integers(1, 30),
        st.booleans(),
        st.integers(0, 4_000),
        st.integers(0, 30),
    ),
    max_size=30,
)


@given(STEPS)
def test_each_counter_is_a_bucket_that_is_charged_once_and_refunded_once(steps: list[Step]) -> None:
    """Against plain buckets: a strict topic passes if none of the client's is in debt."""
    rates = {"team": 2.0, "site": 3.0, "user=alice": 1.0}
    quotas, _ = quotas_of(rates)
    buckets = {
        name: TokenBucket(rate, window_num=WINDOW_S, window_ms=1_000, now_ms=0) for name, rate in rates.items()
    }
    counted_by = {"alice": ("user=alice", "team", "site"), "bob": ("team",), "carol": ("site",)}
    address = {"alice": "10.0.0.1", "carol": "10.0.0.1", "bob": "192.0.2.1"}
    now_ms = 0
    for user, permits, strict, later_ms, refunded in steps:
        now_ms += later_ms
        mine = [buckets[name] for name in counted_by[user]]
        before_ms = max(each.throttle_time_ms(now_ms=now_ms) for each in mine)
        decision = quotas.charge(user, "c", permits, strict=strict, address=address[user], now_ms=now_ms)
        assert decision.accepted is (not strict or before_ms == 0)
        if decision.accepted:
            for each in mine:
                each.record(permits, now_ms=now_ms)
        after_ms = max(each.throttle_time_ms(now_ms=now_ms) for each in mine)
        assert decision.throttle_time_ms == (0 if strict and decision.accepted else after_ms)
        quotas.refund(decision, refunded, now_ms=now_ms)
        for each in mine if decision.accepted else ():
            each.record(-min(refunded, permits), now_ms=now_ms)
        assert quotas.throttle_time_ms(user, "c", address=address[user], now_ms=now_ms) == max(
            each.throttle_time_ms(now_ms=now_ms) for each in mine
        )
