"""BackPressure: measures how long a listener's connections waited because one side read too slowly."""

from __future__ import annotations

from gateway.observability.events import Side


class BackPressure:
    """The total time in which connections of a listener were slowed down by a side that read too slowly.

    It adds up the times of all connections. A time that has not ended counts up to now.
    """

    def __init__(self) -> None:
        self._since_ms = dict.fromkeys(Side, 0)
        self._active = dict.fromkeys(Side, 0)

    def begin(self, side: Side, *, now_ms: int) -> None:
        """Count a connection that is slowed down by this side from now on."""
        # The sum of (now - begin) over all connections needs only the sum of the begins and their number.
        self._since_ms[side] += now_ms
        self._active[side] += 1

    def end(self, side: Side, *, now_ms: int) -> None:
        """End the slow-down of one connection; exactly one call for each `begin`."""
        self._since_ms[side] -= now_ms
        self._active[side] -= 1

    def total_ms(self, side: Side, now_ms: int) -> int:
        """The time of all connections together, up to now."""
        return self._active[side] * now_ms - self._since_ms[side]
