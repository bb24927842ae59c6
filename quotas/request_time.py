"""The request quota, request_percentage (KIP-124; Kafka's ClientRequestQuotaManager).

Unit: percent of one thread, 100 being one core busy all the time. What counts as the time of a request is
the caller's to measure; it arrives here in nanoseconds. The wait is capped at one window, so a client far
over its quota is told the same short time again and again until its samples have left.
"""

from __future__ import annotations

from typing import Final

from quotas.entities import QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import RateQuotas, RateSettings, Scope

_PERCENT_SECONDS_PER_NS: Final = 100 / 1e9


class RequestTimeQuotas(RateQuotas):
    """request_percentage."""

    def __init__(self, limits: Limits, settings: RateSettings) -> None:
        """Starts with no counters; see `RateQuotas` for the arguments."""
        super().__init__(limits, QuotaKey.REQUEST_PERCENTAGE, settings, cap_ms=settings.window_ms)
        self.exempt_ns = 0  # time of requests that the quota does not apply to

    def record(self, user: str, client_id: str, time_ns: int, *, scope: Scope = None, now_ms: int) -> int:
        """Counts the time of a request that is being answered, and tells how long its client has to wait."""
        tracker = self.tracker(user, client_id, scope=scope, now_ms=now_ms)
        return 0 if tracker is None else tracker.record(time_ns * _PERCENT_SECONDS_PER_NS, now_ms=now_ms)

    def record_unchecked(
        self, user: str, client_id: str, time_ns: int, *, scope: Scope = None, now_ms: int
    ) -> None:
        """Counts time spent after the answer, such as writing it; it weighs on the next request."""
        tracker = self.tracker(user, client_id, scope=scope, now_ms=now_ms)
        if tracker is not None:
            tracker.record_unchecked(time_ns * _PERCENT_SECONDS_PER_NS, now_ms=now_ms)

    def record_exempt(self, time_ns: int) -> None:
        """Counts the time of a request that nobody waits for: acks=0, cluster actions."""
        self.exempt_ns += time_ns
