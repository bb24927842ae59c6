"""Counters of two processes, of which one replaces the other: of different versions, and in a fleet."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest

from gateway.fleet.counters import AllCounters
from gateway.fleet.exchange import FleetRules
from gateway.fleet.shares import Share, decode_share, encode_share
from gateway.server.carried import (
    STATES,
    USE,
    OwnUse,
    connection_rates,
    connection_rows,
    messages,
    states,
    take_states,
    take_use,
)
from gateway.server.carrier import Carrier
from quotas.connections import ConnectionRates
from quotas.entities import QuotaEntity, QuotaKey
from quotas.groups import Group, Groups
from quotas.rate_quotas import RateTracker
from testkit.clock import FakeClock
from testkit.fleet import LIMIT, FleetMember

KEY = QuotaKey.PRODUCER_BYTE_RATE
WINDOW = 10 * LIMIT
RULES = FleetRules()


def counters_of(member: FleetMember) -> AllCounters:
    return member.exchange._counters


def of_topic(member: FleetMember, clock: FakeClock) -> RateTracker:
    (found,) = member.produced_topics.trackers("alice", "c", "orders", kind="", now_ms=clock.now_ms)
    return found


@pytest.fixture
def processes(clock: FakeClock) -> tuple[FleetMember, FleetMember]:
    found = tuple(FleetMember("a", boot, RULES, now_ms=clock.now_ms) for boot in ("1", "2"))
    for each in found:
        each.limits.set(QuotaEntity(topic="orders"), KEY, LIMIT)
    return found  # type: ignore[return-value]


def test_the_counter_of_a_group_goes_over_and_a_version_without_groups_passes_over_it(
    clock: FakeClock, processes: tuple[FleetMember, FleetMember]
) -> None:
    old, new = processes
    for each in processes:
        each.limits.set(QuotaEntity(group="team"), KEY, LIMIT)
        each.limits.set_groups(Groups([Group("team", users=("alice",))]))
    counters = [each.produced_groups.trackers("alice", "c", "", now_ms=clock.now_ms)[0] for each in processes]
    use = OwnUse(counters_of(old))
    counters[0].record(600, now_ms=clock.now_ms)
    told = dict(messages("states", states(counters_of(old), now_ms=clock.now_ms)))
    assert list(told) == ["topic_states"]
    rows = json.loads(json.dumps(told["topic_states"]))
    take_states(counters_of(new), rows, now_ms=clock.now_ms)
    assert counters[1].level(now_ms=clock.now_ms)[0] == 600
    counters[0].record(50, now_ms=clock.now_ms)
    take_use(counters_of(new), use.take(), now_ms=clock.now_ms)
    assert counters[1].level(now_ms=clock.now_ms)[0] == 1_250  # 600 twice: they were used after `use` began
    new.limits.set_groups(Groups())
    take_states(counters_of(new), rows, now_ms=clock.now_ms)
    assert not new.produced_groups.own()


def test_rows_of_topics_are_messages_that_an_older_version_passes_over(
    clock: FakeClock, processes: tuple[FleetMember, FleetMember]
) -> None:
    old, new = processes
    use = OwnUse(counters_of(old))
    old.tracker(now_ms=clock.now_ms).record(600, now_ms=clock.now_ms)
    of_topic(old, clock).record(500, now_ms=clock.now_ms)
    told = dict(messages("states", states(counters_of(old), now_ms=clock.now_ms)))
    assert set(told) == set(STATES)
    for *name, (_, *_) in told["states"]:  # as versions without topics read them
        _, _, _, _ = name
    take_states(counters_of(new), [row for rows in told.values() for row in rows], now_ms=clock.now_ms)
    assert of_topic(new, clock).level(now_ms=clock.now_ms)[0] == 500
    used = dict(messages("use", use.take()))
    assert set(used) == set(USE)
    for *name, _, _ in used["use"]:
        _, _, _, _ = name


def test_connection_rates_come_out_of_json_as_they_went_in() -> None:
    rates = ConnectionRates([(1, 2, 3.0)], {"inside": [(4, 5, 6.0), (7, 8, 9.0)]}, {"10.0.0.1": [(1, 1, 1.0)]})
    assert connection_rates(json.loads(json.dumps(list(connection_rows(rates))))) == rates


def test_rows_of_a_newer_version_are_passed_over_and_the_others_taken(
    clock: FakeClock, processes: tuple[FleetMember, FleetMember]
) -> None:
    old, new = processes
    old.tracker(now_ms=clock.now_ms).record(600, now_ms=clock.now_ms)
    rows: list[list[Any]] = [
        ["flush_rate", None, "alice", "c", [[], 9.0, 0, 0, 0.0]],
        [KEY.value, None, "", "", "listener_topic", "orders", [[], 9.0, 0, 0, 0.0]],
        [KEY.value, None, "alice", "", "topic", "orders", "partition", [[], 9.0, 0, 0, 0.0]],
    ]
    for row in states(counters_of(old), now_ms=clock.now_ms):
        *name, state = row
        rows.append([*name, [*state, "more than there is today"]])
    take_states(counters_of(new), rows, now_ms=clock.now_ms)
    take_use(counters_of(new), [[*row[:-1], 300.0, 0] for row in rows], now_ms=clock.now_ms)
    assert new.tracker(now_ms=clock.now_ms).level(now_ms=clock.now_ms)[0] == 900
    assert of_topic(new, clock).level(now_ms=clock.now_ms)[0] == 0


def test_what_was_told_of_counters_that_are_gone_is_not_kept(clock: FakeClock) -> None:
    member = FleetMember("a", "1", RULES, now_ms=clock.now_ms)
    member.limits.set(QuotaEntity("alice", topic="orders"), KEY, LIMIT)
    use = OwnUse(counters_of(member))
    member.tracker(now_ms=clock.now_ms).record(1, now_ms=clock.now_ms)
    of_topic(member, clock).record(1, now_ms=clock.now_ms)
    assert len(use.take()) == len(use._told) == 2
    clock.advance(10_000_000)
    member.produce.expire(now_ms=clock.now_ms)
    assert use.take() == []
    assert len(use._told) == 1


async def test_no_counter_is_kept_once_there_is_no_other_process(
    clock: FakeClock, processes: tuple[FleetMember, FleetMember]
) -> None:
    """Also where the other one never served: it was asked to, and failed."""
    for member, told in zip(processes, (True, False), strict=True):
        carrier = Carrier(counters_of(member), None, lambda: clock.now_ms)
        tracker = member.tracker(now_ms=clock.now_ms)
        tracker.record(1, now_ms=clock.now_ms)
        await carrier.states()
        if told:
            carrier.tell_use(lambda _rows: None)
        carrier.stop()
        clock.advance(10_000_000)
        member.produce.expire(now_ms=clock.now_ms)
        assert not member.produce.counters
        assert [each for each in gc.get_referrers(tracker) if isinstance(each, dict) and tracker in each] == []


async def test_a_fleet_counts_the_clients_of_both_processes_once_and_both_know_what_it_used(
    clock: FakeClock, processes: tuple[FleetMember, FleetMember]
) -> None:
    old, new = processes
    other = FleetMember("b", "1", RULES, now_ms=clock.now_ms)
    members = [old, other]

    def hear(shares: list[Share]) -> None:
        for share in shares:
            for member in members:
                member.exchange.receive(decode_share(encode_share(share)), now_ms=clock.now_ms)

    def pass_time(ms: int) -> None:
        for _ in range(ms // RULES.interval_ms):
            clock.advance(RULES.interval_ms)
            for member in members:
                hear(member.exchange.tick(now_ms=clock.now_ms))
            for carrier in of_old, of_new:
                carrier.tell_now()

    def record(member: FleetMember, part: float) -> None:
        member.tracker(now_ms=clock.now_ms).record(part * WINDOW, now_ms=clock.now_ms)

    def totals() -> list[float]:
        now_ms = clock.now_ms
        return [round(each.tracker(now_ms=now_ms).level(now_ms=now_ms)[0] / WINDOW, 6) for each in (old, new, other)]

    of_old, of_new = (Carrier(counters_of(each), None, lambda: clock.now_ms, each.exchange) for each in processes)
    pass_time(1_500)
    record(old, 0.2)
    of_new.take_states(await of_old.states())
    of_old.tell_use(of_new.take_use)
    of_new.tell_use(of_old.take_use)
    record(new, 0.1)
    record(other, 0.1)
    pass_time(200)
    assert totals() == [0.4, 0.4, 0.3]  # the new one is no member yet
    record(old, 0.1)
    hear(old.exchange.leave(now_ms=clock.now_ms))
    of_old.tell_now()
    of_new.earlier_left_fleet()
    record(old, 0.2)
    members[0] = new
    pass_time(1_500)
    record(other, 0.2)
    pass_time(100)
    record(old, 0.1)
    record(new, 0.1)
    pass_time(2_000)
    assert totals() == [1.1, 1.1, 1.1]
    for carrier in of_old, of_new:
        carrier.stop()
