"""Hazards K03, K04: what one counter passes over any number of connections, under random schedules."""

from hypothesis import given
from hypothesis import strategies as st

from quotas.entities import QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import ByteRateQuotas, RateSettings
from tests.reference.models import BoundModel

_requests = st.lists(
    st.tuples(
        st.one_of(st.just(0), st.integers(0, 300), st.sampled_from([999, 1_000, 11_000, 22_000])),
        st.integers(1, 30_000),
    ),
    max_size=120,
)


@given(st.integers(1, 12), st.sampled_from([100, 1_000]), st.sampled_from([7, 1_000, 1e6]), _requests)
def test_k03_k04_requests_of_ever_new_connections_keep_to_the_bound(
    window_num: int, window_ms: int, limit: float, requests: list[tuple[int, int]]
) -> None:
    limits = Limits()
    limits.set(QuotaEntity(user="u"), QuotaKey.PRODUCER_BYTE_RATE, limit)
    quotas = ByteRateQuotas(limits, QuotaKey.PRODUCER_BYTE_RATE, RateSettings(window_num, window_ms))
    now_ms, model = 5_000, BoundModel(limit, 2 * window_num * window_ms)
    for wait_ms, size in requests:
        now_ms += wait_ms
        tracker = quotas.tracker("u", "c", now_ms=now_ms)
        assert tracker is not None
        waiter = object()
        if not tracker.wait_ms(waiter, size, now_ms=now_ms):
            throttle_ms = tracker.record(size, now_ms=now_ms)
            assert now_ms + throttle_ms >= tracker.blocked_until_ms  # a client that waits is never blocked
            model.passed.append((now_ms, size))
            assert not tracker.forgettable(now_ms=now_ms)
        else:
            assert now_ms < tracker.blocked_until_ms  # those that have gone block no one
            tracker.leave(waiter)
    assert model.holds()
