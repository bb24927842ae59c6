"""The phases of a mutation exchange, and which event is allowed in which phase.

The table `TRANSITIONS` is the whole state machine. What an exchange does in a phase is in `mutation_exchange.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final


class Phase(Enum):
    """The phases of an exchange between the acceptance of its request and the reply."""

    ASKING = auto()
    """The gateway asks the cluster about the topics."""
    VALIDATING = auto()
    """The broker validates the topics that seem to cost nothing."""
    DECIDING = auto()
    """The topics are charged."""
    ASKING_AGAIN = auto()
    """The answers waited too long. The gateway asks the cluster once more."""
    VALIDATING_AGAIN = auto()
    """As `VALIDATING`, in the second round."""
    DECIDING_AGAIN = auto()
    """As `DECIDING`, in the second round."""
    GUESSING = auto()
    """The second answers waited too long as well. The topics are charged by guess."""
    FORWARDED = auto()
    """The broker has the charged topics. Its reply settles the charges."""
    FORWARDED_UNCHARGED = auto()
    """The broker has the request, and no quota is set. Its reply is only recorded."""
    ENDED = auto()
    """The client has its reply, or the request was put back."""


class Event(Enum):
    """What happens to an exchange."""

    SOME_SEEM_FREE = auto()
    """The broker has to validate topics that seem to cost nothing."""
    COSTS_KNOWN = auto()
    """Each topic has its cost."""
    PUT_BACK = auto()
    """The client is too far in debt, and the request waits."""
    ANSWERS_TOO_OLD = auto()
    """The answers waited so long that they may be wrong by now."""
    CHARGED = auto()
    """The admitted topics go to the broker."""
    NOT_CHARGED = auto()
    """The admitted topics go to the broker, and no quota is set."""
    ANSWERED = auto()
    """The client gets its reply."""


_DECIDED: Final[Mapping[Event, Phase]] = {
    Event.CHARGED: Phase.FORWARDED,
    Event.NOT_CHARGED: Phase.FORWARDED_UNCHARGED,
    Event.ANSWERED: Phase.ENDED,  # no topic is left for the broker
}

TRANSITIONS: Final[Mapping[Phase, Mapping[Event, Phase]]] = {
    Phase.ASKING: {Event.SOME_SEEM_FREE: Phase.VALIDATING, Event.COSTS_KNOWN: Phase.DECIDING},
    Phase.VALIDATING: {Event.COSTS_KNOWN: Phase.DECIDING},
    Phase.DECIDING: {Event.PUT_BACK: Phase.ENDED, Event.ANSWERS_TOO_OLD: Phase.ASKING_AGAIN, **_DECIDED},
    Phase.ASKING_AGAIN: {
        Event.SOME_SEEM_FREE: Phase.VALIDATING_AGAIN,
        Event.COSTS_KNOWN: Phase.DECIDING_AGAIN,
    },
    Phase.VALIDATING_AGAIN: {Event.COSTS_KNOWN: Phase.DECIDING_AGAIN},
    Phase.DECIDING_AGAIN: {Event.PUT_BACK: Phase.ENDED, Event.ANSWERS_TOO_OLD: Phase.GUESSING, **_DECIDED},
    Phase.GUESSING: _DECIDED,
    Phase.FORWARDED: {Event.ANSWERED: Phase.ENDED},
    Phase.FORWARDED_UNCHARGED: {Event.ANSWERED: Phase.ENDED},
    Phase.ENDED: {},
}
"""Phase -> event -> the next phase. An event that a phase does not list is not allowed in it."""


def phase_after(phase: Phase, event: Event) -> Phase:
    """The next phase.

    Raises:
        RuntimeError: the event is not allowed in this phase.
    """
    following = TRANSITIONS[phase].get(event)
    if following is None:
        raise RuntimeError(f"{event.name} is not allowed in {phase.name}")
    return following
