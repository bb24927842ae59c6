"""Connections of users: the count, the rate, and the law that each connection counts once until its end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.connections import Admission, AdmissionCause, AdmissionDecision
from quotas.entities import API_BURST_S, DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Enforcement, Limits
from quotas.rate_quotas import RateSettings
from quotas.resolution import Match, Rule, resolve
from quotas.user_connections import LONGEST_WAIT_MS, REFUSED_HOLD_MS, UserConnections

COUNT, RATE = QuotaKey.CONNECTION_COUNT, QuotaKey.CONNECTION_CREATION_RATE
ALICE, BOB = QuotaEntity("alice"), QuotaEntity("bob")
ADMIT, HOLD, REFUSE = AdmissionDecision.ADMIT, AdmissionDecision.HOLD, AdmissionDecision.REFUSE
NOW_MS = 1_000_000


@dataclass
class Gateway:
    """Some users with limits.

    Attributes:
        limits, users: under test.
        now_ms: the present.
    """

    limits: Limits = field(default_factory=Limits)
    most_held: int = 1_000
    now_ms: int = NOW_MS

    def __post_init__(self) -> None:
        self.users = UserConnections(self.limits, RateSettings(), lambda: self.most_held)

    def enter(self, user: str, connection: object) -> Admission:
        return self.users.enter(user, connection, now_ms=self.now_ms)


def limited(entity: QuotaEntity = ALICE, most_held: int = 1_000, **quotas: float) -> Gateway:
    gateway = Gateway(most_held=most_held)
    for key, value in quotas.items():
        gateway.limits.set(entity, QuotaKey(key), value)
    return gateway


def test_without_a_quota_connections_are_counted_and_none_is_refused() -> None:
    gateway = Gateway()
    assert {gateway.enter("alice", each).decision for each in range(500)} == {ADMIT}
    assert gateway.users.by_user == {"alice": 500}


def test_a_connection_over_the_count_is_refused_until_one_ends() -> None:
    gateway = limited(connection_count=2)
    assert [gateway.enter("alice", each).decision for each in "abc"] == [ADMIT, ADMIT, REFUSE]
    assert gateway.enter("bob", "d").decision is ADMIT
    gateway.users.leave("c")  # it had no place
    assert gateway.enter("alice", "e").decision is REFUSE
    gateway.users.leave("a")
    assert gateway.enter("alice", "f").decision is ADMIT
    assert gateway.users.by_user == {"alice": 2, "bob": 1}


def test_a_refused_connection_is_kept_unread_for_a_second_and_uses_up_no_rate() -> None:
    gateway = limited(connection_count=1, connection_creation_rate=1)
    gateway.enter("alice", "a")
    for each in range(10):
        refused = gateway.enter("alice", each)
        assert (refused.decision, refused.cause, refused.wait_ms) == (
            REFUSE,
            AdmissionCause.USER_COUNT,
            REFUSED_HOLD_MS,
        )
    gateway.users.leave("a")
    assert gateway.enter("alice", "b").decision is ADMIT


def test_the_default_gives_each_user_a_count_of_its_own() -> None:
    gateway = limited(QuotaEntity(DEFAULT), connection_count=1)
    assert [gateway.enter(user, user).decision for user in ("alice", "bob", "ANONYMOUS")] == [ADMIT] * 3
    assert gateway.enter("bob", "more").decision is REFUSE


def test_the_busiest_users_are_listed_with_their_limits_while_any_user_has_one() -> None:
    gateway = Gateway()
    for user, count in (("alice", 3), ("bob", 5), ("carol", 1)):
        for each in range(count):
            gateway.enter(user, (user, each))
    assert gateway.users.busiest(10) == []
    gateway.limits.set(ALICE, COUNT, 3)
    assert gateway.enter("alice", "more").decision is REFUSE  # it is kept unread for a second
    assert gateway.users.busiest(2) == [("bob", 5, None, 0), ("alice", 3, 3, 1)]
    gateway.users.leave("more")
    gateway.users.leave(("alice", 0))
    assert gateway.users.busiest(10) == [("bob", 5, None, 0), ("alice", 2, 3, 0), ("carol", 1, None, 0)]


def test_users_of_a_prefix_share_one_count() -> None:
    gateway = Gateway(Limits(prefixes=True))
    gateway.limits.set(QuotaEntity("team-*"), COUNT, 2)
    gateway.limits.set(QuotaEntity("team-own"), COUNT, 5)
    assert [gateway.enter(user, user).decision for user in ("team-a", "team-own", "team-b", "team-c")] == [
        ADMIT,
        ADMIT,
        ADMIT,
        REFUSE,
    ]
    gateway.users.leave("team-a")
    assert gateway.enter("team-d", "d").decision is ADMIT
    assert gateway.enter("team-e", "e").decision is REFUSE


def test_connections_from_before_a_prefix_had_a_quota_count_too() -> None:
    gateway = Gateway(Limits(prefixes=True))
    assert {gateway.enter(user, user).decision for user in ("team-a", "team-b", "other")} == {ADMIT}
    gateway.limits.set(QuotaEntity("team-*"), COUNT, 3)
    assert [gateway.enter(user, user).decision for user in ("team-c", "team-d")] == [ADMIT, REFUSE]


def test_a_second_login_of_the_same_user_counts_once_and_uses_no_rate() -> None:
    gateway = limited(connection_count=1, connection_creation_rate=1)
    assert [gateway.enter("alice", "a").decision for _ in range(50)] == [ADMIT] * 50
    assert gateway.users.by_user == {"alice": 1}


def test_a_login_as_another_user_moves_the_connection() -> None:
    gateway = limited(connection_count=1)
    gateway.enter("bob", "a")
    gateway.enter("alice", "a")
    assert gateway.users.by_user == {"alice": 1}
    assert gateway.enter("alice", "b").decision is REFUSE


def test_connections_over_the_rate_wait_in_the_order_in_which_they_came() -> None:
    gateway = limited(connection_creation_rate=10)
    burst = int(10 * API_BURST_S) + 1
    assert {gateway.enter("alice", each).decision for each in range(burst)} == {ADMIT}
    waiting = [gateway.enter("alice", f"w{each}") for each in range(5)]
    assert [each.decision for each in waiting] == [HOLD] * 5
    assert [each.wait_ms for each in waiting] == [100, 200, 300, 400, 500]
    for turn in range(5):
        gateway.now_ms = NOW_MS + 100 * (turn + 1)
        assert gateway.enter("alice", f"w{turn}").decision is ADMIT
    assert gateway.users.held == 0


def test_a_newcomer_does_not_pass_those_that_wait() -> None:
    gateway = limited(connection_creation_rate=10)
    for each in range(21):
        gateway.enter("alice", each)
    gateway.enter("alice", "first")
    gateway.now_ms += 100
    assert gateway.enter("alice", "newcomer").decision is HOLD
    assert gateway.enter("alice", "first").decision is ADMIT


def test_a_connection_that_leaves_while_it_waits_uses_up_no_rate() -> None:
    gateway = limited(connection_creation_rate=10)
    for each in range(21):
        gateway.enter("alice", each)
    for each in range(200):
        gateway.enter("alice", f"dropped{each}")
        gateway.users.leave(f"dropped{each}")
    assert gateway.enter("alice", "honest").wait_ms == 100


def test_a_wait_beyond_what_clients_bear_is_a_refusal() -> None:
    gateway = limited(connection_creation_rate=1)
    decided = [gateway.enter("alice", each) for each in range(60)]
    most_s = LONGEST_WAIT_MS // 1000
    assert [each.decision for each in decided] == [ADMIT] * 3 + [HOLD] * most_s + [REFUSE] * (57 - most_s)
    assert decided[-1].cause is AdmissionCause.USER_RATE
    assert gateway.users.by_user == {"alice": 3 + most_s}
    for each in range(60):
        gateway.users.leave(each)
    assert not gateway.users.by_user


def test_one_user_can_hold_a_quarter_of_what_all_may_and_the_rest_is_closed_at_once() -> None:
    gateway = limited(most_held=8, connection_creation_rate=1)
    gateway.limits.set(BOB, RATE, 1)
    for each in range(3):
        gateway.enter("alice", each)
        gateway.enter("bob", -each - 1)
    decided = [gateway.enter("alice", f"w{each}") for each in range(4)]
    assert [(each.decision, each.wait_ms) for each in decided] == [
        (HOLD, 1_000),
        (HOLD, 2_000),
        (REFUSE, 0),
        (REFUSE, 0),
    ]
    assert gateway.enter("bob", "w").decision is HOLD


def test_no_more_connections_wait_than_may_of_all_users() -> None:
    gateway = limited(QuotaEntity(DEFAULT), most_held=4, connection_creation_rate=1)
    for user in "abcdef":
        for each in range(3):
            assert gateway.enter(user, (user, each)).decision is ADMIT
    assert [gateway.enter(user, (user, "w")).decision for user in "abcdef"] == [HOLD] * 4 + [REFUSE] * 2
    gateway.users.leave(("a", "w"))
    assert gateway.enter("f", ("f", "again")).decision is HOLD


def test_an_observed_quota_counts_and_holds_no_connection() -> None:
    gateway = limited(connection_count=2, connection_creation_rate=1)
    gateway.limits.set_observed([ALICE])
    assert {gateway.enter("alice", each).decision for each in range(50)} == {ADMIT}
    assert gateway.users.by_user == {"alice": 50}
    assert gateway.users.would_refuse == 48
    (row,) = gateway.users.rates.snapshot(now_ms=NOW_MS)
    assert row.would_throttle_total == 48


def test_a_quota_that_is_set_later_finds_the_connections_that_are_there() -> None:
    gateway = Gateway()
    for each in range(3):
        gateway.enter("alice", each)
    gateway.limits.set(ALICE, COUNT, 3)
    assert gateway.enter("alice", "d").decision is REFUSE


def test_waiting_connections_pass_when_the_quota_is_removed_or_switched_off() -> None:
    for change in (lambda limits: limits.remove(ALICE, RATE), lambda limits: limits.set_mode(Enforcement.OFF)):
        gateway = limited(connection_creation_rate=1)
        for each in range(5):
            gateway.enter("alice", each)
        assert gateway.users.held == 2
        change(gateway.limits)
        assert [gateway.enter("alice", each).decision for each in (3, 4)] == [ADMIT, ADMIT]
        assert gateway.users.held == 0


def test_an_address_quota_alone_limits_no_user() -> None:
    gateway = limited(QuotaEntity(ip=DEFAULT), connection_creation_rate=1)
    assert {gateway.enter("alice", each).decision for each in range(50)} == {ADMIT}
    assert gateway.users.rates.counters == 0


def test_a_share_of_a_fleet_divides_the_rate_and_not_the_count() -> None:
    gateway = limited(connection_count=4, connection_creation_rate=40)
    gateway.limits.set_share(0.25)
    assert [gateway.enter("alice", each).decision for each in range(5)] == [ADMIT] * 4 + [REFUSE]
    tracker = gateway.users.rates.tracker("alice", "", now_ms=NOW_MS)
    assert tracker is not None
    assert tracker.match.limit == 10


def test_connections_of_the_process_before_count_until_they_end() -> None:
    gateway = limited(connection_count=3)
    gateway.users.carry({"alice": 2})
    assert [gateway.enter("alice", each).decision for each in "ab"] == [ADMIT, REFUSE]
    assert gateway.users.counts() == {"alice": 3}
    gateway.users.carry({"alice": 1})
    assert gateway.enter("alice", "c").decision is ADMIT
    gateway.users.carry({})
    assert gateway.users.counts() == {"alice": 2}


def test_what_holds_a_connection_is_reported_once_with_the_quota() -> None:
    found: list[tuple[str, AdmissionDecision, Rule, float | None]] = []

    def note(user: str, admission: Admission, match: Match, tokens: float | None) -> None:
        found.append((user, admission.decision, match.rule, tokens))

    gateway = limited(QuotaEntity(DEFAULT), connection_creation_rate=1)
    gateway.users.on_held = note
    for each in range(4):
        gateway.enter("alice", each)
    gateway.now_ms += 500
    assert gateway.enter("alice", 3).decision is HOLD
    assert found == [("alice", HOLD, Rule.DEFAULT_USER, pytest.approx(-1.0))]


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.sampled_from(["alice", "bob", "carol"]), st.integers(0, 12)),
        st.tuples(st.just("leave"), st.just(""), st.integers(0, 12)),
        st.tuples(st.just("wait"), st.just(""), st.integers(1, 3_000)),
        st.tuples(st.just("count"), st.sampled_from(["alice", "bob"]), st.integers(0, 4)),
        st.tuples(st.just("rate"), st.sampled_from(["alice", "bob"]), st.integers(0, 3)),
        st.tuples(st.just("kill"), st.just(""), st.integers(0, 1)),
    ),
    max_size=80,
)


@given(_STEPS, st.integers(1, 12))
def test_a_connection_counts_once_from_its_login_to_its_end(
    steps: list[tuple[str, str, int]], most_held: int
) -> None:
    """Opened - ended = counted, by user, whatever happens; and nothing outlives the last connection."""
    gateway = Gateway(most_held=most_held)
    users, limits = gateway.users, gateway.limits
    counted: dict[int, str] = {}
    held: dict[int, str] = {}
    refused: dict[int, str] = {}
    for step, user, number in steps:
        if step == "enter":
            if refused.get(number) == user:
                continue  # its session ends
            held.pop(number, None)
            refused.pop(number, None)
            was = counted.pop(number, None)
            admission = gateway.enter(user, number)
            if admission.decision is REFUSE:
                refused[number] = user
                if admission.wait_ms:
                    held[number] = user
            else:
                counted[number] = user
                most = limits.get(QuotaEntity(user), COUNT)
                new = was != user
                assert not new or most is None or list(counted.values()).count(user) <= most
                if admission.decision is HOLD:
                    held[number] = user
        elif step == "leave":
            users.leave(number)
            for each in (counted, held, refused):
                each.pop(number, None)
        elif step == "wait":
            gateway.now_ms += number
        elif step == "kill":
            users.leave_all(lambda name, half=number: isinstance(name, int) and name % 2 == half)
            for each in (counted, held, refused):
                for name in [name for name in each if name % 2 == number]:
                    del each[name]
        else:
            key = COUNT if step == "count" else RATE
            if number:
                limits.set(QuotaEntity(user), key, number)
            else:
                limits.remove(QuotaEntity(user), key)
        assert users.by_user == Counter(counted.values())
        assert users.held == len(held) <= most_held
    for number in range(13):
        users.leave(number)
        users.leave(number)
    assert not users.by_user
    assert users.held == 0
    assert all(tracker.queue is None or not tracker.queue._places for _, tracker in users.rates.own())


def test_a_connection_whose_limit_is_removed_while_it_waits_waits_no_more() -> None:
    gateway = limited(connection_creation_rate=1)
    gateway.limits.set(BOB, RATE, 1)  # rates are limited as before
    answers = [gateway.enter("alice", each).decision for each in range(4)]
    assert answers == [ADMIT, ADMIT, ADMIT, HOLD]
    assert gateway.users.held == 1
    gateway.limits.remove(ALICE, RATE)
    assert gateway.enter("alice", 3).decision is ADMIT
    assert gateway.users.held == 0


def test_each_new_user_is_looked_up_a_few_times_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(Limits(prefixes=True))
    gateway.limits.set(QuotaEntity("team-*"), COUNT, 5_000)
    looked_up: list[str] = []

    def counted(limits: Limits, key: QuotaKey, user: str, client_id: str) -> Match:
        looked_up.append(user)
        return resolve(limits, key, user, client_id)

    monkeypatch.setattr("quotas.user_connections.resolve", counted)
    for number in range(300):
        assert gateway.enter(f"user-{number}", number).decision is ADMIT
    assert len(looked_up) <= 3 * 300
    for number in range(300):
        gateway.users.leave(number)
    assert not gateway.users._counted_by
    assert not gateway.users._of_counter


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 40)), max_size=40), st.integers(1, 20))
def test_in_any_time_a_user_gets_its_rate_and_one_burst(arrivals: list[tuple[int, int]], rate: int) -> None:
    gateway = limited(connection_creation_rate=rate)
    admitted: list[int] = []
    due: dict[int, int] = {}
    number = 0

    def ask(name: int) -> None:
        admission = gateway.enter("alice", name)
        due.pop(name, None)
        if admission.decision is HOLD:
            due[name] = gateway.now_ms + admission.wait_ms
        elif admission.decision is ADMIT:
            admitted.append(gateway.now_ms)

    for pause_ms, count in [*arrivals, (LONGEST_WAIT_MS, 0)]:
        until_ms = gateway.now_ms + pause_ms
        while due and min(due.values()) <= until_ms:
            name = min(due, key=lambda each: (due[each], each))
            gateway.now_ms = max(gateway.now_ms, due[name])
            ask(name)
        gateway.now_ms = until_ms
        for _ in range(count):
            ask(number)
            number += 1
    for at, begin_ms in enumerate(admitted):
        for end, end_ms in enumerate(admitted[at:], start=1):
            # A millisecond: times are whole.
            assert end <= rate * (end_ms - begin_ms + 1) / 1000 + API_BURST_S * rate + 1
