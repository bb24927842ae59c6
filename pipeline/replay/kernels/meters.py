"""Many meters side by side, each with its own clock; `pipeline.replay.kernels.models` drives them.

A meter is one (client, candidate) pair. `at` is an array with the indices of meters; `now_ms` and amounts are arrays
of the same length. Every meter decides like its class in `quotas`, to the last bit.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pipeline.replay.kernels.ragged import Floats, Ints
from pipeline.replay.kernels.rounding import clamp_throttles_ms


class Meters(Protocol):
    """See `quotas.mutation_meters.Meter`, for arrays."""

    def record(self, units: Floats, at: Ints, now_ms: Ints) -> None:
        """Takes units, whether or not there are enough."""

    def throttles_ms(self, at: Ints, now_ms: Ints) -> Floats:
        """The time until units may be taken; 0: now."""

    def record_and_check(self, units: Floats, at: Ints, now_ms: Ints) -> Floats:
        """Takes units and returns the throttle time for them, like the gateway's byte rates."""


class MakeMeters(Protocol):
    """Makes unused meters."""

    def __call__(self, rates_per_s: Floats, now_ms: Ints, *, window_num: int, window_ms: int) -> Meters:
        """Meters with these limits, made at these moments."""


class TokenBuckets:
    """`quotas.token_bucket.TokenBucket`."""

    def __init__(self, rates_per_s: Floats, now_ms: Ints, *, window_num: int, window_ms: int) -> None:
        """Full buckets; the arguments are those of one bucket, as arrays."""
        self._rates = rates_per_s
        self._burst = rates_per_s * (window_num * window_ms / 1000)
        self._tokens = self._burst.copy()
        self._last_ms = now_ms.copy()

    def record(self, units: Floats, at: Ints, now_ms: Ints) -> None:
        """See `Meters`."""
        self._tokens[at] = np.minimum(self._burst[at], self._refilled(at, now_ms) - units)

    def throttles_ms(self, at: Ints, now_ms: Ints) -> Floats:
        """See `Meters`."""
        return clamp_throttles_ms(-self._refilled(at, now_ms) / self._rates[at] * 1000)

    def record_and_check(self, units: Floats, at: Ints, now_ms: Ints) -> Floats:
        """See `Meters`."""
        self.record(units, at, now_ms)
        return self.throttles_ms(at, now_ms)

    def _refilled(self, at: Ints, now_ms: Ints) -> Floats:
        elapsed_ms = np.maximum(0, now_ms - self._last_ms[at])
        tokens: Floats = np.minimum(self._burst[at], self._tokens[at] + self._rates[at] * elapsed_ms / 1000)
        self._tokens[at] = tokens
        self._last_ms[at] = np.maximum(self._last_ms[at], now_ms)
        return tokens


def rate_throttles_ms(rates: Floats, limits: Floats, windows_ms: Ints) -> Floats:
    """`quotas.rate.throttle_time_ms` for arrays, limits > 0."""
    over = rates > limits
    return np.where(over, clamp_throttles_ms((rates - limits) / limits * windows_ms), 0.0)
