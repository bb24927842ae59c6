from typing import Any

import pytest

from quotas.entities import QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import RateSettings
from quotas.request_time import RequestTimeQuotas
from testkit.clock import FakeClock
from testkit.scenarios import scenarios, steps

NS_PER_PERCENT_SECOND = 10_000_000


def _quotas(percent: float, **settings: Any) -> RequestTimeQuotas:
    limits = Limits()
    limits.set(QuotaEntity("u"), QuotaKey.REQUEST_PERCENTAGE, percent)
    return RequestTimeQuotas(limits, RateSettings(**settings))


@pytest.mark.parametrize("row", [p for p in scenarios("rate") if "cap_ms" in p.values[0]])
def test_scenario_rate(row: dict[str, Any], clock: FakeClock) -> None:
    start_ms = clock.now_ms
    quotas = _quotas(row["q"], window_num=row["S"], window_ms=row["W"] * 1000)
    for at_ms, verb, percent, throttle_ms in steps(row):
        assert verb == "rec"
        time_ns = round(percent * NS_PER_PERCENT_SECOND)
        assert quotas.record("u", "c", time_ns, now_ms=start_ms + at_ms) == throttle_ms


def test_one_percent_is_ten_milliseconds_of_every_second(clock: FakeClock) -> None:
    quotas = _quotas(1)
    for _ in range(60):  # eleven samples lie within ten seconds when they come on the second
        assert quotas.record("u", "c", 10_000_000 * 10 // 11, now_ms=clock.advance(1_000)) == 0
    (row,) = quotas.snapshot(now_ms=clock.now_ms)
    assert row.utilisation == pytest.approx(1, abs=0.01)


def test_time_spent_after_the_answer_weighs_on_the_next_request(clock: FakeClock) -> None:
    quotas = _quotas(1)
    quotas.record_unchecked("u", "c", 105_000_000, now_ms=clock.now_ms)
    assert quotas.record("u", "c", 0, now_ms=clock.now_ms) == 500


def test_the_wait_is_capped_at_one_window(clock: FakeClock) -> None:
    assert _quotas(1, window_ms=2_000).record("u", "c", 10**12, now_ms=clock.now_ms) == 2_000


def test_exempt_time_is_counted_and_nobody_waits_for_it(clock: FakeClock) -> None:
    quotas = _quotas(1)
    quotas.record_exempt(10**12)
    assert quotas.exempt_ns == 10**12
    assert quotas.record("u", "c", 0, now_ms=clock.now_ms) == 0


def test_without_a_quota_nothing_is_counted(clock: FakeClock) -> None:
    quotas = RequestTimeQuotas(Limits(), RateSettings())
    assert quotas.record("u", "c", 10**12, now_ms=clock.now_ms) == 0
    quotas.record_unchecked("u", "c", 10**12, now_ms=clock.now_ms)
    assert quotas.snapshot(now_ms=clock.now_ms) == []
