"""Groups on the data path: members' bytes and time count twice, and the longer wait decides, under its own name."""

from __future__ import annotations

import random
from typing import Any, Final

import pytest

from quotas.combine import ThrottledBy
from quotas.entities import QuotaEntity, QuotaKey
from quotas.groups import Group, Groups
from quotas.rate_quotas import RateTracker
from quotas.resolution import Rule, entity_of
from testkit import wire
from testkit.conversation import Conversation, frames_of
from testkit.core import START_MS, GatewayCore
from testkit.frames import batch, heartbeat, heartbeat_reply, produce, produce_reply

PRODUCE: Final = QuotaKey.PRODUCER_BYTE_RATE
FETCH: Final = QuotaKey.CONSUMER_BYTE_RATE
RECORDS: Final = QuotaKey.PRODUCER_RECORD_RATE
TEAM: Final = QuotaEntity(group="team")
ALICE: Final = QuotaEntity(user="alice")
WINDOW_S: Final = 11


def core_of(key: QuotaKey, limit: float, *groups: Group, **more: Any) -> GatewayCore:
    """A gateway with groups, `team` among them, which has this quota."""
    core = GatewayCore(**more)
    core.limits.set_groups(Groups(groups or [Group("team", users=("alice", "bob"))]))
    core.limits.set(TEAM, key, limit)
    return core


def counters(core: GatewayCore, key: QuotaKey) -> dict[str, RateTracker]:
    """By the text of its entity, the counter of each group."""
    quotas = core.client_quotas
    of_key = {PRODUCE: quotas.produce_groups, FETCH: quotas.fetch_groups}
    return {str(entity_of(each.match)): each for each in of_key.get(key, quotas.request_groups)._counters.values()}


def told_ms(c: Conversation, name: str = "Produce", version: int = 9) -> int:
    return int(wire.decode_response(name, version, c.take_client()).throttle_time_ms)


def fetch() -> bytes:
    return wire.request("Fetch", 12, correlation_id=1, max_wait_ms=500, min_bytes=1, max_bytes=50_000_000)


def fetched(size: int) -> bytes:
    partition = {"partition_index": 0, "high_watermark": 1, "aborted_transactions": None, "records": bytes(size)}
    topics = [{"topic": "t", "partitions": [partition]}]
    return wire.response("Fetch", 12, correlation_id=1, responses=topics)


@pytest.mark.parametrize("piece_bytes", [None, 100])
def test_what_one_member_has_produced_the_other_waits_for(piece_bytes: int | None) -> None:
    core = core_of(PRODUCE, 1_000)
    alice, bob, carol = (Conversation(core=core, principal=user) for user in ("alice", "bob", "carol"))
    alice.client_sends(produce(1, size=30_000), piece_bytes=piece_bytes).upstream_answers(produce_reply(1))
    assert told_ms(alice) > 0
    frame = produce(1, size=10)
    bob.client_sends(frame).upstream_sees()
    carol.client_sends(frame).upstream_sees(frame)
    (_, rule, wait_ms, by) = core.observer.throttles[-1]
    assert (rule, by) == (Rule.GROUP, ThrottledBy.PRODUCE)
    bob.at(wait_ms - 1).upstream_sees()
    bob.at(wait_ms).upstream_sees(frame)


def test_what_one_member_has_fetched_the_other_waits_for() -> None:
    core = core_of(FETCH, 1_000)
    alice, bob, carol = (Conversation(core=core, principal=user) for user in ("alice", "bob", "carol"))
    alice.client_sends(fetch()).upstream_answers(fetched(30_000))
    assert told_ms(alice, "Fetch", 12) > 0
    bob.client_sends(fetch()).upstream_sees()
    assert told_ms(bob, "Fetch", 12) > 0  # longer than a window: answered empty
    carol.client_sends(fetch()).upstream_sees(fetch())
    assert {rule for _, rule, _, _ in core.observer.throttles} == {Rule.GROUP}
    (entry,) = core.journal.of("bob", "tests")
    assert entry.entity == TEAM


