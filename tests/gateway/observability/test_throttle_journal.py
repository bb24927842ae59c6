"""The journal of throttles: every wait that was reported is in it, and floods cost only their own kind's entries."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import pytest

from gateway.observability.quota_metrics import label_value
from gateway.observability.throttle_journal import (
    MAX_ENTRIES,
    MINUTES_KEPT,
    SECONDS_KEPT,
    JournalClient,
    Reading,
    ThrottleJournal,
    Throttles,
)
from protocol.api_keys import ApiKey
from quotas.combine import ThrottledBy
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.lending import Claim, Cut, CutBy
from quotas.resolution import Match, Rule, TrackerKey, entity_of
from testkit.conversation import Conversation
from testkit.core import GatewayCore
from testkit.frames import create_topics, fetch, heartbeat, heartbeat_reply, produce, produce_reply
from testkit.wire import response


class Journal:
    """A journal with a clock, filled by hand."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.journal = ThrottleJournal(lambda: self.now_ms, label_value)

    def told(self, user: str, client_id: str, ms: int = 100, *, kind: str | None = None) -> None:
        match = Match(10.0, Rule.USER_DEFAULT_CLIENT, TrackerKey(user, client_id))
        reading = Reading(rate=float(ms), window_ms=10_000)
        client = JournalClient(user, client_id)
        self.journal.throttled(
            client, kind or user, ThrottledBy.PRODUCE, "produce", match, ms, lambda: reading, now_ms=self.now_ms
        )

    def refused(self, ip: str, *, outcome: str = "refused", limit: float | None = None, hold_ms: int = 0) -> None:
        reading = Reading(rate=float(hold_ms))
        self.journal.connection_throttled(ip, ip, outcome, limit, None, hold_ms, reading)


def totals(entries: list[Throttles]) -> tuple[int, int]:
    return sum(entry.count for entry in entries), sum(entry.total_ms for entry in entries)


def test_throttles_of_a_second_are_one_entry_with_the_numbers_of_the_longest() -> None:
    j = Journal()
    for ms in (100, 300, 200):
        j.told("u", "c", ms)
        j.now_ms += 10
    (entry,) = j.journal.of("u", "c")
    assert (entry.count, entry.told_ms, entry.total_ms, entry.reading.rate) == (3, 300, 600, 300.0)
    assert (entry.first_ms, entry.last_ms, entry.until_ms) == (0, 20, 310)
    assert entry.entity == QuotaEntity(user="u", client_id=DEFAULT)


def test_clients_are_found_by_one_of_their_names_with_the_latest_entries_and_the_longest_wait() -> None:
    j = Journal()
    for user, client_id, ms in (
        ("bob", "app", 900), ("alice", "app", 5), ("alice", "other", 6), ("carol", "app", 7),
    ):  # fmt: skip
        j.told(user, client_id, ms)
        j.now_ms += 1_000
    j.refused("10.0.0.1")

    def found(user: str | None, client_id: str | None, most: int = 10) -> list[tuple[str, str, int]]:
        entries = j.journal.of_clients(user, client_id, most)
        return [(client.user, client.client_id, entry.told_ms) for client, entry in entries]

    assert found(None, "app") == [("bob", "app", 900), ("alice", "app", 5), ("carol", "app", 7)]
    assert found(None, "app", 1) == [("bob", "app", 900), ("carol", "app", 7)]
    assert found("alice", None) == [("alice", "app", 5), ("alice", "other", 6)]
    assert found("alice", None, 1) == [("alice", "other", 6)]
    assert found(None, "none") == []
    assert len(found(None, None)) == 4


