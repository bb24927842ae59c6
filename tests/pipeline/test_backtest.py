"""Rules see the days before and are judged on the day after; and the table, from compacted days on."""

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.cli import main
from pipeline.errors import Exit
from pipeline.recommend.backtest import History, evaluator, judged_days, recommender
from pipeline.recommend.backtest_rules import DAY_NUMBERS, OURS, RECORDED, RULES, Judged, Ships, backtest
from pipeline.recommend.doubt import Doubt, LeftDays
from pipeline.recommend.recommendation import HISTORY_DAYS, RecommendationSettings
from quotas.entities import QuotaKey
from testkit.pipeline.client_days import client_days_of, left_of, write_client_tables
from testkit.pipeline.compacted_days import DAY, write_compacted

Floats = NDArray[np.float64]
TARGET = 0.01


def known(rates: list[list[float]], **more: list[list[float]]) -> dict[str, Floats]:
    """Numbers of clients' days; what is not said is the required rate."""
    required = np.array(rates)
    recorded = {"active_s": 1_000.0, "quota": np.nan}
    numbers = {name: required.copy() for name in DAY_NUMBERS} | {name: np.zeros(required.shape) for name in RECORDED}
    numbers |= {name: np.full(required.shape, value) for name, value in recorded.items()}
    return numbers | {name: np.array(values) for name, values in more.items()}


def ships(numbers: dict[str, Floats], **options: Any) -> Ships:
    """The rule that ships, on these numbers of clients with a name each."""
    clients, count = numbers["required_rate"].shape
    names = {("gw", -1, "u", f"c{i}", "produce"): i for i in range(clients)}
    dates = [(DAY + datetime.timedelta(days=day)).isoformat() for day in range(count)]
    capacity = options.pop("capacity", {})
    return recommender(History(names, dates, numbers, np.empty(0), {}), RecommendationSettings(**options), capacity)


def share_of(required: Floats, quotas: Floats) -> Floats:
    """A made-up replay: at the required rate the target waits, and ten times as much at half of it."""
    return TARGET * (required[:, :, None] / quotas) ** np.log2(10)


def judged(numbers: dict[str, Floats], tested: int) -> tuple[dict[str, Judged], dict[str, Judged]]:
    required = numbers["required_rate"][:, -tested:]
    plain, equal = backtest(numbers, tested, TARGET, lambda quotas: share_of(required, quotas), ships(numbers))
    return {each.name: each for each in plain}, {each.name: each for each in equal}


def test_a_rule_is_judged_by_harm_and_allocation_and_the_oracle_knows_the_day() -> None:
    plain, _ = judged(known([[1.0, 5.0], [8.0, 2.0]]), 1)
    oracle = plain["oracle"]
    assert oracle.mean_throttled == pytest.approx(TARGET)
    assert (oracle.above, oracle.geometric, oracle.by_sum) == (0.0, pytest.approx(1.0), pytest.approx(1.0))
    # One client needs twice as much as yesterday, the other half.
    plain, _ = judged(known([[1.0, 2.0], [4.0, 2.0]]), 1)
    yesterday = plain["yesterday's required rate"]
    assert yesterday.geometric == pytest.approx(1.15)
    assert yesterday.by_sum == pytest.approx(1.15 * 5 / 4)
    assert yesterday.above == 0.5
    assert yesterday.mean_throttled == pytest.approx((0.1 + 0.001) / 2 / 1.15 ** np.log2(10))


def test_a_rule_sees_the_week_before_the_day_that_it_is_judged_on() -> None:
    before = [[3.0, 1.0, 2.0, 7.0], [1.0, 1.0, 1.0, 1.0]]
    one = known([[*row, 5.0] for row in before])
    other = known([[*row, 5.0] for row in before])
    for name in DAY_NUMBERS:
        if name not in ("required_rate", "units"):
            other[name][:, -1] = 1e9
    plain, _ = judged(one, 1)
    again, _ = judged(other, 1)
    assert plain == again
    old, new = [9e9, *[1.0] * HISTORY_DAYS, 1.0], [1.0, *[1.0] * HISTORY_DAYS, 1.0]
    assert judged(known([old]), 1)[0] == judged(known([new]), 1)[0]


