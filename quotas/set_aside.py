"""What a counter does not hold against its clients while only a part of its limit is in force here.

A gateway that is cut off from its fleet goes on with a part of each limit (`Limits.set_share`), and its counters hold
what all of the fleet has used. So a counter keeps the same part of that, as every member does: a client at its limit
stays there. The rest is put aside, with what others tell before the whole limit is in force again. Otherwise both
would be waited for at a part of the rate: half a minute with four members, for a client that did nothing wrong.
"""

from __future__ import annotations


class SetAside:
    """One counter's.

    Attributes:
        told: by others meanwhile, in units of the quota; not yet in the counter's average.
    """

    __slots__ = ("_fill", "_ms", "_rate_per_s", "told")

    def __init__(self, rate_per_s: float, *, now_ms: int) -> None:
        """Nothing yet.

        Args:
            rate_per_s: the rest of the limit, which empties it.
            now_ms: the present.
        """
        self.told = 0.0
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
        """Puts more into it, of which others told a part or all."""
        self._fill = self.fill(now_ms=now_ms) + fill
        self.told += told

    def change(self, rate_per_s: float, part: float, *, now_ms: int) -> tuple[float, float]:
        """A part of it belongs to the counter again, and another rate empties the rest.

        Returns:
            What that part held, and what others told of it.
        """
        fill, told = self.fill(now_ms=now_ms) * part, self.told * part
        self._fill -= fill
        self.told -= told
        self._rate_per_s = rate_per_s
        return fill, told
