"""The spread Rate of many clients; its sums are as exact as `math.fsum`."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.replay.kernels.spread_rate import SpreadRates, exact_sums
from quotas.rate import SpreadRate

amounts = st.lists(
    st.tuples(st.integers(0, 5_000), st.floats(0.01, 1e9, allow_subnormal=False)), min_size=1, max_size=40
)


@given(amounts, st.floats(0.01, 1e6))
def test_values_fill_the_windows_before_them_as_the_gateways_do(
    told: list[tuple[int, float]], limit: float
) -> None:
    one = SpreadRate(5, 1_000, now_ms=0)
    many = SpreadRates(np.array([limit]), np.array([0]), window_num=5, window_ms=1_000)
    now_ms, at = 0, np.array([0])
    for gap_ms, value in told:
        now_ms += gap_ms
        one.record(value, limit, now_ms=now_ms)
        waits_ms = many.record_and_check(np.array([value]), at, np.array([now_ms]))
        assert waits_ms.tolist() == [one.throttle_time_ms(limit, now_ms=now_ms)]


@given(st.lists(st.lists(st.floats(0, 1e12), min_size=11, max_size=11), min_size=1, max_size=20))
@example([[1e16, 1.0, 1e-20, *[0.0] * 8], [1e16, 1.0, *[0.0] * 9], [0.1] * 11])
def test_sums_are_rounded_once(rows: list[list[float]]) -> None:
    assert exact_sums(np.array(rows)).tolist() == [math.fsum(row) for row in rows]
