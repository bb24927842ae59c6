"""The table of a mutation exchange's phases."""

import pytest

from gateway.handlers.mutation_phases import TRANSITIONS, Event, Phase, phase_after


def following(phase: Phase) -> set[Phase]:
    """All phases that can come after this one."""
    found: set[Phase] = set()
    left = [phase]
    while left:
        new = set(TRANSITIONS[left.pop()].values()) - found
        found |= new
        left += new
    return found


def test_every_phase_follows_the_first_one_and_comes_to_an_end_without_a_circle() -> None:
    assert following(Phase.ASKING) == set(Phase) - {Phase.ASKING}
    for phase in Phase:
        assert (Phase.ENDED in following(phase)) == (phase is not Phase.ENDED)
        assert phase not in following(phase)


def test_the_cluster_is_asked_again_once_and_then_the_cost_is_guessed() -> None:
    phase = Phase.ASKING
    for event in (Event.COSTS_KNOWN, Event.ANSWERS_TOO_OLD, Event.COSTS_KNOWN, Event.ANSWERS_TOO_OLD):
        phase = phase_after(phase, event)
    assert phase is Phase.GUESSING
    with pytest.raises(RuntimeError, match="ANSWERS_TOO_OLD is not allowed in GUESSING"):
        phase_after(phase, Event.ANSWERS_TOO_OLD)


@pytest.mark.parametrize("phase", [Phase.FORWARDED, Phase.FORWARDED_UNCHARGED, Phase.ENDED])
def test_a_request_that_left_for_the_broker_is_neither_charged_again_nor_put_back(phase: Phase) -> None:
    assert set(TRANSITIONS[phase]) <= {Event.ANSWERED}
