"""Use that does not count against clients while only a part of a limit is in force here.

A gateway that is isolated from its fleet enforces a part of each limit (`Limits.set_share`). Its counters contain the
use of the whole fleet. So each counter keeps the same part of that use, as on every member, and a client at its limit
stays at its limit. The rest is put aside, with the use that others report before the whole limit is in force again.
Otherwise clients would wait for both at a part of the rate: half a minute with four members, for a client that did
nothing wrong.
"""

from __future__ import annotations

from typing import Protocol

from quotas.rate import SampledRate
from quotas.resolution import Match


class Bound(Protocol):
    """A counter with its last limit, and the version of all limits when that was found."""

    match: Match
    version: int

    def bind(self, match: Match, version: int, *, now_ms: int) -> None:
        """Puts a limit in force."""


def bind_alike(one: Bound, other: Bound, *, now_ms: int) -> None:
    """Puts the newer of two counters' limits in force on both, before one of them counts for both."""
    if one.match.limit is None or one.version < other.version:
        one.bind(other.match, other.version, now_ms=now_ms)
    else:
        other.bind(one.match, one.version, now_ms=now_ms)


class SetAside:
    """The use of one counter that is put aside.

    Attributes:
        `told`: the use that others have reported meanwhile, in units of the quota. It is not yet in the counter's
            average, and is forgotten after the same time.
    """

    __slots__ = ("_fill", "_ms", "_rate_per_s", "told")

    def __init__(self, rate_per_s: float, told: SampledRate, *, now_ms: int) -> None:
        """Starts empty.

        Args:
            rate_per_s: the rest of the limit, at which the fill drains.
            `told`: an empty meter with the windows of the counter's average.
            now_ms: the present.
        """
        self.told = told
        self._fill = 0.0
        self._rate_per_s = rate_per_s
        self._ms = now_ms

    def fill(self, *, now_ms: int) -> float:
        """The fill of the bucket that is put aside, in units of the quota."""
        passed_ms = max(0, now_ms - self._ms)
        self._fill = max(0.0, self._fill - self._rate_per_s * passed_ms / 1000)
        self._ms += passed_ms
        return self._fill

    def add(self, fill: float, told: float, *, now_ms: int) -> None:
        """Adds to the fill, and to the use that others have reported."""
        self._fill = self.fill(now_ms=now_ms) + fill
        if told:
            self.told.record(told, now_ms=now_ms)

    def change(self, rate_per_s: float, part: float, *, now_ms: int) -> float:
        """Returns a part of the fill to the counter, and drains the rest at another rate.

        Returns:
            The fill of that part. The caller takes the same part of `told`.
        """
        fill = self.fill(now_ms=now_ms) * part
        self._fill -= fill
        self._rate_per_s = rate_per_s
        return fill