@pytest.mark.parametrize(("rule", "quota"), [
    ("largest daily required rate", 8.0), ("decayed p90 of daily required rates", 4.0),
    ("yesterday's required rate", 4.0), ("daily mean", 11 / 4),
])  # fmt: skip
def test_a_rule_gives_what_it_is_called(rule: str, quota: float) -> None:
    # Of four days the last counts 8/15, the first 1/15.
    (found,) = (each for each in RULES if each.name == rule)
    numbers = known([[8.0, 1.0, 2.0, 4.0]], mean=[[2.0, 3.0, 4.0, 2.0]])
    assert found.quota(numbers).tolist() == [quota]


def test_days_on_which_a_client_was_not_seen_count_for_nothing() -> None:
    hole = float("nan")
    numbers = known([[2.0, hole, 3.0], [hole, hole, 3.0], [2.0, 2.0, hole]])
    plain, _ = judged(numbers, 1)
    # Only the first was there before and on the day itself; yesterday's rate is made up for by what is known.
    assert plain["yesterday's required rate"].by_sum == pytest.approx(1.15 * 2 / 3)
    assert plain["largest daily required rate"].by_sum == pytest.approx(1.15 * 2 / 3)


def test_equal_harm_finds_the_factor_with_which_the_mean_meets_the_target() -> None:
    rng = np.random.default_rng(1)
    numbers = known(np.exp(rng.normal(0, 0.5, (50, 10))).tolist())
    _, equal = judged(numbers, 3)
    assert len(equal) == len(RULES)
    for each in equal.values():
        assert 0.98 * TARGET <= each.mean_throttled <= TARGET * 1.0001
    # Quotas that follow the client need less than quotas that only know the largest day.
    assert equal["largest daily required rate"].factor < equal["yesterday's required rate"].factor


# -- what ships ------------------------------------------------------------------------------------------------------
def quotas_of(numbers: dict[str, Floats], tested: int, horizon: int, **options: Any) -> list[list[float]]:
    """What the rule that ships would have set, by client and test day."""
    seen: list[Floats] = []

    def evaluate(quotas: Floats) -> Floats:
        seen.append(quotas)
        return np.full(quotas.shape, TARGET)

    backtest(numbers, tested, TARGET, evaluate, ships(numbers, **options), horizons=[horizon])
    found: list[list[float]] = seen[0][:, :, 1].tolist()
    return found


def test_what_ships_is_judged_with_its_hysteresis_its_guesses_and_its_ends() -> None:
    # Backtest had a rule of its own, which forgot each day what it had set the day before.
    steady = known([[1_000.0, 1_000.0, 1_020.0, 990.0, 1_000.0]])
    assert quotas_of(steady, 4, 1) == [[1_250.0] * 4]
    falling = known([[1_000.0, 1_000.0, 100.0, 100.0, 100.0, 100.0]])
    # Four times less at most in a day.
    assert quotas_of(falling, 4, 1) == [[1_250.0, 1_250.0, 1_250.0, 313.0]]
    muted = known([[900.0] * 3], censored_s=[[500.0] * 3], quota=[[1_000.0] * 3])
    assert quotas_of(muted, 1, 1) == [[1_200.0]]
    by_its_group = known(
        [[900.0] * 3],
        censored_s=[[500.0] * 3],
        quota=[[1_000.0] * 3],
        throttle_ms=[[80.0] * 3],
        beside_ms=[[80.0] * 3],
    )
    assert quotas_of(by_its_group, 1, 1) == [[1_000.0]]
    produce = {QuotaKey.PRODUCER_BYTE_RATE: 1_100.0}
    assert quotas_of(muted, 1, 1, capacity=produce) == [[1_100.0]]


def test_quotas_stay_for_their_horizon() -> None:
    rising = known([[100.0, 200.0, 300.0, 400.0, 500.0]])
    assert quotas_of(rising, 4, 1) == [[125.0, 250.0, 375.0, 500.0]]
    assert quotas_of(rising, 4, 2) == [[125.0, 125.0, 375.0, 375.0]]
    assert quotas_of(rising, 4, 7) == [[125.0] * 4]
    plain, _ = backtest(
        rising,
        4,
        TARGET,
        lambda quotas: share_of(rising["required_rate"][:, 1:], quotas),
        ships(rising),
        horizons=[1, 7],
    )
    week = {each.name: each for each in plain if each.horizon == 7}
    day = {each.name: each for each in plain if each.horizon == 1}
    assert week[OURS].mean_throttled > 2 * day[OURS].mean_throttled
    assert week.keys() | {"oracle"} == day.keys()