def test_k03_fetches_of_members_share_the_groups_window() -> None:
    """Each is lowered to what the window passes, less what is under way for another member."""
    core = core_of(FETCH, 10_000)
    alice, bob = (Conversation(core=core, principal=user) for user in ("alice", "bob"))
    wanted = [
        wire.decode_request("Fetch", 12, each.client_sends(fetch()).take_upstream()).max_bytes
        for each in (alice, bob)
    ]
    assert wanted == [100_000, 50_000]
    alice.upstream_answers(fetched(100))
    bob.upstream_answers(fetched(100))
    assert counters(core, FETCH)["group=team"].fetches == 0


def test_k03_an_answer_is_emptied_when_other_members_have_used_up_the_group() -> None:
    core = core_of(FETCH, 1_000)
    alice, bob = (Conversation(core=core, principal=user) for user in ("alice", "bob"))
    for each in (alice, bob):
        each.client_sends(fetch())
    alice.upstream_answers(fetched(40_000))
    bob.upstream_answers(fetched(5_000))
    assert told_ms(bob, "Fetch", 12) > 0
    held, _ = counters(core, FETCH)["group=team"].level(now_ms=core.clock.now_ms)
    assert 40_000 < held < 41_000


def test_a_group_without_a_quota_of_any_client_counts_and_others_are_relayed() -> None:
    core = core_of(QuotaKey.REQUEST_PERCENTAGE, 1)
    c = Conversation(core=core, principal="carol").client_sends(heartbeat(1), produce(2, size=1_000))
    c.upstream_sees(heartbeat(1), produce(2, size=1_000))
    assert core.client_quotas.counts_produce is False
    assert core.client_quotas.times_requests is True


def test_request_time_of_members_counts_for_the_group() -> None:
    core = core_of(QuotaKey.REQUEST_PERCENTAGE, 10, Group("team", addresses=("192.0.2.0/24",)))
    quotas = core.client_quotas
    for client_id in ("a", "b"):
        wait_ms = quotas.record_more_time(
            "u", client_id, None, busy_ns=2_000_000_000, kind="u", address="192.0.2.7", now_ms=START_MS
        )
    assert wait_ms > 0
    other = quotas.record_more_time("u", "a", None, busy_ns=1_000, kind="u", address="198.51.100.1", now_ms=START_MS)
    assert other == 0


def test_a_heartbeat_waits_for_the_time_of_its_group_and_the_wait_is_the_groups() -> None:
    core = core_of(QuotaKey.REQUEST_PERCENTAGE, 0.001)
    c = Conversation(core=core, principal="alice")
    assert c.session.meter is not None
    c.client_sends(heartbeat(1))
    c.session.meter.busy_ns += 5_000_000_000
    c.upstream_answers(heartbeat_reply(1))
    assert core.observer.throttles[-1][1] is Rule.GROUP
    assert core.observer.throttles[-1][3] is ThrottledBy.REQUEST


@pytest.mark.parametrize(("own", "group", "rule"), [(100, 1_000, Rule.USER), (1_000, 100, Rule.GROUP)])
def test_the_longer_wait_decides_and_is_recorded_once_under_its_name(own: float, group: float, rule: Rule) -> None:
    core = core_of(PRODUCE, group, user="alice", producer_byte_rate=own)
    c = Conversation(core=core)
    first = produce(1, size=20_000)
    c.client_sends(first).upstream_sees(first).upstream_answers(produce_reply(1))
    first_ms = told_ms(c)
    assert [(each[1], each[2]) for each in core.observer.throttles] == [(rule, first_ms)]
    c.client_sends(produce(2, size=10)).upstream_sees()
    assert {entry.rule for entry in core.journal.of("alice", "tests")} == {rule}


