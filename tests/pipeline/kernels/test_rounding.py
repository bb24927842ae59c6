"""Throttle times round as the gateway's do, and the border of a paid debt is found to the last float."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.replay.kernels.rounding import clamp_throttles_ms, lowest_paid_tokens
from quotas.rate import MAX_THROTTLE_MS, clamp_throttle_ms
from quotas.token_bucket import TokenBucket


@given(st.lists(st.floats(width=64), min_size=1))
@example([0.5, 0.49999999999999994, 1.5, 2.5, MAX_THROTTLE_MS - 0.5, math.inf, -math.inf, math.nan])
def test_times_round_as_the_gateways(values: list[float]) -> None:
    assert clamp_throttles_ms(np.array(values)).tolist() == [clamp_throttle_ms(value) for value in values]


@given(st.floats(1e-6, 1e18))
def test_a_bucket_waits_from_one_float_below_the_lowest_paid_tokens_on(rate: float) -> None:
    border = float(lowest_paid_tokens(np.array([rate]))[0])
    assert border < 0
    for tokens, waits in ((border, False), (math.nextafter(border, -math.inf), True)):
        bucket = TokenBucket(rate, window_num=1, window_ms=1_000, now_ms=0)
        bucket._tokens = tokens
        assert (bucket.throttle_time_ms(now_ms=0) > 0) is waits
