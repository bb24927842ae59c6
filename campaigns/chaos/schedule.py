"""Which fault comes when: made from a seed, so that a round can be played again. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Fault(StrEnum):
    """What happens in a round."""

    KILL = "kill"
    TERMINATE = "terminate"
    PAUSE = "pause"
    HANG_UP = "hang-up"
    IMPORT = "import"
    BROKER_KILL = "broker-kill"
    BROKER_RESTART = "broker-restart"
    BROKER_PAUSE = "broker-pause"
    TOPIC_AGAIN = "topic-again"
    DISK_FULL = "disk-full"
    CLOCK_STEP = "clock-step"


TOPIC_GATEWAYS: Final = (0, 1)
SQLITE_GATEWAY: Final = 2

_OF_BROKERS: Final = (Fault.BROKER_KILL, Fault.BROKER_RESTART, Fault.BROKER_PAUSE)
_OF_SQLITE: Final = (Fault.DISK_FULL, Fault.CLOCK_STEP)
_OF_ANY: Final = (Fault.KILL, Fault.PAUSE, Fault.HANG_UP)
_MOST_BESIDE: Final = 2


@dataclass(frozen=True, slots=True)
class Step:
    """One fault.

    Attributes:
        fault: its kind.
        target: the gateway from 0 on, or the broker from 1 on.
        after_s: since the round began.
        lasts_s: until it is put right.
    """

    fault: Fault
    target: int
    after_s: float
    lasts_s: float


def round_of(seed: int, number: int) -> list[Step]:
    """The faults of a round, which overlap; the same for the same numbers, whatever was played before.

    Each kind leads one round of as many as there are kinds. Beside it come others, each at a gateway of its own.
    """
    cycle, at = divmod(number, len(Fault))
    leads = list(Fault)
    random.Random(f"{seed}-{cycle}").shuffle(leads)
    dice = random.Random(f"{seed}-{number}")
    lead = leads[at]
    free = [*TOPIC_GATEWAYS, SQLITE_GATEWAY]
    steps = [_step(lead, free, dice)]
    # A leader that goes loses replies too, which a drain could not be distinguished from.
    others = _OF_ANY if lead in _OF_BROKERS else (*_OF_ANY, Fault.TERMINATE)
    for _ in range(dice.randint(0, _MOST_BESIDE)):
        kinds = (*others, *_OF_SQLITE) if SQLITE_GATEWAY in free else others
        if free:
            steps.append(_step(dice.choice(kinds), free, dice))
    return steps


def _step(fault: Fault, free: list[int], dice: random.Random) -> Step:
    """Takes its gateways out of those that are free."""
    if fault in _OF_BROKERS:
        target = dice.randint(1, 3)
    elif fault in _OF_SQLITE:
        target = SQLITE_GATEWAY
        free.remove(target)
    elif fault is Fault.TOPIC_AGAIN:
        target = TOPIC_GATEWAYS[0]
        free[:] = [SQLITE_GATEWAY]
    else:
        target = dice.choice(free)
        free.remove(target)
    return Step(fault, target, round(dice.uniform(0.0, 0.6), 2), round(dice.uniform(0.3, 1.0), 2))
