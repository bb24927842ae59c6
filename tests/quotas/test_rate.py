import math
from typing import Any

import pytest

from quotas.rate import MAX_THROTTLE_MS, SampledRate, SpreadRate, clamp_throttle_ms, round_half_up, throttle_time_ms
from testkit.clock import FakeClock
from testkit.scenarios import scenarios, steps


@pytest.mark.parametrize("row", scenarios("rate"))
def test_scenario_rate(row: dict[str, Any], clock: FakeClock) -> None:
    start_ms = clock.now_ms
    rate = SampledRate(row["S"], row["W"] * 1000, now_ms=start_ms)
    cap_ms = row.get("cap_ms", MAX_THROTTLE_MS)
    for at_ms, verb, *args in steps(row):
        now_ms = start_ms + at_ms
        if verb == "rate":
            assert rate.rate(now_ms=now_ms) == pytest.approx(args[0], abs=1e-5)
            continue
        value, throttle_ms = args
        rate.record(value, now_ms=now_ms)
        assert min(cap_ms, rate.throttle_time_ms(row["q"], now_ms=now_ms)) == throttle_ms, at_ms
        if verb == "fetch" and throttle_ms:
            rate.record(-value, now_ms=now_ms)


@pytest.mark.parametrize("row", scenarios("formula"))
def test_scenario_formula(row: dict[str, Any]) -> None:
    for case in row["rows"]:
        window_ms = (case["S"] - 1) * 1000  # what a fresh meter with one-second samples reports
        throttle_ms = throttle_time_ms(case["o"], case["t"], window_ms)
        assert min(throttle_ms, case.get("cap", MAX_THROTTLE_MS)) == case["ms"]


@pytest.mark.parametrize("row", scenarios("spread"))
def test_scenario_spread(row: dict[str, Any], clock: FakeClock) -> None:
    spread = SpreadRate(row["S"], row["W"] * 1000, now_ms=clock.now_ms)
    spread.record(row["value"], row["q"], now_ms=clock.now_ms)
    *previous, current = spread.samples(now_ms=clock.now_ms)
    after = row["samples_after"]
    assert previous == [after["each"]] * after["previous"]
    assert current == after["current"]
    assert spread.rate(now_ms=clock.now_ms) == pytest.approx(row["avg"])
    throttle_ms = spread.throttle_time_ms(row["q"], now_ms=clock.now_ms)
    assert throttle_ms == row["throttle_s"] * 1000
    assert spread.throttle_time_ms(row["q"], now_ms=clock.now_ms + throttle_ms - 1) > 0
    clock.advance(throttle_ms)
    assert spread.rate(now_ms=clock.now_ms) == pytest.approx(row["avg_after_discarding_12"])
    assert spread.throttle_time_ms(row["q"], now_ms=clock.now_ms) == 0


def test_spread_rate_takes_back_what_it_was_given(clock: FakeClock) -> None:
    spread = SpreadRate(11, 1_000, now_ms=clock.now_ms)
    spread.record(30, 2, now_ms=clock.now_ms)
    spread.record(-12, 2, now_ms=clock.now_ms)
    assert spread.total(now_ms=clock.now_ms) == 18
    spread.record(-100, 2, now_ms=clock.now_ms)
    assert spread.total(now_ms=clock.now_ms) == 0


def test_a_limit_of_zero_and_rounding_are_as_in_java() -> None:
    assert [round_half_up(x) for x in (0.5, 1.5, 2.5, 2.4999)] == [1, 2, 3, 2]
    assert throttle_time_ms(1.0, 0.0, 1_000) == MAX_THROTTLE_MS
    assert throttle_time_ms(0.0, 0.0, 1_000) == 0


@pytest.mark.parametrize(
    ("value", "clamped"),
    [(math.inf, MAX_THROTTLE_MS), (1e300, MAX_THROTTLE_MS), (math.nan, 0), (-5.0, 0), (0.4, 0), (0.5, 1)],
)
def test_any_quotient_becomes_a_wire_value(value: float, clamped: int) -> None:
    assert clamp_throttle_ms(value) == clamped


def test_an_obedient_client_is_throttled_again_until_its_burst_leaves(clock: FakeClock) -> None:
    # Seen on a broker: the average does not decay between samples.
    rate = SampledRate(11, 1_000, now_ms=clock.now_ms)
    seen = []
    rate.record(15_000, now_ms=clock.now_ms)
    while (wait_ms := rate.throttle_time_ms(1_000, now_ms=clock.now_ms)) > 0:
        seen.append(wait_ms)
        clock.advance(wait_ms)
        rate.record(0, now_ms=clock.now_ms)
    assert seen == [5_000, 5_000, 5_000]


def test_a_sample_lives_from_its_last_event_not_its_first(clock: FakeClock) -> None:
    rate = SampledRate(11, 1_000, now_ms=clock.now_ms)
    rate.record(10, now_ms=clock.now_ms)
    rate.record(10, now_ms=clock.advance(999))
    assert rate.total(now_ms=clock.advance(10_999)) == 20
    assert rate.total(now_ms=clock.advance(1)) == 0


@pytest.mark.parametrize("look_every_ms", [None, 1_000, 700])
def test_memory_is_bounded_by_the_number_of_windows(look_every_ms: int | None, clock: FakeClock) -> None:
    rate = SampledRate(3, 1_000, now_ms=clock.now_ms)
    for i in range(2_000):
        clock.advance(look_every_ms or 1_000)
        if look_every_ms:
            rate.rate(now_ms=clock.now_ms)
        if i % 3 != 1:
            rate.record_and_check(1, 1e9, 2e9, now_ms=clock.now_ms)
        assert len(rate._samples) <= 4 * 3
