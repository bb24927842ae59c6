"""The schedule of faults, made from a seed, so that a round can be repeated. Pure."""

from __future__ import annotations

import random
from typing import Final

from testkit.faults.schedule import Fault, Kind, choose

TOPIC_GATEWAYS: Final = (0, 1)
SQLITE_GATEWAY: Final = 2
_GATEWAYS: Final = (*TOPIC_GATEWAYS, SQLITE_GATEWAY)

_AT_MS: Final = range(0, 601, 10)
_FOR_MS: Final = range(300, 1_001, 10)
_MOST_BESIDE: Final = 2
_TERMINATE: Final = Kind("terminate", _GATEWAYS, _FOR_MS)
_OF_BROKERS: Final = tuple(
    Kind(what, (1, 2, 3), _FOR_MS) for what in ("broker-kill", "broker-restart", "broker-pause")
)
_BESIDE: Final = (
    *(Kind(what, _GATEWAYS, _FOR_MS) for what in ("kill", "pause", "hang-up")),
    _TERMINATE,
    Kind("disk-full", (SQLITE_GATEWAY,), _FOR_MS),
    # More than the retention of usage records.
    Kind("clock-step", (SQLITE_GATEWAY,), _FOR_MS, amount=(12 * 86_400_000,)),
)
KINDS: Final = {
    kind.what: kind
    for kind in (
        *_BESIDE,
        *_OF_BROKERS,
        Kind("import", _GATEWAYS, _FOR_MS),
        Kind("topic-again", for_ms=_FOR_MS),
    )
}
"""Targets are gateways from 0 on, or brokers from 1 on."""


def round_of(seed: int, number: int) -> tuple[Fault, ...]:
    """The overlapping faults of a round. They depend on `seed` and `number` alone, not on earlier rounds.

    In a cycle of as many rounds as there are kinds, each kind is once the main fault. Other faults come beside it,
    each at another gateway.
    """
    cycle, at = divmod(number, len(KINDS))
    leads = list(KINDS.values())
    random.Random(f"{seed}-{cycle}").shuffle(leads)
    dice = random.Random(f"{seed}-{number}")
    lead = leads[at]
    faults = [lead.draw(dice, _AT_MS)]
    free = set(_GATEWAYS)
    if lead.what == "topic-again":
        free.difference_update(TOPIC_GATEWAYS)
    elif lead not in _OF_BROKERS:
        free.discard(faults[0].where)
    for _ in range(dice.randint(0, _MOST_BESIDE)):
        # A leader that ends loses replies, too. The check could not distinguish that from replies lost in a drain.
        others = [kind for kind in _BESIDE if kind is not _TERMINATE or lead not in _OF_BROKERS]
        if kinds := [kind for kind in others if free.intersection(kind.where)]:
            kind = choose(dice, kinds)
            faults.append(kind.draw(dice, _AT_MS, sorted(free.intersection(kind.where))))
            free.discard(faults[-1].where)
    return tuple(faults)
