"""Meters of many clients at once: each has a clock of its own."""

from __future__ import annotations

import numpy as np

from pipeline.replay.kernels.meters import TokenBuckets, rate_throttles_ms
from quotas.rate import throttle_time_ms


def test_only_the_meters_that_are_meant_are_touched() -> None:
    now_ms = np.array([0, 0, 0])
    buckets = TokenBuckets(np.array([1.0, 2.0, 3.0]), now_ms, window_num=1, window_ms=1_000)
    buckets.record(np.array([5.0, 5.0]), np.array([0, 2]), np.array([0, 0]))
    assert buckets.throttles_ms(np.array([0, 1, 2]), now_ms).tolist() == [4_000, 0, 667]
    assert buckets.throttles_ms(np.array([0, 2]), np.array([1_000, 100])).tolist() == [3_000, 567]


def test_waits_of_rates_are_the_gateways() -> None:
    rates, limits, windows = (
        np.array([1.0, 2.5, 7.0]),
        np.array([1.0, 2.0, 0.1]),
        np.array([1, 10_500, 11_000]),
    )
    expected = [throttle_time_ms(float(r), float(q), float(w)) for r, q, w in zip(rates, limits, windows)]
    assert rate_throttles_ms(rates, limits, windows).tolist() == expected
