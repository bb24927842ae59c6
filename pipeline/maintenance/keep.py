"""How long pruning keeps each kind of data. It needs no package of the extra."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keep:
    """How many days of each are kept, today not counted."""

    raw: int = 7
    compacted: int = 35
    results: int = 90
    index: int = 90
    log: int = 7
