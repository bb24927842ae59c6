import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.rate import SampledRate
from tests.reference.models import RateModel

_waits_ms = st.one_of(
    st.integers(0, 30), st.integers(0, 1_500), st.sampled_from([999, 1_000, 10_999, 11_000, 40_000])
)
_steps = st.lists(
    st.tuples(_waits_ms, st.sampled_from(["record", "fetch", "look", "check", "unchecked"]), st.integers(0, 50_000)),
    max_size=80,
)


@given(st.integers(1, 12), st.sampled_from([100, 1_000, 2_000]), _steps)
def test_sampled_rate_is_the_ring_of_the_specification(
    window_num: int, window_ms: int, steps: list[tuple[int, str, int]]
) -> None:
    now_ms, limit = 5_000, 1_000.0
    rate, model = SampledRate(window_num, window_ms, now_ms=now_ms), RateModel(window_num, window_ms, now_ms)
    allowance = limit * (window_num - 1) * window_ms / 1000
    for wait_ms, verb, value in steps:
        now_ms += wait_ms
        if verb == "unchecked":
            rate.record(value, now_ms=now_ms)
            model.record(value, now_ms)
        elif verb != "look":
            model.record(value, now_ms)
            expected = model.throttle_time_ms(limit, now_ms)
            if verb == "check":
                throttle_ms = rate.record_and_check(value, limit, allowance, now_ms=now_ms)
            else:
                rate.record(value, now_ms=now_ms)
                throttle_ms = rate.throttle_time_ms(limit, now_ms=now_ms)
            assert throttle_ms == pytest.approx(expected, abs=1)  # the double may lie across a half
            if verb == "fetch" and expected:
                rate.record(-value, now_ms=now_ms)
                model.record(-value, now_ms)
        else:
            assert rate.total(now_ms=now_ms) == float(model.total(now_ms))
            assert rate.window_size_ms(now_ms=now_ms) == model.window_size_ms(now_ms)
            assert rate.rate(now_ms=now_ms) == pytest.approx(float(model.rate(now_ms)), rel=1e-12)
