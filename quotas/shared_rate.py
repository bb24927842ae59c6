"""A sampled rate whose use the members of a fleet report to each other. Pure.

It is for rates of connections, which have no bucket. Connections that other members admit count as if this gateway
had admitted them. `gateway.fleet.exchange` sends and receives the counts.
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
        name: empty, the listener's name, or the address or block.
    """

    kind: str
    name: str


class SharedRate:
    """One rate. A `Counter` of the exchange.

    Attributes:
        meter: the average.
        match: the limit in the form that the exchange reads. Without a limit nothing is reported.
    """

    __slots__ = ("_least_s", "_others", "_settled", "match", "meter")

    def __init__(self, window_num: int, window_ms: int, *, now_ms: int) -> None:
        """An empty meter without a limit; the arguments are those of `SampledRate`."""
        self.meter = SampledRate(window_num, window_ms, now_ms=now_ms)
        self.match = _UNLIMITED
        self._least_s = (window_num - 1) * window_ms / 1000
        self._settled = 0.0  # the part of all records that other members have made, or know
        self._others = 0.0  # the part of all records that other members have made

    def limit_to(self, limit_per_s: float | None) -> None:
        """Put a limit in force; None: no limit."""
        if limit_per_s != self.match.limit:
            self.match = Match(limit_per_s, Rule.NONE, _NO_CLIENT)

    @property
    def last_ms(self) -> int:
        """The time of the last record."""
        return self.meter.last_ms

    @property
    def left_until_ms(self) -> int:
        """Always 0: connections leave no mute behind."""
        return 0

    @property
    def recorded_here(self) -> float:
        """All connections so far that this gateway recorded itself."""
        return self.meter.recorded - self._others

    @property
    def stirred(self) -> bool:
        """Whether other members may need a message."""
        return self.match.limit is not None and self.meter.recorded > self._settled

    def untold(self, *, now_ms: int) -> float:
        """The connections recorded here that are still remembered and were not sent, without those taken back."""
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
        """Counts connections as sent to the other members."""
        self._settled += told

    def delivered(self, told: float, *, now_ms: int) -> None:
        """Does nothing: no connection waits for messages."""

    def record_others(self, value: float, *, now_ms: int) -> None:
        """Counts connections that another member recorded."""
        self._settled += value
        self._others += value
        self.meter.record(value, now_ms=now_ms)

    def level(self, *, now_ms: int) -> tuple[float, float]:
        """The total in the average's window, and 0: there is no bucket."""
        return max(0.0, self.meter.total(now_ms=now_ms)), 0.0

    def raise_to(self, total: float, fill: float, *, now_ms: int) -> None:
        """Raises this rate to at least the level of another member's."""
        more = total - self.meter.total(now_ms=now_ms)
        if more > 0:
            self.record_others(more, now_ms=now_ms)

    def state(self, *, now_ms: int) -> CounterState:
        """The rate's state, for the new process in an upgrade."""
        return CounterState(self.meter.samples(now_ms=now_ms))

    def take_over(self, state: CounterState, *, now_ms: int) -> None:
        """Raises this rate to at least the old process's state, which that has already reported to the fleet."""
        if self.meter.take_over(state.samples, now_ms=now_ms) > 0:
            self._settled = self._others = self.meter.recorded