def test_connections_of_an_address_are_one_entry_a_second_for_each_outcome_and_limit() -> None:
    j = Journal()
    for number in range(400):
        j.refused("10.0.0.1")
        j.refused("10.0.0.1", outcome="held", limit=5.0 if number < 300 else 6.0, hold_ms=number)
        j.now_ms += 5
    entries = j.journal.of_address("10.0.0.1")
    assert sorted(
        (each.first_ms // 1000, each.api, each.limit or 0, each.count, each.told_ms) for each in entries
    ) == [
        (0, "held", 5, 200, 199),
        (0, "refused", 0, 200, 0),
        (1, "held", 5, 100, 299),
        (1, "held", 6, 100, 399),
        (1, "refused", 0, 200, 0),
    ]


def test_connections_are_counted_though_entries_are_forgotten_in_their_second() -> None:
    j = Journal()
    j.journal = ThrottleJournal(lambda: j.now_ms, label_value, max_entries=8)
    for number in range(40):
        j.refused(f"10.0.0.{number % 10}")
    # Of ten addresses in turn each loses its entry before it comes again: the last eight have theirs.
    assert [totals(j.journal.of_address(f"10.0.0.{at}"))[0] for at in range(10)] == [0, 0, *[1] * 8]
    for _ in range(5):
        j.refused("10.0.0.9")
    assert totals(j.journal.of_address("10.0.0.9"))[0] == 6


def test_older_seconds_become_minutes_and_the_oldest_minutes_go() -> None:
    j = Journal()
    seconds = 60 * (MINUTES_KEPT + 5)
    for second in range(seconds):
        j.now_ms = second * 1000
        j.told("u", "c")
    entries = j.journal.of("u", "c")
    assert len(entries) == len(j.journal) == SECONDS_KEPT + MINUTES_KEPT
    assert [entry.count for entry in entries[-SECONDS_KEPT:]] == [1] * SECONDS_KEPT
    assert entries[1].count == 60
    count, _ = totals(entries)
    assert 60 * (MINUTES_KEPT - 1) < count < seconds
    assert [entry.first_ms for entry in entries] == sorted(entry.first_ms for entry in entries)


ALL = TrackerKey("", "")
GROUP_A, GROUP_B = QuotaEntity(group="a"), QuotaEntity(group="b")
ALICE = TrackerKey("alice", "")


def cut_by(by: CutBy, part: float) -> Match:
    return Match(5.0, Rule.USER, ALICE, lent=Claim(1.0), cut=Cut(by, 3, part))


def test_an_entry_says_until_when_by_the_clock_of_people() -> None:
    j = Journal()
    j.now_ms = 1_000_000
    match = Match(5.0, Rule.USER, ALICE, cut=Cut(CutBy.BRAKE, 3, 0.2, until_ms=7_000, author="ops"))
    j.journal.throttled(
        JournalClient("alice", "c"), "alice", ThrottledBy.PRODUCE, "produce", match, 100, Reading, now_ms=4_000
    )
    (entry,) = j.journal.of("alice", "c")
    assert entry.cut == Cut(CutBy.BRAKE, 3, 0.2, until_ms=1_003_000, author="ops")


@pytest.mark.parametrize(
    ("one", "other", "entries"),
    [
        (Match(5.0, Rule.GROUP, ALL, beside=GROUP_A), Match(5.0, Rule.GROUP, ALL, beside=GROUP_A), 1),
        (Match(5.0, Rule.GROUP, ALL, beside=GROUP_A), Match(5.0, Rule.GROUP, ALL, beside=GROUP_B), 2),
        (Match(5.0, Rule.USER, ALICE), Match(6.0, Rule.USER, ALICE), 2),
        # What is lent changes each second, and the claim does not.
        (Match(5.0, Rule.USER, ALICE, lent=Claim(1.0)), Match(6.0, Rule.USER, ALICE, lent=Claim(1.0)), 1),
        (Match(5.0, Rule.USER, ALICE, lent=Claim(1.0)), Match(5.0, Rule.USER, ALICE, lent=Claim(2.0)), 2),
        (Match(5.0, Rule.USER, ALICE, lent=Claim(1.0)), Match(5.0, Rule.USER, ALICE), 2),
        # So does what an overload leaves, but not who takes it.
        (cut_by(CutBy.OVERLOAD, 0.5), cut_by(CutBy.OVERLOAD, 0.4), 1),
        (cut_by(CutBy.OVERLOAD, 0.5), cut_by(CutBy.BRAKE, 0.5), 2),
        (cut_by(CutBy.OVERLOAD, 0.5), Match(5.0, Rule.USER, ALICE, lent=Claim(1.0)), 2),
    ],
)
def test_waits_for_different_limits_stay_apart_in_a_second_and_in_its_minute(
    one: Match, other: Match, entries: int
) -> None:
    j = Journal()

    def told(match: Match) -> None:
        j.journal.throttled(
            JournalClient("alice", "c"), "alice", ThrottledBy.PRODUCE, "produce", match, 100, Reading, now_ms=0
        )

    for match in (one, other, one, other):
        told(match)
    found = j.journal.of("alice", "c")
    assert [entry.count for entry in found] == [4 // entries] * entries
    assert {entry.entity for entry in found} == {entity_of(one), entity_of(other)}
    j.now_ms = 1_000
    for match in (one, other, one, other):
        told(match)
    for second in range(61, 61 + SECONDS_KEPT):  # they become minutes
        j.now_ms = second * 1_000
        told(Match(7.0, Rule.USER, ALICE))
    old = [entry for entry in j.journal.of("alice", "c") if entry.limit != 7.0]
    assert [entry.count for entry in old] == [8 // entries] * entries


@pytest.mark.slow
def test_a_flood_of_names_costs_only_entries_of_its_own_kind_and_bounded_memory() -> None:
    j = Journal()
    j.told("alice", "app", 777)
    tracemalloc.start()
    over = 100
    for at in range(MAX_ENTRIES + over):
        j.now_ms += 1
        j.told("mallory", f"{at}" + "\U0001f4a3" * 250)
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(j.journal) == MAX_ENTRIES
    assert j.journal.forgotten == over + 1
    assert [entry.told_ms for entry in j.journal.of("alice", "app")] == [777]
    assert used_bytes < 16_000_000
    # What went is the flooder's own, oldest first.
    assert j.journal.of("mallory", "0" + "\U0001f4a3" * 250) == []
    assert len(j.journal.of("mallory", f"{MAX_ENTRIES + over - 1}" + "\U0001f4a3" * 250)) == 1
    client, entry = next(iter(j.journal.latest()))
    assert max(map(len, (client.client_id, entry.counter.client_id))) <= 128


def told_by(core: GatewayCore) -> Counter[ThrottledBy]:
    waits: Counter[ThrottledBy] = Counter()
    for _, _, ms, by in core.observer.throttles:
        waits[by] += ms
    return waits


@pytest.mark.parametrize("by", [ThrottledBy.PRODUCE, ThrottledBy.FETCH, ThrottledBy.CONTROLLER_MUTATION])
def test_what_is_told_and_what_is_held_is_explained(by: ThrottledBy) -> None:
    c = Conversation(producer_byte_rate=10, consumer_byte_rate=10, controller_mutation_rate=2)
    if by is ThrottledBy.PRODUCE:
        c.client_sends(produce(1, size=500)).upstream_answers(produce_reply(1))
        c.client_sends(produce(2, size=500, acks=0)).after(60_000)
    elif by is ThrottledBy.FETCH:
        for _ in range(2):
            c.client_sends(fetch())
            c.upstream_answers(response("Fetch", 12, responses=[], error_code=0, session_id=7)).after(30_000)
        c.core.client_quotas.fetch_tracker("ANONYMOUS", "tests", None, now_ms=c.clock.now_ms).record(  # type: ignore[union-attr]
            1_000, now_ms=c.clock.now_ms
        )
        c.client_sends(fetch()).after(30_000)
    else:
        c.client_sends(create_topics(1, ("t", 60), version=5)).serve()
    entries = c.core.journal.of("ANONYMOUS", "tests")
    waits = told_by(c.core)
    assert set(waits) == {by}
    assert totals(entries) == (len(c.core.observer.throttles), waits[by])
    for entry in entries:
        assert (entry.by, entry.rule, entry.entity) == (by.value, Rule.USER, QuotaEntity(user="ANONYMOUS"))
        assert entry.counter == TrackerKey("ANONYMOUS", "")
        reading = entry.reading
        if by is ThrottledBy.CONTROLLER_MUTATION:
            assert reading.tokens is not None
            assert entry.told_ms == round(-reading.tokens / 2 * 1000)
        else:
            assert reading.rate is not None
            assert reading.rate > 10 or reading.blocked_ms > 0


def test_the_time_of_requests_is_explained() -> None:
    c = Conversation(request_percentage=1)
    c.client_sends(heartbeat(1))
    assert c.session.meter is not None
    c.session.meter.busy_ns += 5_000_000_000
    c.upstream_answers(heartbeat_reply(1))
    ((api_key, _, ms, _),) = c.core.observer.throttles
    (entry,) = c.core.journal.of("ANONYMOUS", "tests")
    assert (api_key, entry.api, entry.by, entry.told_ms) == (ApiKey.HEARTBEAT, "heartbeat", "request", ms)
    assert entry.limit == c.core.limits.get(QuotaEntity(user="ANONYMOUS"), QuotaKey.REQUEST_PERCENTAGE) == 1