def test_the_wait_ends_when_the_longer_of_both_does() -> None:
    """It waits once: the shorter one passes meanwhile."""
    core = core_of(PRODUCE, 1_000, user="alice", producer_byte_rate=1_500)
    c = Conversation(core=core)
    first = produce(1, size=30_000)
    c.client_sends(first).upstream_sees(first).upstream_answers(produce_reply(1))
    group = counters(core, PRODUCE)["group=team"]
    own = core.client_quotas.produce.tracker("alice", "c", now_ms=core.clock.now_ms)
    assert own is not None
    longest_ms = told_ms(c)
    frame = produce(2, size=10)
    c.client_sends(frame).upstream_sees()
    c.at(longest_ms - 1).upstream_sees()
    c.at(longest_ms).upstream_sees(frame)
    assert group.throttle_time_ms(now_ms=core.clock.now_ms) <= 1
    assert own.throttle_time_ms(now_ms=core.clock.now_ms) == 0


def test_a_client_that_changes_its_client_id_on_one_connection_stays_in_its_users_group() -> None:
    core = core_of(PRODUCE, 1_000, Group("team", users=("alice",)), Group("app", client_ids=("app-*",)))
    core.limits.set(QuotaEntity(group="app"), PRODUCE, 1e9)
    c = Conversation(core=core, principal="alice")
    sent = 0
    for at, client_id in enumerate(["x", "app-1", "y", "app-2"]):
        frame = produce(at, size=1_000, client_id=client_id)
        c.client_sends(frame).upstream_sees(frame)
        sent += len(frame) - 4
    total, _ = counters(core, PRODUCE)["group=team"].level(now_ms=core.clock.now_ms)
    assert total == sent
    of_app, _ = counters(core, PRODUCE)["group=app"].level(now_ms=core.clock.now_ms)
    assert of_app == sum(len(produce(1, size=1_000, client_id=name)) - 4 for name in ("app-1", "app-2"))


def test_a_mute_that_a_member_leaves_behind_holds_its_next_connection() -> None:
    core = core_of(PRODUCE, 1_000)
    first = Conversation(core=core, principal="alice")
    first.client_sends(produce(1, size=15_000)).upstream_answers(produce_reply(1))
    assert told_ms(first) > 0
    first.session.ended(now_ms=core.clock.now_ms)
    Conversation(core=core, principal="alice").client_sends(produce(1, size=10)).upstream_sees()
    assert core.observer.throttles[-1][1] is Rule.GROUP


@pytest.mark.parametrize("remove_group", [True, False])
def test_a_group_that_is_removed_while_members_wait_leaves_nothing(remove_group: bool) -> None:
    core = core_of(PRODUCE, 1_000)
    alice, bob = (Conversation(core=core, principal=user) for user in ("alice", "bob"))
    alice.client_sends(produce(1, size=25_000))
    frame = produce(2, size=10)
    bob.client_sends(frame).upstream_sees()
    if remove_group:
        core.limits.set_groups(Groups())
    else:
        core.limits.remove(TEAM, PRODUCE)
    bob.at(bob.session.throttling.until_ms - START_MS).upstream_sees(frame)
    core.client_quotas.produce_groups.expire(now_ms=core.clock.now_ms)
    assert not core.client_quotas.produce_groups.own()
    another = Conversation(core=core, principal="bob").client_sends(frame)
    another.upstream_sees(frame)


def test_a_group_that_is_removed_while_a_fetch_is_under_way_leaves_nothing() -> None:
    core = core_of(FETCH, 1_000)
    c = Conversation(core=core, principal="alice").client_sends(fetch())
    core.limits.remove(TEAM, FETCH)
    c.upstream_answers(fetched(50_000))
    assert told_ms(c, "Fetch", 12) == 0
    core.client_quotas.fetch_groups.expire(now_ms=core.clock.now_ms)
    assert not core.client_quotas.fetch_groups.own()


