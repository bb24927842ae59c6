"""Meters of many clients at once, each with a clock of its own, decide and round as the gateway's classes do."""

import math

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.replay.kernels.meters import TokenBuckets, rate_throttles_ms
from pipeline.replay.kernels.rounding import clamp_throttles_ms, lowest_paid_tokens
from pipeline.replay.kernels.sampled_rate import SampledRates
from pipeline.replay.kernels.spread_rate import SpreadRates, exact_sums
from quotas.rate import MAX_THROTTLE_MS, SampledRate, SpreadRate, clamp_throttle_ms, throttle_time_ms
from quotas.token_bucket import TokenBucket


def test_waits_are_the_gateways_and_only_of_the_meters_that_are_meant() -> None:
    now_ms = np.array([0, 0, 0])
    buckets = TokenBuckets(np.array([1.0, 2.0, 3.0]), now_ms, window_num=1, window_ms=1_000)
    buckets.record(np.array([5.0, 5.0]), np.array([0, 2]), np.array([0, 0]))
    assert buckets.throttles_ms(np.array([0, 1, 2]), now_ms).tolist() == [4_000, 0, 667]
    assert buckets.throttles_ms(np.array([0, 2]), np.array([1_000, 100])).tolist() == [3_000, 567]
    rates, limits, windows = (np.array([1.0, 2.5, 7.0]), np.array([1.0, 2.0, 0.1]), np.array([1, 10_500, 11_000]))
    expected = [throttle_time_ms(float(r), float(q), float(w)) for r, q, w in zip(rates, limits, windows)]
    assert rate_throttles_ms(rates, limits, windows).tolist() == expected


# -- rounding --------------------------------------------------------------------------------------------------------
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


# -- the sampled Rate ------------------------------------------------------------------------------------------------
steps = st.lists(
    st.tuples(
        st.sampled_from(["record", "look", "check"]),
        st.one_of(st.sampled_from([0, 1, 999, 1000, 2999, 3000, 3001, 4000]), st.integers(0, 9_000)),
        st.floats(0.01, 1e6, allow_subnormal=False),
    ),
    max_size=60,
)


@given(st.lists(steps, min_size=1, max_size=3), st.floats(0.1, 1e5))
def test_any_order_of_recording_and_looking_gives_the_gateways_numbers(
    clients: list[list[tuple[str, int, float]]], limit: float
) -> None:
    begin = np.zeros(len(clients), np.int64)
    many = SampledRates(np.full(len(clients), limit), begin, window_num=3, window_ms=1_000)
    for i, told in enumerate(clients):
        one = SampledRate(3, 1_000, now_ms=0)
        at, now_ms = np.array([i]), 0
        for what, gap_ms, value in told:
            now_ms += gap_ms
            now, values = np.array([now_ms]), np.array([value])
            if what == "record":
                one.record(value, now_ms=now_ms)
                many.record_raw(values, at, now)
            elif what == "check":
                allowance = limit * (2 * 1_000 / 1000)
                expected = one.record_and_check(value, limit, allowance, now_ms=now_ms)
                assert many.record_and_check(values, at, now).tolist() == [expected]
            else:
                assert many.throttles_ms(at, now).tolist() == [one.throttle_time_ms(limit, now_ms=now_ms)]
                assert many.totals(at, now).tolist() == [one.total(now_ms=now_ms)]


# -- the spread Rate -------------------------------------------------------------------------------------------------
amounts = st.lists(
    st.tuples(st.integers(0, 5_000), st.floats(0.01, 1e9, allow_subnormal=False)), min_size=1, max_size=40
)


@given(amounts, st.floats(0.01, 1e6))
def test_values_fill_windows_before_them_as_gateways_do(told: list[tuple[int, float]], limit: float) -> None:
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
