"""Two minutes under load and faults leave no more behind than half a minute, in virtual time."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from functools import partial

import pytest

from gateway.observability.throttle_journal import ThrottleJournal
from simulation.laws import Laws
from simulation.plan import Client, Fault, Plan
from simulation.run import run
from simulation.world import NS_PER_S

_EACH_MS = 3_000
_LINGER_S = 60
_FAULTS = (
    "stall",
    "reset",
    "broker_away",
    "broker_slow",
    "leaders_move",
    "broker_vanishes",
    "pause",
    "broker_keeps_fetches",
    "disk_full",
)
_OPTIONS = {"pause_ms": 300, "honours": True, "timeout_ms": 5_000, "each_connection": 3}
_PRODUCE = {"version": 9, "in_flight": 5, "acks": 1, "most_bytes": 20_000, "topic": "a"}
_CONSUME = {"version": 12, "in_flight": 1, "most_bytes": 50_000, "wait_ms": 500, "sessions": True, "topic": "b"}


def _plan(seconds: int) -> Plan:
    return Plan(
        seed=1,
        seconds=seconds,
        tables={"quotas": [{"default_client_id": True, "producer_byte_rate": 30_000, "consumer_byte_rate": 20_000}]},
        topics={"a": 3, "b": 3},
        brokers=3,
        clients=(
            Client("produce", "produce-1", 1, _OPTIONS | _PRODUCE),
            Client("produce", "produce-2", 1, _OPTIONS | _PRODUCE),
            Client("consume", "consume", 1, _OPTIONS | _CONSUME),
            Client("administer", "administer", 1, _OPTIONS | {"strict": True, "most_partitions": 3}),
            Client("look", "look", 1, _OPTIONS | {"version": 12, "create": False}),
            Client("beat", "beat", 1, _OPTIONS | {"version": 4}),
        ),
        faults=tuple(
            Fault(_EACH_MS * (at + 1), _FAULTS[at % len(_FAULTS)], where=at, for_ms=1_500, amount=200)
            for at in range(seconds * 1_000 // _EACH_MS - 2)
        ),
    )


def _left_by(seconds: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What a gateway has when its clients have gone: tasks, descriptors, and each kind of object."""
    left: Counter[str] = Counter()
    check_quiet = Laws.check_quiet

    def count(laws: Laws) -> None:
        world = laws.run.world
        world.run(world.now_ns + _LINGER_S * NS_PER_S, lambda: False)
        check_quiet(laws)
        ((process, _),) = laws.run.gateways[0].serving
        left["tasks"] = len(asyncio.all_tasks(process))
        left["descriptors"] = len(process.descriptors)
        gc.collect()
        for kind in map(type, gc.get_objects()):
            if str(kind.__module__).split(".")[0] in ("gateway", "protocol", "quotas"):
                left[f"{kind.__module__}.{kind.__qualname__}"] += 1

    monkeypatch.setattr(Laws, "check_quiet", count)
    # So small that it is full in both runs.
    monkeypatch.setattr("gateway.app.ThrottleJournal", partial(ThrottleJournal, max_entries=2))
    outcome = run(_plan(seconds))
    monkeypatch.undo()
    assert outcome.violations == []
    assert outcome.counts["connections"] > 5 * seconds
    return left


@pytest.mark.slow
def test_f14_a_longer_run_under_load_and_faults_leaves_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    _left_by(30, monkeypatch)  # What is imported and cached at first use.
    short, long = _left_by(30, monkeypatch), _left_by(120, monkeypatch)
    assert short["tasks"] > 0
    assert long - short == Counter()
