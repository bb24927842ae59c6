"""Compacted rows as quotas count: one row for all listeners and brokers of a client, counter and day."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Final

ENTITY: Final = ("date", "gw", "user", "client_id", "api", "node")
"""Columns that identify a row. `gw` is a gateway, or a fleet whose gateways count together. `node` is -1 if all
brokers count together."""

_SECONDS: Final = ("t", "offered")
_EVENTS: Final = ("e_ms", "e_units", "e_strict", "e_attempt")

FOR_REQUESTS: Final = ("requests", "max_units", "muted_ms", "connections", "first_ms", "quota", "in_force")
"""Arrays that are also needed to divide seconds into requests."""

TOLD: Final = ("delayed", "rejected_units", "throttle_ms", "beside_ms")
"""Throttle times of clients, which are only added."""

ARRAYS: Final = (*_SECONDS, *FOR_REQUESTS, "censored", "observed", *TOLD, *_EVENTS)
"""The arrays of a compacted row that a replay may read."""


def arrays_of(more: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The arrays that every replay reads, and further ones.

    Args:
        more: some of `ARRAYS`.

    Returns:
        Groups of arrays that belong together, by the array with their times.
    """
    return {
        "t": (*_SECONDS, *(name for name in ARRAYS[len(_SECONDS) : -len(_EVENTS)] if name in more)),
        "e_ms": _EVENTS,
    }


LARGEST: Final = ("max_units", "muted_ms")
EITHER: Final = ("censored",)
LAST: Final = ("quota", "in_force", "observed", "level_end")
LEAST: Final = ("first_ms",)
"""How values of one second in several rows are combined: largest, either, last, least. Others are added."""


class Scope(StrEnum):
    """What one counter covers; the same values as the gateway's setting."""

    FLEET = "fleet"
    GATEWAY = "gateway"
    BROKER = "broker"
