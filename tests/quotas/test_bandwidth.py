import pytest

from quotas.bandwidth import ByteRateQuotas
from quotas.entities import QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import RateSettings
from testkit.clock import FakeClock

FETCH = QuotaKey.CONSUMER_BYTE_RATE


def _quotas(limit: float | None, window_num: int = 11) -> ByteRateQuotas:
    limits = Limits()
    limits.set(QuotaEntity("u"), FETCH, limit or 1)
    return ByteRateQuotas(limits, FETCH, RateSettings(window_num=window_num))


def test_a_frame_far_over_the_quota_costs_its_full_time(clock: FakeClock) -> None:
    # Seen on a broker: 12345 bytes at 100 B/s.
    tracker = _quotas(100).tracker("u", "c", now_ms=clock.now_ms)
    assert tracker is not None
    assert tracker.record(12_345, now_ms=clock.now_ms) == 113_450


@pytest.mark.parametrize(("window_num", "most"), [(11, 10_000), (2, 1_000), (1, 0)])
def test_a_fetch_is_clamped_to_what_the_whole_windows_can_pass(
    window_num: int, most: int, clock: FakeClock
) -> None:
    quotas = _quotas(1_000, window_num)
    assert quotas.max_bytes_in_window("u", "c", now_ms=clock.now_ms) == most
    tracker = quotas.tracker("u", "c", now_ms=clock.now_ms)
    assert tracker is not None
    if most:
        assert tracker.record(most, now_ms=clock.now_ms) == 0
        assert tracker.record(1, now_ms=clock.now_ms) > 0


def test_a_fetch_without_a_quota_is_not_clamped(clock: FakeClock) -> None:
    assert _quotas(1).max_bytes_in_window("nobody", "c", now_ms=clock.now_ms) is None
    off = ByteRateQuotas(Limits(), FETCH, RateSettings())
    assert off.max_bytes_in_window("u", "c", now_ms=clock.now_ms) is None


def test_only_byte_rates_are_byte_rates() -> None:
    with pytest.raises(ValueError, match="request_percentage is no byte rate"):
        ByteRateQuotas(Limits(), QuotaKey.REQUEST_PERCENTAGE, RateSettings())


def test_long_run_stays_within_limit_and_burst(clock: FakeClock) -> None:
    # A client that sends as fast as it may, in frames of half a second's worth.
    tracker = _quotas(1_000).tracker("u", "c", now_ms=clock.now_ms)
    assert tracker is not None
    start_ms, sent = clock.now_ms, 0
    while clock.now_ms - start_ms < 600_000:
        clock.advance(max(1, tracker.record(500, now_ms=clock.now_ms)))
        sent += 500
    elapsed_s = (clock.now_ms - start_ms) / 1000
    assert 0.90 * 1_000 * elapsed_s <= sent <= 1_000 * elapsed_s + 10_000 + 500
