"""The whole gateway in virtual time: in each seed every law holds (docs/testing.md)."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import pytest

from simulation.__main__ import ROOT, is_broken, line_of
from simulation.plan import Client, Plan, make
from simulation.run import Run, run
from simulation.world import NS_PER_MS
from testkit.faults.schedule import Fault
from tests.simulation.findings import FINDINGS, PRODUCES

SEEDS = 300
PARTS = 30

played = cache(line_of)
"""The line of a seed, which more than one test needs."""


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))])
def test_every_law_holds_in_each_seed(part: int) -> None:
    found = [line for seed in range(part, SEEDS, PARTS) if is_broken(line := played(seed))]
    assert found == [], f"python -m simulation --seed {found[0].split()[0]}"


def test_plans_that_once_broke_a_law_break_none() -> None:
    for name, plan in FINDINGS.items():
        assert run(plan).violations == [], name


def test_a_broker_that_joins_is_known_to_the_worker_that_gets_the_connection() -> None:
    """Another worker has seen it first, in the Metadata response that it relayed."""
    produces = Client("produce", "produce-0", 1, PRODUCES | {"each_connection": 3, "pause_ms": 20})
    joined = Run(Plan(gateways=(2,), brokers=3, seconds=8, topics={"a": 6, "b": 2}, clients=(produces,)))
    node = joined.cluster.nodes.pop(3)
    joined.cluster.move_leaders()

    def join() -> None:
        joined.cluster.nodes[3] = node
        joined.cluster.move_leaders()

    joined.world.after(3_000 * NS_PER_MS, join)
    assert joined.go().violations == []


@pytest.mark.slow
def test_a_seed_is_the_same_run_in_each_process_whatever_the_order_of_its_hashes() -> None:
    """Here hashes have an order of this process's own, and other seeds have run before."""
    other_order = "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
    found = subprocess.run(
        [sys.executable, "-P", "-m", "simulation", "--seeds", "30:35", "--digests"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": other_order},
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    assert found.splitlines()[1:] == [played(seed) for seed in range(30, 35)]


def test_two_seeds_are_not_the_same_run() -> None:
    assert played(0).split()[1] != played(PARTS).split()[1]


def test_a_printed_plan_is_the_plan() -> None:
    for seed in range(50):
        plan = make(seed)
        assert eval(str(plan), {"Client": Client, "Fault": Fault, "Plan": Plan}) == plan
