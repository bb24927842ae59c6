import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.token_bucket import TokenBucket
from tests.reference.models import BucketModel

_quotas = st.sampled_from([0.1, 0.5, 1.0, 2.0, 3.0, 10.0, 1_000.0])
_steps = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 20_000), st.just("record"), st.integers(-40, 400)),
        st.tuples(st.integers(0, 20_000), st.just("look"), st.just(0)),
        st.tuples(st.integers(0, 5_000), st.just("quota"), _quotas),
    ),
    max_size=40,
)


@given(_quotas, st.integers(1, 100), _steps)
def test_token_bucket_is_the_replay_of_all_its_events(
    quota: float, burst_s: int, steps: list[tuple[int, str, float]]
) -> None:
    now_ms = 77
    bucket = TokenBucket(quota, window_num=burst_s, window_ms=1_000, now_ms=now_ms)
    model = BucketModel(quota, burst_s, now_ms)
    for wait_ms, verb, value in steps:
        now_ms += wait_ms
        if verb == "record":
            bucket.record(value, now_ms=now_ms)
            model.record(value, now_ms)
        elif verb == "quota":
            bucket.rate_per_s = value
            model.quota(value, now_ms)
        else:
            tokens = float(model.look(now_ms))
            assert bucket.tokens(now_ms=now_ms) == pytest.approx(tokens, abs=1e-6)
            owed_ms = max(0.0, -tokens / bucket.rate_per_s * 1000)
            assert bucket.throttle_time_ms(now_ms=now_ms) == pytest.approx(owed_ms, abs=0.51)
