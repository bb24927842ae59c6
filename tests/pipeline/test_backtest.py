"""The table, from packed days on; and its parts."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.backtest import History, day_stats, evaluator, shares_of
from pipeline.backtest_rules import DAY_NUMBERS, OURS
from pipeline.cli import main
from pipeline.demand import demands
from pipeline.kernels.deferral import deferred, needs
from tests.support.packed_days import DAY, packed_rows, write_packed


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


def test_a_day_is_told_in_a_few_numbers() -> None:
    seconds, offered = [0, 1, 2, 70], [10.0, 20.0, 30.0, 60.0]
    (demand,) = demands(packed_rows([{"t": seconds, "offered": offered}, {"t": [], "offered": []}]))
    (row,) = day_stats(demand, 0.01).to_pylist()
    assert row["need"] == needs(demand.by_second(), 0.01, burst_s=10.0)[0]
    assert row["units"] == 120.0
    assert row["mean"] == 120 / 86_400
    assert (row["peak_1s"], row["peak_10s"], row["peak_60s"]) == (60.0, 6.0, 1.0)
    assert row["p99_active"] == np.percentile(offered, 99)
    assert row["p90_minute"] == 0.0


def test_shares_are_those_of_the_deferral_model() -> None:
    (demand,) = demands(packed_rows(days(1)))
    quotas = np.array([1.0, 5.0, 50.0])
    wanted = {(("gw", -1, "u", f"c{i}", "produce"), DAY): quotas * (i + 1) for i in (0, 2)}
    found = shares_of(demand, wanted)
    assert found.keys() == wanted.keys()
    ragged = demand.by_second()
    for i in (0, 2):
        expected = (
            deferred(ragged, quotas * (i + 1), burst_s=10.0).throttled_units[i] / ragged.total_units()[i]
        )
        np.testing.assert_array_equal(found[("gw", -1, "u", f"c{i}", "produce"), DAY], expected)


def test_quotas_go_to_their_clients_and_days_and_shares_come_back() -> None:
    batches = list(demands(packed_rows(days(3))))
    history = History.of(row for demand in batches for row in day_stats(demand, 0.01).to_pylist())
    assert history.known["need"].shape == (3, 3)
    assert set(history.known) == set(DAY_NUMBERS)
    evaluate = evaluator(history, 2, lambda table: (shares_of(demand, table) for demand in batches))
    oracle = history.known["need"][:, 1:, None]
    quotas = np.concatenate([oracle, oracle * 0.5, oracle * 100], axis=2)
    quotas[0, 0] = np.nan
    shares = evaluate(quotas)
    assert np.isnan(shares[0, 0]).all()
    seen = np.isfinite(shares[:, :, 0])
    assert seen.sum() == 5
    assert (shares[seen][:, 0] <= 0.01).all()
    assert (shares[seen][:, 1] > 0.01).all()
    assert (shares[seen][:, 2] == 0).all()


@pytest.mark.spark
def test_the_job_keeps_the_table(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_packed(tmp_path, days(4))
    folder = tmp_path / "result"
    assert main(["backtest", "--out", str(tmp_path), "--test", "2", "--result", str(folder)]) == 0
    told = json.loads((folder / "backtest.json").read_text())
    rules = {rule["name"]: rule for rule in told["rules"]}
    assert rules["oracle"]["mean_throttled"] == pytest.approx(0.01, rel=0.1)
    assert rules["1 s peak"]["geometric"] > rules[OURS]["geometric"] > 1
    # The same without Spark.
    batches = list(demands(packed_rows(days(4))))
    history = History.of(row for demand in batches for row in day_stats(demand, 0.01).to_pylist())
    evaluate = evaluator(history, 2, lambda table: (shares_of(demand, table) for demand in batches))
    oracle = evaluate(history.known["need"][:, 2:, None])
    assert rules["oracle"]["mean_throttled"] == pytest.approx(oracle.mean())
    page = (folder / "backtest.md").read_text()
    assert page in capsys.readouterr().out
    assert page.count("| 10 s peak |") == 2


def test_one_day_cannot_be_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_packed(tmp_path, days(1))
    assert main(["backtest", "--out", str(tmp_path)]) == 1
    assert "at least one is needed" in capsys.readouterr().err
