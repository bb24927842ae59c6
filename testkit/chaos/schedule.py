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
    BROKER_KILL = "broker-kill"
    TOPIC_AGAIN = "topic-again"
    DISK_FULL = "disk-full"
    CLOCK_STEP = "clock-step"


TOPIC_GATEWAYS: Final = (0, 1)
SQLITE_GATEWAY: Final = 2
_MOST_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Step:
    """One fault.

    Attributes:
        fault: its kind.
        target: the gateway from 0 on, or the broker from 1 on.
        after_s: since the step before.
        lasts_s: until it is put right.
    """

    fault: Fault
    target: int
    after_s: float
    lasts_s: float


def round_of(seed: int, number: int) -> list[Step]:
    """The faults of a round; the same for the same numbers, whatever was played before."""
    dice = random.Random(f"{seed}-{number}")
    kinds = list(Fault)
    # Each kind comes in turn, so that a short run has all of them; the second one is any.
    chosen = [kinds[(seed + number) % len(kinds)]]
    if dice.random() < 0.5:
        chosen.append(dice.choice([Fault.KILL, Fault.TERMINATE, Fault.PAUSE, Fault.HANG_UP]))
    return [_step(fault, dice) for fault in chosen]


def _step(fault: Fault, dice: random.Random) -> Step:
    if fault is Fault.BROKER_KILL:
        target = dice.randint(1, 3)
    elif fault in (Fault.DISK_FULL, Fault.CLOCK_STEP):
        target = SQLITE_GATEWAY
    elif fault is Fault.TOPIC_AGAIN:
        target = 0
    else:
        target = dice.choice([*TOPIC_GATEWAYS, SQLITE_GATEWAY])
    return Step(fault, target, round(dice.uniform(0.2, 1.0), 2), round(dice.uniform(1.5, _MOST_S), 2))
