"""A capacity that is divided: in each seed every promise about shares holds (docs/testing.md)."""

from __future__ import annotations

import pytest

from simulation.shares import jain, run_shares


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 3, 5, 7, 11))])
def test_every_promise_holds_in_each_seed(seed: int) -> None:
    assert run_shares(seed) == []


def test_index_of_fairness() -> None:
    assert jain([5, 5, 5]) == 1
    assert jain([9, 0, 0]) == pytest.approx(1 / 3)
