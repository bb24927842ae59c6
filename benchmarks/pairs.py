"""Ratios of figures of the same round, with an interval that needs no assumptions on the noise.

A shared machine changes its speed between rounds, and so do both figures of a pair. So the ratio within a round is
compared. The interval of the median ratio consists of order statistics: of n ratios the k-th from below and from
above. The true median lies outside with the probability that a fair coin falls on one side less than k times in n.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

CONFIDENCE: Final = 0.95
ENOUGH_PAIRS: Final = 6
"""The fewest pairs whose lowest and highest ratio form an interval of 95 %. With fewer pairs they cover less."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the ratios within a round.

    Attributes:
        median: median of all rounds.
        low, high: its interval.
        pairs: how many rounds.
    """

    median: float
    low: float
    high: float
    pairs: int

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.median:.2f}, {self.low:.2f} to {self.high:.2f}"


def paired_ratio(rows: Iterable[dict[str, Any]], workload: str, path: str, base: str) -> Ratio | None:
    """The figure of `path` in multiples of the figure of `base`; None without a round that has both.

    Args:
        rows: windows with `workload`, `path`, `round`, `figure` and `invalid`.
        workload: whose windows count.
        path: the path to compare.
        base: the path that it is compared with.
    """
    by_round: dict[int, dict[str, float]] = {}
    for row in rows:
        if row["workload"] == workload and not row["invalid"] and "figure" in row:
            by_round.setdefault(row["round"], {})[row["path"]] = row["figure"]
    ratios = [taken[path] / taken[base] for taken in by_round.values() if path in taken and taken.get(base)]
    return ratio_of(ratios) if ratios else None


def ratio_of(ratios: Sequence[float]) -> Ratio:
    """The median of these ratios, and its interval."""
    ordered = sorted(ratios)
    outside = _cut_off(len(ordered))
    return Ratio(statistics.median(ordered), ordered[outside], ordered[-1 - outside], len(ordered))


def _cut_off(count: int) -> int:
    """How many of `count` ratios may be left out on each side for an interval of the median."""
    cut, tail = 0, 2 * 0.5**count
    while True:
        tail += 2 * math.comb(count, cut + 1) * 0.5**count
        if tail > 1 - CONFIDENCE or 2 * (cut + 1) >= count:
            return cut
        cut += 1
