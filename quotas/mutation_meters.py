"""The meters of controller mutations: token bucket, plain Rate, and the draft's spread Rate.

KIP-599 was released with the bucket. The bucket replaced the other two, which have the same interface here. Their
"tokens" are the permits that the window can still take. So for all three, a number below zero means too many permits.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, Protocol

from quotas.rate import SampledRate, SpreadRate
from quotas.token_bucket import TokenBucket


class MutationAlgorithm(StrEnum):
    """How the mutation quota is enforced."""

    TOKEN_BUCKET = "token_bucket"
    RATE = "rate"
    SPREAD_RATE = "spread_rate"


class Meter(Protocol):
    """Counts permits against a limit that may change at any time."""

    rate_per_s: float

    def tokens(self, *, now_ms: int) -> float:
        """The permits that may still be taken; negative after too many were."""

    def record(self, permits: float, *, now_ms: int) -> None:
        """Takes permits, even if there are too few; gives back when negative."""

    def throttle_time_ms(self, *, now_ms: int) -> int:
        """How long until permits may be taken; 0 is now."""

    def full(self, *, now_ms: int) -> bool:
        """Whether forgetting this meter would change nothing."""

    def taken(self, *, now_ms: int) -> float:
        """The permits that a new meter would have to record to be in this meter's state."""

    def divide(self, rate_per_s: float, part: float, *, now_ms: int) -> None:
        """Puts another limit in force, and keeps a part of the taken permits."""


class _RateMeter:
    def __init__(self, rate_per_s: float, *, window_num: int, window_ms: int, now_ms: int) -> None:
        self.rate_per_s = rate_per_s
        self._rate = SampledRate(window_num, window_ms, now_ms=now_ms)

    def tokens(self, *, now_ms: int) -> float:
        window_ms = self._rate.window_size_ms(now_ms=now_ms)
        return self.rate_per_s * window_ms / 1000 - self._rate.total(now_ms=now_ms)

    def record(self, permits: float, *, now_ms: int) -> None:
        # A refund cannot exceed the permits that are still remembered.
        self._rate.record(max(permits, -self._rate.total(now_ms=now_ms)), now_ms=now_ms)

    def throttle_time_ms(self, *, now_ms: int) -> int:
        return self._rate.throttle_time_ms(self.rate_per_s, now_ms=now_ms)

    def full(self, *, now_ms: int) -> bool:
        return self._rate.total(now_ms=now_ms) <= 0

    def taken(self, *, now_ms: int) -> float:
        return self._rate.total(now_ms=now_ms)

    def divide(self, rate_per_s: float, part: float, *, now_ms: int) -> None:
        self.rate_per_s = rate_per_s
        self._rate.keep(part, now_ms=now_ms)


class _SpreadMeter:
    def __init__(self, rate_per_s: float, *, window_num: int, window_ms: int, now_ms: int) -> None:
        self.rate_per_s = rate_per_s
        self._rate = SpreadRate(window_num, window_ms, now_ms=now_ms)

    def tokens(self, *, now_ms: int) -> float:
        return self.rate_per_s * self._rate.window_size_ms / 1000 - self._rate.total(now_ms=now_ms)

    def record(self, permits: float, *, now_ms: int) -> None:
        self._rate.record(permits, self.rate_per_s, now_ms=now_ms)

    def throttle_time_ms(self, *, now_ms: int) -> int:
        return self._rate.throttle_time_ms(self.rate_per_s, now_ms=now_ms)

    def full(self, *, now_ms: int) -> bool:
        return self._rate.total(now_ms=now_ms) <= 0

    def taken(self, *, now_ms: int) -> float:
        return self._rate.total(now_ms=now_ms)

    def divide(self, rate_per_s: float, part: float, *, now_ms: int) -> None:
        self.rate_per_s = rate_per_s
        self._rate.keep(part, now_ms=now_ms)


class _MakeMeter(Protocol):
    def __call__(self, rate_per_s: float, *, window_num: int, window_ms: int, now_ms: int) -> Meter: ...


_METERS: Final[dict[MutationAlgorithm, _MakeMeter]] = {
    MutationAlgorithm.TOKEN_BUCKET: TokenBucket,
    MutationAlgorithm.RATE: _RateMeter,
    MutationAlgorithm.SPREAD_RATE: _SpreadMeter,
}


def meter_factory(
    algorithm: MutationAlgorithm, *, window_num: int, window_ms: int
) -> Callable[[float, int], Meter]:
    """A maker of empty meters from (limit per second, now_ms)."""
    make = _METERS[algorithm]
    return lambda rate_per_s, now_ms: make(
        rate_per_s, window_num=window_num, window_ms=window_ms, now_ms=now_ms
    )
