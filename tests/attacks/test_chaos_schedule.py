"""The schedule of faults: the same for the same numbers, and all kinds in a short run."""

from __future__ import annotations

from testkit.chaos.schedule import Fault, round_of


def test_a_round_can_be_played_again_and_as_many_rounds_as_there_are_faults_have_each() -> None:
    assert round_of(3, 17) == round_of(3, 17)
    assert round_of(3, 17) != round_of(4, 17)
    assert {step.fault for number in range(len(Fault)) for step in round_of(1, number)} == set(Fault)
