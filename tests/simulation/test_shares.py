"""A capacity that is divided: every promise about shares holds (docs/testing.md)."""

from __future__ import annotations

import pytest

from simulation.shares import jain, run_shares


@pytest.mark.slow
def test_every_promise_holds() -> None:
    """In one seed; the campaign `shares` runs others."""
    assert run_shares(1) == []


def test_index_of_fairness() -> None:
    assert jain([5, 5, 5]) == 1
    assert jain([9, 0, 0]) == pytest.approx(1 / 3)
