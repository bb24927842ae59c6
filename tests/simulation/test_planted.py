"""Laws find faults: each fault is planted in a copy of the sources, and some seed breaks a law."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.__main__ import ROOT
from testkit.planted_fault import Fault
from tests.simulation.faults import FAULTS, FAULTS_OF_ATTACKS, FAULTS_OF_SHARES

AT_FIRST = ("--seeds", "0:500", "--at-first", "--no-shrink")


def find_fault(fault: Fault, folder: Path, *options: str) -> str:
    """Run the simulation with a fault; its output, which says that something is broken."""
    fault.plant(folder)
    path = os.pathsep.join([str(folder), str(ROOT)])
    found = subprocess.run(
        [sys.executable, "-P", "-m", "simulation", *options],
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1, found.stdout + found.stderr
    return found.stdout


def test_every_fault_can_be_planted() -> None:
    faults = FAULTS | FAULTS_OF_SHARES | FAULTS_OF_ATTACKS
    assert [name for name, fault in faults.items() if not fault.can_be_planted] == []


@pytest.mark.campaign
@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found_within_500_seeds(name: str, tmp_path: Path) -> None:
    assert "with a law that was broken" in find_fault(FAULTS[name], tmp_path, *AT_FIRST)


@pytest.mark.slow
def test_fault_is_found(tmp_path: Path) -> None:
    assert "answered_once_in_order" in find_fault(FAULTS["replies are swapped"], tmp_path, *AT_FIRST)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("name", "promise"),
    [
        ("weights are ignored", "weights_hold"),
        ("guarantees are ignored", "guarantees_hold"),
        ("a bucket that is not empty wants everything", "capacity_is_used"),
    ],
)
def test_fault_of_a_division_is_found(name: str, promise: str, tmp_path: Path) -> None:
    assert promise in find_fault(FAULTS_OF_SHARES[name], tmp_path, "--shares", "--seeds", "1:2")
