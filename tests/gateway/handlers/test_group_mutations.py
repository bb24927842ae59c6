"""Mutations of members of a group: refused, throttled, explained and recorded under the group's name."""

from __future__ import annotations

from typing import Final

from gateway.usage.table import UsageTable
from protocol.error_codes import ErrorCode
from quotas.combine import ThrottledBy
from quotas.entities import QuotaEntity, QuotaKey
from quotas.groups import Group, Groups
from quotas.resolution import Rule
from quotas.usage_record import Beside, Limit, Row, UsageApi
from testkit.cluster import ScriptedCluster
from testkit.conversation import Conversation
from testkit.core import GatewayCore
from testkit.frames import creatable

KEY: Final = QuotaKey.CONTROLLER_MUTATION_RATE
TEAM: Final = QuotaEntity(group="team")
POLICY_VIOLATION: Final = 44


def core_of(*groups: Group, usage: UsageTable | None = None) -> GatewayCore:
    """A gateway whose group `team` may mutate one partition a second, ten at once."""
    core = GatewayCore(usage=usage)
    core.limits.set_groups(Groups(groups or [Group("team", users=("alice", "bob"))]))
    core.limits.set(TEAM, KEY, 1)
    return core


def create(c: Conversation, name: str, partitions: int, *, version: int = 7) -> tuple[int, int]:
    """Error code and throttle time."""
    reply = c.exchange("CreateTopics", version, topics=creatable((name, partitions)), timeout_ms=1_000)
    return reply.topics[0].error_code, reply.throttle_time_ms


def tokens(core: GatewayCore) -> float | None:
    (counter,) = [each for _, each in core.mutations.groups.own()]
    return counter.meter.tokens(now_ms=core.clock.now_ms)


def test_a_member_is_refused_for_what_another_has_created_and_the_group_is_named() -> None:
    usage = UsageTable()
    core = core_of(usage=usage)
    cluster = ScriptedCluster()
    alice, bob, carol = (
        Conversation(core=core, principal=user, cluster=cluster) for user in ("alice", "bob", "carol")
    )
    assert create(alice, "a", 15) == (ErrorCode.NONE, 0)
    assert create(bob, "b", 1) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 5_000)
    assert create(carol, "c", 20) == (ErrorCode.NONE, 0)
    assert [(each[1], each[2], each[3]) for each in core.observer.throttles] == [
        (Rule.GROUP, 5_000, ThrottledBy.CONTROLLER_MUTATION)
    ]
    (entry,) = core.journal.of("bob", "tests")
    assert (entry.entity, entry.limit, entry.reading.tokens, entry.rule) == (TEAM, 1, -5, Rule.GROUP)
    rows = [
        usage.values(row, begin_ms=core.started_ms, now_ms=core.clock.now_ms)
        for row in usage.take_listed(now_ms=core.clock.now_ms)
    ]
    (of_bob,) = [row for row in rows if row[Row.API] == UsageApi.MUTATION and row[Row.USER] == "bob"]
    beside = of_bob[Row.BESIDE]
    assert isinstance(beside, list)
    assert [(each[Beside.LIMIT], each[Beside.NAME], each[Beside.THROTTLE_MS]) for each in beside] == [
        (Limit.GROUP, "team", 5_000)
    ]
    bob.muted_for(5_000)
    assert create(bob, "b", 1) == (ErrorCode.NONE, 0)


def test_a_client_that_can_not_be_refused_waits_for_its_group() -> None:
    core = core_of(Group("team", addresses=("192.0.2.0/24",)))
    c = Conversation(core=core, principal="carol")
    assert create(c, "a", 15, version=5) == (ErrorCode.NONE, 5_000)
    c.muted_for(5_000)


def test_permits_of_topics_that_the_broker_refuses_come_back_to_the_group() -> None:
    core = core_of()
    c = Conversation(core=core, principal="alice", cluster=ScriptedCluster())
    c.cluster.errors["a"] = POLICY_VIOLATION
    assert create(c, "a", 4)[0] == POLICY_VIOLATION
    assert tokens(core) == 10
    assert create(c, "b", 4)[0] == ErrorCode.NONE
    assert tokens(core) == 6


def test_without_a_quota_of_the_group_requests_are_relayed() -> None:
    core = core_of()
    core.limits.remove(TEAM, KEY)
    c = Conversation(core=core, principal="alice")
    assert not core.context.mutations_enabled
    assert create(c, "a", 100) == (ErrorCode.NONE, 0)