@pytest.mark.parametrize(
    ("limits", "waits"),
    [
        ({TEAM: {PRODUCE: 100}}, (Rule.GROUP, ThrottledBy.PRODUCE)),
        ({ALICE: {RECORDS: 10}}, (Rule.USER, ThrottledBy.PRODUCE_RECORDS)),
        ({QuotaEntity(topic="t"): {PRODUCE: 100}}, (Rule.TOPIC, ThrottledBy.PRODUCE)),
        ({TEAM: {PRODUCE: 100}, ALICE: {RECORDS: 1e6}}, (Rule.GROUP, ThrottledBy.PRODUCE)),
        ({TEAM: {PRODUCE: 1e6}, ALICE: {RECORDS: 10}}, (Rule.USER, ThrottledBy.PRODUCE_RECORDS)),
        ({TEAM: {PRODUCE: 1e6}, ALICE: {RECORDS: 1e6, PRODUCE: 100}}, (Rule.USER, ThrottledBy.PRODUCE)),
        (
            {TEAM: {PRODUCE: 1e6}, ALICE: {PRODUCE: 100, QuotaKey.PRODUCER_BYTE_BURST_SECONDS: 20}},
            (Rule.USER, ThrottledBy.PRODUCE),
        ),
        (
            {TEAM: {PRODUCE: 100}, ALICE: {PRODUCE: 100, QuotaKey.PRODUCER_BYTE_BURST_SECONDS: 600}},
            (Rule.GROUP, ThrottledBy.PRODUCE),
        ),
        ({ALICE: {QuotaKey.METADATA_REQUEST_RATE: 1}, TEAM: {FETCH: 1}}, None),
    ],
)
def test_bytes_are_counted_for_whatever_has_a_quota_and_the_longest_wait_is_named(
    limits: dict[QuotaEntity, dict[QuotaKey, float]], waits: tuple[Rule, ThrottledBy] | None
) -> None:
    core = GatewayCore()
    core.limits.set_groups(Groups([Group("team", users=("alice",))]))
    for entity, values in limits.items():
        for key, value in values.items():
            core.limits.set(entity, key, value)
    c = Conversation(core=core, principal="alice")
    topics = [{"name": "t", "partition_data": [{"index": 0, "records": batch(500, 5_000)}]}]
    frame = wire.request("Produce", 9, correlation_id=1, acks=1, timeout_ms=1, topic_data=topics)
    c.client_sends(frame).upstream_sees(frame).upstream_answers(produce_reply(1))
    assert core.client_quotas.counts_produce is (waits is not None)
    assert (told_ms(c) > 0) is (waits is not None)
    assert [(rule, by) for _, rule, _, by in core.observer.throttles] == [*filter(None, [waits])]


def test_a_capacity_is_divided_among_clients_and_the_limit_of_a_group_stays() -> None:
    core = core_of(PRODUCE, 50_000)
    quotas = core.client_quotas
    quotas.set_capacity({PRODUCE: 10_000}, observe=False, now_ms=core.clock.now_ms)
    frames = [produce(1, size=20_000, client_id=user) for user in ("alice", "bob")]
    Conversation(core=core, principal="alice").client_sends(frames[0]).upstream_sees(frames[0])
    # No division knows them, and the first one has used what they share.
    Conversation(core=core, principal="bob").client_sends(frames[1]).upstream_sees()
    core.clock.advance(1_000)
    list(quotas.divide(now_ms=core.clock.now_ms))
    own = [quotas.produce.tracker(user, user, now_ms=core.clock.now_ms) for user in ("alice", "bob")]
    assert [each is not None and each.match.limit for each in own] == [5_000, 5_000]
    (group,) = counters(core, PRODUCE).values()
    assert (group.match.limit, group.match.lent, group.match.burst_s) == (50_000, None, None)
    # Both want more than their share of the capacity.
    assert quotas.produce.lender is not None
    assert quotas.produce.lender.last is not None
    assert quotas.produce.lender.last.waiting == 2


