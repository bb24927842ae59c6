"""A sampled rate whose use the members of a fleet report to each other. Pure.

For rates of connections, which have no bucket: what others have let in counts as if it had come here. How counters
are used for that is in `gateway.fleet.exchange`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from quotas.rate import SampledRate
from quotas.rate_quotas import CounterState
from quotas.resolution import Match, Rule, TrackerKey

_NO_CLIENT: Final = TrackerKey("", "")
_UNLIMITED: Final = Match(None, Rule.NONE, _NO_CLIENT)


class ConnectionKey(NamedTuple):
    """Names a rate of connections.

    Attributes:
        kind: ``gateway``, ``listener`` or ``ip``.
        name: of the listener; the address or block; empty.
    """

    kind: str
    name: str


class SharedRate:
    """One rate. A `Counter` of the exchange.

    Attributes:
        meter: the average.
        match: the limit, as the exchange looks at it; None in it: there is none, and nothing is reported.
    """

    __slots__ = ("_least_s", "_others", "_settled", "match", "meter")

    def __init__(self, window_num: int, window_ms: int, *, now_ms: int) -> None:
        """An empty meter without a limit; the arguments are those of `SampledRate`."""
        self.meter = SampledRate(window_num, window_ms, now_ms=now_ms)
        self.match = _UNLIMITED
        self._least_s = (window_num - 1) * window_ms / 1000
        self._settled = 0.0  # of all that was recorded: what others have recorded, or know
        self._others = 0.0  # of all that was recorded: what others have recorded

    def limit_to(self, limit_per_s: float | None) -> None:
        """Put a limit in force; None: there is none."""
        if limit_per_s != self.match.limit:
            self.match = Match(limit_per_s, Rule.NONE, _NO_CLIENT)

    @property
    def last_ms(self) -> int:
        """When something was recorded last."""
        return self.meter.last_ms

    @property
    def left_until_ms(self) -> int:
        """Connections leave no mute behind."""
        return 0

    @property
    def recorded_here(self) -> float:
        """All that ever came here."""
        return self.meter.recorded - self._others

    @property
    def stirred(self) -> bool:
        """Whether others may need a message."""
        return self.match.limit is not None and self.meter.recorded > self._settled

    def untold(self, *, now_ms: int) -> float:
        """What came here, is remembered yet, and was not sent; a connection that was taken back is not."""
        recorded, remembered = self.meter.recorded, max(0.0, self.meter.total(now_ms=now_ms))
        untold = recorded - self._settled
        if untold > remembered:
            untold = remembered
            self._settled = recorded - remembered
        return max(0.0, untold)

    def near(self, untold: float, members: int, *, now_ms: int) -> bool:
        """See `RateTracker.near`."""
        limit = self.match.limit
        return limit is not None and untold * 4 * members >= limit * self._least_s - self.meter.held

    def settle(self, told: float) -> None:
        """So much was sent to the others."""
        self._settled += told

    def delivered(self, told: float, *, now_ms: int) -> None:
        """No connection waits for messages."""

    def record_others(self, value: float, *, now_ms: int) -> None:
        """Counts what came to another member."""
        self._settled += value
        self._others += value
        self.meter.record(value, now_ms=now_ms)

    def level(self, *, now_ms: int) -> tuple[float, float]:
        """What the average comes from; there is no bucket."""
        return max(0.0, self.meter.total(now_ms=now_ms)), 0.0

    def raise_to(self, total: float, fill: float, *, now_ms: int) -> None:
        """Stands at least where the counter of another member stands."""
        more = total - self.meter.total(now_ms=now_ms)
        if more > 0:
            self.record_others(more, now_ms=now_ms)

    def state(self, *, now_ms: int) -> CounterState:
        """Where it stands."""
        return CounterState(self.meter.samples(now_ms=now_ms))

    def take_over(self, state: CounterState, *, now_ms: int) -> None:
        """Stands at least where the counter of the process before stands, which has reported it to the others."""
        if self.meter.take_over(state.samples, now_ms=now_ms) > 0:
            self._settled = self._others = self.meter.recorded