# -- over compacted days ---------------------------------------------------------------------------------------------
def days(count: int, *, seed: int = 1, clients: int = 3) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "date": DAY + datetime.timedelta(days=day),
            "client_id": f"c{client}",
            "t": sorted(rng.choice(86_400, 300, replace=False).tolist()),
            "offered": (rng.integers(1, 100, 300) * (client + 1)).astype(float).tolist(),
        }
        for day in range(count)
        for client in range(clients)
    ]


def test_quotas_go_to_their_clients_and_days_and_shares_come_back() -> None:
    rows = client_days_of(days(3))
    history = History.of(rows, {})
    assert history.known["required_rate"].shape == (3, 3)
    name, date = rows[0]["client_id"], rows[0]["date"].isoformat()
    left = left_of(rows, Doubt("gw", date, "had its clock set back by 2 s", lacks=False))
    assert {client for _, client in left.days} == {"c0", "c1", "c2"}
    without = History.of(rows, {}, left).known["required_rate"]
    assert np.isnan(without).sum() == 3
    assert np.isnan(without[:, history.dates.index(date)]).all()
    only = LeftDays({("u", name): {date: ("gw",)}}, ())
    assert np.isnan(History.of(rows, {}, only).known["required_rate"]).sum() == 1
    assert set(history.known) == {*DAY_NUMBERS, *RECORDED}
    oracle = history.known["required_rate"][:, 1:, None]
    quotas = np.concatenate([oracle, oracle * 0.5, oracle * 100], axis=2)
    quotas[0, 0] = np.nan
    shares = evaluator(history.required[:, -2:])(quotas)
    assert np.isnan(shares[0, 0]).all()
    seen = np.isfinite(shares[:, :, 0])
    assert seen.sum() == 5
    assert shares[seen][:, 0] == pytest.approx(0.01)
    assert (shares[seen][:, 1] > 0.01).all()
    assert (shares[seen][:, 2] == 0).all()


@pytest.mark.slow
def test_the_job_keeps_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_compacted(tmp_path, days(4))
    write_client_tables(tmp_path)
    folder = tmp_path / "result"
    assert main(["backtest", "--out", str(tmp_path), "--test", "2", "--horizons", "1", "--result", str(folder)]) == 0
    found = json.loads((folder / "backtest.json").read_text())
    rules = {rule["name"]: rule for rule in found["rules"]}
    assert rules["oracle"]["mean_throttled"] == pytest.approx(0.01, rel=0.1)
    assert rules["1 s peak"]["geometric"] > rules[OURS]["geometric"] > 1
    # The same without files.
    history = History.of(client_days_of(days(4)), {})
    plain, _ = judged_days(history, 2, RecommendationSettings(0.01))
    again = {judged.name: judged for judged in plain}
    assert rules[OURS]["geometric"] == pytest.approx(again[OURS].geometric)
    page = (folder / "backtest.md").read_text()
    assert page in capsys.readouterr().out
    assert page.count("| 10 s peak |") == 2


@pytest.mark.slow
def test_the_job_judges_the_rule_and_the_margin_that_it_is_given(tmp_path: Path) -> None:
    rows = days(7)
    for row in rows[:3]:  # of the first day
        row["offered"] = [2 * units for units in row["offered"]]
    write_compacted(tmp_path, rows)
    write_client_tables(tmp_path)
    argv = [
        "backtest",
        "--out",
        str(tmp_path),
        "--test",
        "1",
        "--horizons",
        "1",
        "--result",
        str(tmp_path / "result"),
    ]

    def geometric(*more: str) -> float:
        assert main([*argv, *more]) == 0
        found = json.loads((tmp_path / "result" / "backtest.json").read_text())
        return float(next(rule["geometric"] for rule in found["rules"] if rule["name"] == OURS))

    usual = geometric()
    # Quotas are whole bytes.
    assert geometric("--margin", "3") == pytest.approx(3 / 1.25 * usual, rel=0.05)
    assert geometric("--rule", "largest") > 1.5 * usual
    assert main([*argv, "--margin", "0.9"]) == Exit.WRONG_ARGUMENTS
