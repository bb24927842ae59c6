"""Rules see the days before and no other, and are judged on the day after."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.backtest_rules import DAY_NUMBERS, HISTORY_DAYS, RULES, Judged, backtest

Floats = NDArray[np.float64]
TARGET = 0.01


def known(needs: list[list[float]], **more: list[list[float]]) -> dict[str, Floats]:
    """Numbers of clients' days; what is not said is the need."""
    need = np.array(needs)
    return {name: np.array(more[name]) if name in more else need.copy() for name in DAY_NUMBERS}


def share_of(need: Floats, quotas: Floats) -> Floats:
    """A made-up replay: at the need the target waits, and ten times as much at half of it."""
    return TARGET * (need[:, :, None] / quotas) ** np.log2(10)


def judged(numbers: dict[str, Floats], tested: int) -> tuple[dict[str, Judged], dict[str, Judged]]:
    need = numbers["need"][:, -tested:]
    plain, equal = backtest(numbers, tested, TARGET, lambda quotas: share_of(need, quotas))
    return {each.name: each for each in plain}, {each.name: each for each in equal}


def test_the_oracle_knows_the_days_own_need() -> None:
    plain, _ = judged(known([[1.0, 5.0], [8.0, 2.0]]), 1)
    oracle = plain["oracle"]
    assert oracle.mean_throttled == pytest.approx(TARGET)
    assert (oracle.above, oracle.geometric, oracle.by_sum) == (0.0, pytest.approx(1.0), pytest.approx(1.0))


def test_a_rule_is_judged_by_harm_and_by_what_it_allocates() -> None:
    # One client needs twice as much as yesterday, the other half.
    plain, _ = judged(known([[1.0, 2.0], [4.0, 2.0]]), 1)
    yesterday = plain["yesterday's need"]
    assert yesterday.geometric == pytest.approx(1.15)
    assert yesterday.by_sum == pytest.approx(1.15 * 5 / 4)
    assert yesterday.above == 0.5
    assert yesterday.mean_throttled == pytest.approx((0.1 + 0.001) / 2 / 1.15 ** np.log2(10))


def test_no_rule_sees_the_day_that_it_is_judged_on() -> None:
    before = [[3.0, 1.0, 2.0, 7.0], [1.0, 1.0, 1.0, 1.0]]
    one = known([[*row, 5.0] for row in before])
    other = known([[*row, 5.0] for row in before])
    for name in DAY_NUMBERS:
        if name not in ("need", "units"):
            other[name][:, -1] = 1e9
    plain, _ = judged(one, 1)
    again, _ = judged(other, 1)
    assert plain == again


def test_a_rule_sees_no_more_than_a_week() -> None:
    old, new = [9e9, *[1.0] * HISTORY_DAYS, 1.0], [1.0, *[1.0] * HISTORY_DAYS, 1.0]
    assert judged(known([old]), 1)[0] == judged(known([new]), 1)[0]


@pytest.mark.parametrize(
    ("rule", "quota"),
    [
        ("largest daily need", 8.0),
        ("decayed p90 of daily needs", 4.0),
        ("yesterday's need", 4.0),
        ("daily mean", 11 / 4),
    ],
)
def test_a_rule_gives_what_it_is_called(rule: str, quota: float) -> None:
    # Of four days the last counts 8/15, the first 1/15.
    (found,) = (each for each in RULES if each.name == rule)
    numbers = known([[8.0, 1.0, 2.0, 4.0]], mean=[[2.0, 3.0, 4.0, 2.0]])
    assert found.quota(numbers).tolist() == [quota]


def test_days_on_which_a_client_was_not_seen_count_for_nothing() -> None:
    hole = float("nan")
    numbers = known([[2.0, hole, 3.0], [hole, hole, 3.0], [2.0, 2.0, hole]])
    plain, _ = judged(numbers, 1)
    # Only the first was there before and on the day itself; yesterday's need is made up for by what is known.
    assert plain["yesterday's need"].by_sum == pytest.approx(1.15 * 2 / 3)
    assert plain["largest daily need"].by_sum == pytest.approx(1.15 * 2 / 3)


def test_equal_harm_finds_the_factor_with_which_the_mean_meets_the_target() -> None:
    rng = np.random.default_rng(1)
    numbers = known(np.exp(rng.normal(0, 0.5, (50, 10))).tolist())
    _, equal = judged(numbers, 3)
    assert len(equal) == len(RULES)
    for each in equal.values():
        assert 0.98 * TARGET <= each.mean_throttled <= TARGET * 1.0001
    # Quotas that follow the client need less than quotas that only know the largest day.
    assert equal["largest daily need"].factor < equal["yesterday's need"].factor
