"""How long pruning keeps each kind of data. Needs no package of the extra."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keep:
    """For how many days each kind of data is kept, not counting today."""

    raw: int = 7
    compacted: int = 35
    results: int = 90
    index: int = 90
    log: int = 7
