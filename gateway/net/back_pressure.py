"""Measures how long connections of a listener waited for one of their sides."""

from __future__ import annotations

from gateway.observability.events import Side


class BackPressure:
    """How long connections of a listener were slowed down because one side read less than the other sent.

    Adds up what begins and ends at many connections; time under way counts at every moment.
    """

    def __init__(self) -> None:
        self._since_ms = dict.fromkeys(Side, 0)
        self._active = dict.fromkeys(Side, 0)

    def begin(self, side: Side, *, now_ms: int) -> None:
        """One more connection is slowed down by this side."""
        # The sum over all of (now - begin) needs no list of them.
        self._since_ms[side] += now_ms
        self._active[side] += 1

    def end(self, side: Side, *, now_ms: int) -> None:
        """One less; exactly one call for each `begin`."""
        self._since_ms[side] -= now_ms
        self._active[side] -= 1

    def total_ms(self, side: Side, now_ms: int) -> int:
        """The time of all connections together, up to now."""
        return self._active[side] * now_ms - self._since_ms[side]
