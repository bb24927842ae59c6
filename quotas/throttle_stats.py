"""Throttle statistics of one counter: how many requests waited, for how long, and how many would have waited."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from quotas.rate import SampledRate

# Kafka's metrics that are not quotas have no windows of their own and use the broker's metric windows.
METRIC_WINDOW_NUM: Final = 2
METRIC_WINDOW_MS: Final = 30_000


class ThrottleStats:
    """Totals that never shrink, and the average over Kafka's metric windows."""

    __slots__ = (
        "_counts",
        "_times_ms",
        "refused_total",
        "throttled_ms_total",
        "throttled_total",
        "would_throttle_total",
    )

    def __init__(self) -> None:
        """Starts at 0."""
        self.throttled_total = 0  # requests
        self.throttled_ms_total = 0
        self.refused_total = 0  # topics refused with error 89
        self.would_throttle_total = 0  # throttles that observe mode did not enforce
        # Created at the first throttle, because most clients are never throttled.
        self._counts: SampledRate | None = None
        self._times_ms: SampledRate | None = None

    def record(self, throttle_time_ms: int, *, again: bool = False, now_ms: int) -> None:
        """Counts a request that waited; 0 does not count. `again`: more time of a request that was counted before."""
        if throttle_time_ms <= 0:
            return
        if self._counts is None or self._times_ms is None:
            self._counts = SampledRate(METRIC_WINDOW_NUM, METRIC_WINDOW_MS, now_ms=now_ms)
            self._times_ms = SampledRate(METRIC_WINDOW_NUM, METRIC_WINDOW_MS, now_ms=now_ms)
        self._counts.record(not again, now_ms=now_ms)
        self._times_ms.record(throttle_time_ms, now_ms=now_ms)
        self.throttled_total += not again
        self.throttled_ms_total += throttle_time_ms

    def add_totals(self, other: ThrottleStats) -> None:
        """Adds the totals of a counter that is dropped, so that no sum over all counters ever shrinks."""
        self.throttled_total += other.throttled_total
        self.throttled_ms_total += other.throttled_ms_total
        self.refused_total += other.refused_total
        self.would_throttle_total += other.would_throttle_total

    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return not (self.throttled_total or self.refused_total or self.would_throttle_total)

    def recent(self, *, now_ms: int) -> tuple[float, float]:
        """Throttled requests and their milliseconds within the metric windows."""
        if self._counts is None or self._times_ms is None:
            return 0.0, 0.0
        return self._counts.total(now_ms=now_ms), self._times_ms.total(now_ms=now_ms)


def average_throttle_ms(stats: Iterable[ThrottleStats], *, now_ms: int) -> float | None:
    """The average wait of requests that waited recently, None when none did (Kafka's throttle-time)."""
    recent = [each.recent(now_ms=now_ms) for each in stats]
    count = sum(counted for counted, _ in recent)
    return sum(time_ms for _, time_ms in recent) / count if count else None
