"""The sampled Rate of many clients, driven in any order of recording and looking."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.replay.kernels.sampled_rate import SampledRates
from quotas.rate import SampledRate

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
