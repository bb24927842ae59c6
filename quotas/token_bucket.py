"""The token bucket of KIP-599 (Kafka's TokenBucket): starts full, may be overdrawn, refills with time.

There are two deliberate differences from Kafka. The bucket is full when it is created, while Kafka relies on a wall
clock that is far from its epoch. A debt that would round to a wait of 0 ms counts as paid. So a client that waited
exactly as long as it should is served, while Kafka can refuse it with a throttle time of 0.
"""

from __future__ import annotations

from quotas.rate import clamp_throttle_ms


class TokenBucket:
    """A bucket of permits; below zero is an unbounded debt."""

    __slots__ = ("_burst_s", "_last_ms", "_rate_per_s", "_tokens")

    def __init__(self, rate_per_s: float, *, window_num: int, window_ms: int, now_ms: int) -> None:
        """A full bucket.

        Args:
            rate_per_s: the limit, permits per second, > 0.
            window_num: windows of quota that can be saved up (controller.quota.window.num).
            window_ms: length of one.
            now_ms: the present.
        """
        self._burst_s = window_num * window_ms / 1000
        self._rate_per_s = rate_per_s
        self._tokens = rate_per_s * self._burst_s
        self._last_ms = now_ms

    @property
    def rate_per_s(self) -> float:
        """The limit in force."""
        return self._rate_per_s

    @rate_per_s.setter
    def rate_per_s(self, rate_per_s: float) -> None:
        # There is no refill at the old rate here: the time since the last use counts at the new rate. A higher rate
        # adds no tokens at once, a lower one clips them, and a debt is kept.
        self._rate_per_s = rate_per_s

    @property
    def burst(self) -> float:
        """The most tokens there can be."""
        return self._rate_per_s * self._burst_s

    def tokens(self, *, now_ms: int) -> float:
        """The tokens at this moment."""
        elapsed_ms = max(0, now_ms - self._last_ms)
        self._tokens = min(self.burst, self._tokens + self._rate_per_s * elapsed_ms / 1000)
        self._last_ms = max(self._last_ms, now_ms)
        return self._tokens

    def record(self, permits: float, *, now_ms: int) -> None:
        """Takes permits, even if there are too few; negative permits are given back, up to the burst."""
        self._tokens = min(self.burst, self.tokens(now_ms=now_ms) - permits)

    def throttle_time_ms(self, *, now_ms: int) -> int:
        """How long until the debt is paid; 0 means that there is no debt and permits may be taken."""
        tokens = self.tokens(now_ms=now_ms)
        return 0 if tokens >= 0 else clamp_throttle_ms(-tokens / self._rate_per_s * 1000)

    def full(self, *, now_ms: int) -> bool:
        """Whether forgetting this bucket would change nothing, because a new one also starts full."""
        return self.tokens(now_ms=now_ms) >= self.burst

    def taken(self, *, now_ms: int) -> float:
        """The permits that a new bucket would have to record to be in this bucket's state."""
        return self.burst - self.tokens(now_ms=now_ms)

    def divide(self, rate_per_s: float, part: float, *, now_ms: int) -> None:
        """Puts another limit in force, and keeps a part of the taken permits."""
        taken = self.taken(now_ms=now_ms)
        self._rate_per_s = rate_per_s
        self._tokens = self.burst - taken * part
