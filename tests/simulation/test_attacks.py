"""Attacks on shares: each keeps within its bound, and each finds the fault that is planted for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.attacks import ATTACKS, AttackRun, broken, lie, run_attack
from tests.simulation.faults import FAULTS_OF_ATTACKS
from tests.simulation.test_planted import find_fault


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_keeps_within_its_bound(name: str) -> None:
    """In one seed; the campaign `share-attacks` runs others."""
    assert run_attack(name, 1) == []


@pytest.mark.slow
def test_more_liars_than_honest_clients_do_make_brokers_seem_slow() -> None:
    """Otherwise the attack would show nothing."""
    attack = lie(1, more=1)
    run = AttackRun(attack.plan)
    assert run.go().violations == []
    assert [each.law for each in broken(attack, run)] == ["lies_cost_nothing"]


@pytest.mark.campaign
@pytest.mark.parametrize("name", ATTACKS)
def test_fault_is_found(name: str, tmp_path: Path) -> None:
    law = "lies_cost_nothing" if name == "lie" else "attack_is_bounded"
    assert law in find_fault(FAULTS_OF_ATTACKS[name], tmp_path, "--attacks", name, "--seeds", "0:1")
