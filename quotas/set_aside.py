"""Use that does not count against clients while only a part of a limit is in force here.

A gateway that is cut off from its fleet enforces a part of each limit (`Limits.set_share`), and its counters hold
what all of the fleet has used. So a counter keeps the same part of that, as every member does: a client at its limit
stays there. The rest is put aside, with what others report before the whole limit is in force again. Otherwise both
would be waited for at a part of the rate: half a minute with four members, for a client that did nothing wrong.
"""

from __future__ import annotations

from typing import Protocol

from quotas.rate import SampledRate
from quotas.resolution import Match


class Bound(Protocol):
    """A counter with the limit that was found for it last, as of a version of all limits."""

    match: Match
    version: int

    def bind(self, match: Match, version: int, *, now_ms: int) -> None:
        """Puts a limit in force."""


def bind_alike(one: Bound, other: Bound, *, now_ms: int) -> None:
    """Puts the same limit in force on two counters of which one is to count for both, the one looked up last."""
    if one.match.limit is None or one.version < other.version:
        one.bind(other.match, other.version, now_ms=now_ms)
    else:
        other.bind(one.match, one.version, now_ms=now_ms)


class SetAside:
    """One counter's.

    Attributes:
        `told`: reported by others meanwhile, in units of the quota; not yet in the counter's average, and forgotten
            as there.
    """

    __slots__ = ("_fill", "_ms", "_rate_per_s", "told")

    def __init__(self, rate_per_s: float, told: SampledRate, *, now_ms: int) -> None:
        """Nothing yet.

        Args:
            rate_per_s: the rest of the limit, which empties it.
            `told`: empty, with the windows of the counter's average.
            now_ms: the present.
        """
        self.told = told
        self._fill = 0.0
        self._rate_per_s = rate_per_s
        self._ms = now_ms

    def fill(self, *, now_ms: int) -> float:
        """What is in it, in units of the quota."""
        passed_ms = max(0, now_ms - self._ms)
        self._fill = max(0.0, self._fill - self._rate_per_s * passed_ms / 1000)
        self._ms += passed_ms
        return self._fill

    def add(self, fill: float, told: float, *, now_ms: int) -> None:
        """Puts more into it, of which others reported a part or all."""
        self._fill = self.fill(now_ms=now_ms) + fill
        if told:
            self.told.record(told, now_ms=now_ms)

    def change(self, rate_per_s: float, part: float, *, now_ms: int) -> float:
        """A part of it belongs to the counter again, and another rate empties the rest.

        Returns:
            What that part had. Of `told` the caller takes the same part.
        """
        fill = self.fill(now_ms=now_ms) * part
        self._fill -= fill
        self._rate_per_s = rate_per_s
        return fill
