from quotas.throttle_stats import ThrottleStats, average_throttle_ms
from testkit.clock import FakeClock


def test_the_average_is_over_throttled_requests_of_the_last_minute(clock: FakeClock) -> None:
    stats = ThrottleStats()
    assert average_throttle_ms([stats], now_ms=clock.now_ms) is None
    for throttle_ms in (0, 100, 300):
        stats.record(throttle_ms, now_ms=clock.now_ms)
    assert average_throttle_ms([stats, ThrottleStats()], now_ms=clock.now_ms) == 200
    assert average_throttle_ms([stats], now_ms=clock.advance(60_000)) is None
    assert (stats.throttled_total, stats.throttled_ms_total) == (2, 400)


def test_totals_of_a_counter_that_goes_are_taken_over(clock: FakeClock) -> None:
    left, gone = ThrottleStats(), ThrottleStats()
    assert left.is_empty()
    gone.record(100, now_ms=clock.now_ms)
    gone.refused_total, gone.would_throttle_total = 3, 4
    left.add_totals(gone)
    assert not left.is_empty()
    assert (left.throttled_total, left.throttled_ms_total, left.refused_total, left.would_throttle_total) == (
        1, 100, 3, 4,
    )  # fmt: skip
