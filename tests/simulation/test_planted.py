"""Laws find faults: each fault is planted in a copy of the sources, and some seed breaks a law."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.__main__ import ROOT
from tests.simulation.faults import FAULTS

SEEDS = "0:500"


def _find(name: str, folder: Path) -> str:
    FAULTS[name].plant(folder)
    path = os.pathsep.join([str(folder), str(ROOT)])
    found = subprocess.run(
        [sys.executable, "-P", "-m", "simulation", "--seeds", SEEDS, "--at-first", "--no-shrink"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1, found.stdout + found.stderr
    return found.stdout


def test_every_fault_can_be_planted() -> None:
    assert [name for name, fault in FAULTS.items() if not fault.can_be_planted] == []


@pytest.mark.campaign
@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found_within_500_seeds(name: str, tmp_path: Path) -> None:
    assert "with a law that was broken" in _find(name, tmp_path)


@pytest.mark.slow
def test_fault_is_found(tmp_path: Path) -> None:
    assert "answered_once_in_order" in _find("replies are swapped", tmp_path)