def test_a_capacity_that_goes_leaves_the_counter_of_the_group_alone() -> None:
    core = core_of(PRODUCE, 1_000)
    core.client_quotas.set_capacity({PRODUCE: 1_000_000}, observe=False, now_ms=core.clock.now_ms)
    c = Conversation(core=core, principal="alice").client_sends(produce(1, size=30_000))
    core.client_quotas.set_capacity({}, observe=False, now_ms=core.clock.now_ms)
    assert core.limits.enabled(PRODUCE) is False
    c.upstream_answers(produce_reply(1))
    assert told_ms(c) > 0
    Conversation(core=core, principal="bob").client_sends(produce(1, size=10)).upstream_sees()


def test_observe_mode_counts_and_makes_no_member_wait() -> None:
    core = core_of(PRODUCE, 10)
    core.limits.set_observed([TEAM])
    c = Conversation(core=core, principal="alice")
    for at in range(3):
        c.client_sends(produce(at, size=10_000)).upstream_sees(produce(at, size=10_000))
    assert counters(core, PRODUCE)["group=team"].throttles.would_throttle_total > 0


# -- attacks ---------------------------------------------------------------------------------------------------

LIMIT: Final = 10_000.0
LARGEST: Final = 60_000


class Member:
    """A connection that sends as soon as it may, each time by another name, and connects again when it likes."""

    def __init__(self, core: GatewayCore, user: str) -> None:
        self.core = core
        self.user = user
        self.c = Conversation(core=core, principal=user)
        self.sent = 0
        self.passed = 0
        self.waiting = False

    def send(self, size: int, client_id: str) -> None:
        if not self.waiting:
            self.sent += 1
            self.waiting = True
            self.c.client_sends(produce(self.sent, size=size, client_id=client_id))

    def tick(self) -> None:
        self.c.at(self.core.clock.now_ms - START_MS)
        if self.c.closed_by is not None:  # it was silent for long
            self.reconnect()
        for frame in frames_of(self.c.take_upstream()):
            self.passed += len(frame) - 4
            self.waiting = False
            self.c.upstream_answers(produce_reply(self.sent))
            self.c.take_client()

    def reconnect(self) -> None:
        self.c.session.ended(now_ms=self.core.clock.now_ms)
        self.c = Conversation(core=self.core, principal=self.user)
        self.waiting = False


@pytest.mark.parametrize("seed", range(20))
def test_members_that_split_change_names_and_overlap_pass_no_more_than_the_bound(seed: int) -> None:
    """limit x (t + 2 windows), and the one request that went beyond; what has passed is what was charged."""
    dice = random.Random(seed)
    core = core_of(
        PRODUCE,
        LIMIT,
        Group("team", users=("alice", "bob"), client_ids=("team-*",)),
        Group("over", users=("bob",), client_ids=("team-x", "z")),
        user="nobody",
    )
    core.limits.set(QuotaEntity(group="over"), PRODUCE, 2 * LIMIT)
    members = [Member(core, user) for user in ("alice", "bob", "carol") for _ in range(10)]
    for _ in range(400):
        member = dice.choice(members)
        if dice.random() < 0.3:
            member.reconnect()
        # Carol is in the team by its client id alone.
        names = ["team-x", "team-y"] if member.user == "carol" else ["a", "b", "team-x", "team-y", "z"]
        member.send(dice.randint(1, LARGEST), dice.choice(names))
        core.clock.advance(dice.choice([0, 0, 0, 10, 300]))
        for each in members:
            each.tick()
    passed = sum(each.passed for each in members)
    assert passed == counters(core, PRODUCE)["group=team"].recorded_here
    elapsed_s = (core.clock.now_ms - START_MS) / 1_000
    assert LIMIT * elapsed_s < passed <= LIMIT * (elapsed_s + 2 * WINDOW_S) + LARGEST + 200
