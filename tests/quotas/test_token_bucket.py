from typing import Any

import pytest

from quotas.rate import MAX_THROTTLE_MS
from quotas.token_bucket import TokenBucket
from testkit.clock import FakeClock
from testkit.scenarios import scenarios, steps


def _bucket(quota: float, window_num: int, window_s: int, now_ms: int) -> TokenBucket:
    return TokenBucket(quota, window_num=window_num, window_ms=window_s * 1000, now_ms=now_ms)


@pytest.mark.parametrize("row", [p for p in scenarios("tb") if "steps" in p.values[0]])
def test_scenario_token_bucket(row: dict[str, Any], clock: FakeClock) -> None:
    start_ms = clock.now_ms
    bucket = _bucket(row["q"], row["S"], row["W"], start_ms)
    for at_ms, verb, *args in steps(row):
        now_ms = start_ms + at_ms
        tokens_after = args[-1]
        if verb == "rec":
            bucket.record(args[0], now_ms=now_ms)
        elif verb == "perm":
            bucket.record(args[0], now_ms=now_ms)
            assert bucket.throttle_time_ms(now_ms=now_ms) == args[1]
        elif verb == "strict":
            throttle_ms = bucket.throttle_time_ms(now_ms=now_ms)
            assert (throttle_ms == 0, throttle_ms) == (args[1], args[2])
            if args[1]:
                bucket.record(args[0], now_ms=now_ms)
        elif verb == "quota":
            bucket.rate_per_s = args[0]
            continue
        assert bucket.tokens(now_ms=now_ms) == pytest.approx(tokens_after, abs=1e-9)


@pytest.mark.parametrize("row", [p for p in scenarios("tb") if "formula" in p.values[0]])
def test_scenario_formula(row: dict[str, Any], clock: FakeClock) -> None:
    for tokens, quota, throttle_ms in row["formula"]:
        bucket = _bucket(quota, 1, 1, clock.now_ms)
        bucket.record(quota - tokens, now_ms=clock.now_ms)
        assert bucket.throttle_time_ms(now_ms=clock.now_ms) == throttle_ms


def test_a_new_bucket_is_full_and_clocks_that_go_back_take_no_tokens(clock: FakeClock) -> None:
    for now_ms in (0, 1, 10**12):
        bucket = _bucket(5, 10, 2, now_ms)
        assert bucket.tokens(now_ms=now_ms) == 100
        assert bucket.full(now_ms=now_ms)
    bucket = _bucket(2, 10, 1, clock.now_ms)
    bucket.record(10, now_ms=clock.now_ms)
    assert bucket.tokens(now_ms=clock.now_ms - 5_000) == 10
    assert bucket.tokens(now_ms=clock.now_ms) == 10


def test_debts_are_waited_for_exactly(clock: FakeClock) -> None:
    # 3 per second does not divide into whole milliseconds: the debt left is a rounding residue.
    for quota in (3, 0.7, 1.1, 7, 1e-3):
        bucket = _bucket(quota, 1, 1, clock.now_ms)
        bucket.record(quota + 1, now_ms=clock.now_ms)
        wait_ms = bucket.throttle_time_ms(now_ms=clock.now_ms)
        assert wait_ms > 0
        assert bucket.throttle_time_ms(now_ms=clock.advance(wait_ms)) == 0
    # Kafka wraps here: 3000 permits at 0.001 per second are answered with 89 and 0 ms.
    for quota in (1e-3, 5e-324):
        bucket = _bucket(quota, 11, 1, clock.now_ms)
        bucket.record(3_000_000, now_ms=clock.now_ms)
        assert bucket.throttle_time_ms(now_ms=clock.now_ms) == MAX_THROTTLE_MS
