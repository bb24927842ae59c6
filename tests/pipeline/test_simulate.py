"""The job: workers' rows are the kernels' numbers, and the summary is of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.candidates import Candidates
from pipeline.cli import main
from pipeline.demand import demands
from pipeline.kernels.token_bucket import strict_token_bucket
from pipeline.replay import Algorithm, Model, ReplaySettings
from pipeline.simulate import simulate_batch, simulator
from quotas.entities import QuotaEntity, QuotaKey
from tests.support.packed_days import packed_rows, write_packed

STRICT = ReplaySettings(Algorithm.TOKEN_BUCKET, Model.STRICT)
ROWS: list[dict[str, Any]] = [
    {"t": [0, 1, 2, 50], "offered": [900.0, 900.0, 900.0, 5.0], "client_id": "big"},
    {"t": [10], "offered": [3.0], "client_id": "small"},
    {"t": [], "offered": [], "client_id": "idle"},
    {
        "api": "mutation",
        "t": [7],
        "offered": [40.0],
        "e_ms": [7_000, 7_001],
        "e_units": [30, 10],
        "client_id": "admin",
    },
]


def test_each_client_has_a_row_for_each_candidate() -> None:
    (demand, *_) = demands(packed_rows(ROWS))
    (found,) = simulate_batch([demand], Candidates(values=(50.0, 100.0)), STRICT)
    rows = found.to_pylist()
    assert [(row["client_id"], row["candidate"], row["quota"]) for row in rows] == [
        ("big", 0, 50.0),
        ("big", 1, 100.0),
        ("small", 0, 50.0),
        ("small", 1, 100.0),
        ("idle", 0, 50.0),
        ("idle", 1, 100.0),
    ]
    expected = strict_token_bucket(demand.by_second(), np.array([50.0, 100.0]))
    assert [row["throttled"] for row in rows] == expected.throttled.ravel().tolist()
    assert [row["throttled_units"] for row in rows] == expected.throttled_units.ravel().tolist()
    assert rows[0]["units"] == 2_705.0
    assert rows[0]["throttled_units"] == 1_800.0


def test_whom_a_plan_does_not_limit_is_not_throttled() -> None:
    plan = Candidates(plan=((QuotaEntity(user="u", client_id="small"), QuotaKey.PRODUCER_BYTE_RATE, 1.0),))
    (demand, *_) = demands(packed_rows(ROWS))
    (found,) = simulate_batch([demand], plan, ReplaySettings())
    rows = {row["client_id"]: row for row in found.to_pylist()}
    assert rows["big"]["quota"] is None
    assert rows["big"]["throttled"] == 0
    assert rows["small"]["quota"] == 1.0


def test_all_apis_of_a_batch_are_replayed() -> None:
    found = [
        row
        for batch in simulator(Candidates(values=(1.0,)), STRICT)(iter([packed_rows(ROWS)]))
        for row in batch.to_pylist()
    ]
    assert {(row["api"], row["client_id"]): row["throttled"] for row in found} == {
        ("produce", "big"): 3.0,
        ("produce", "small"): 0.0,
        ("produce", "idle"): 0.0,
        ("mutation", "admin"): 1.0,
    }


@pytest.mark.spark
def test_the_job_writes_every_row_and_prints_a_summary(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_packed(tmp_path, ROWS)
    argv = ["simulate", "--out", str(tmp_path), "--candidates", "value:50", "--run", "one"]
    assert main([*argv, "--model", "strict", "--algo", "token_bucket"]) == 0
    said = capsys.readouterr().out
    # Of three clients that want something the big one's waits: 1,800 of 2,705 bytes.
    assert "produce" in said
    assert "66.47%" in said
    rows = spark.read.parquet(str(tmp_path / "results" / "sim" / "run=one")).collect()
    assert {(row["api"], row["client_id"]): row["throttled"] for row in rows} == {
        ("produce", "big"): 2.0,
        ("produce", "small"): 0.0,
        ("produce", "idle"): 0.0,
        ("mutation", "admin"): 0.0,
    }


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        (["--candidates", "grid:x"], "expected grid"),
        (["--model", "deferral", "--algo", "rate"], "not of rate"),
        (["--window-num", "0"], "--window-num"),
        ([], "no packed day"),
    ],
)
def test_what_cannot_be_done_is_said_before_spark_starts(
    more: list[str], fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--out", str(tmp_path), *more]) == 1
    assert fault in capsys.readouterr().err
