"""Jobs find the same in one process and as tasks of Spark, however many parts they have."""

from __future__ import annotations

import datetime
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.cli import main
from pipeline.client_tables import tables
from pipeline.client_tables.tables import ClientRows, find_clients
from pipeline.spark.runner import InProcess, OnSpark, cores_of
from pipeline.storage.compacted_days import published_days
from pipeline.storage.layout import FINE_BUCKETS, bucket_of
from testkit.pipeline.client_days import write_client_tables
from testkit.pipeline.compacted_days import DAY, write_compacted
from testkit.pipeline.local_session import LocalSession
from tests.pipeline.conftest import Session

CLIENTS = 12
DAYS = 4
BIG = 2**60


@pytest.fixture
def out(tmp_path: Path) -> str:
    """Days of clients, some throttled; on one day a gateway's records are incomplete."""
    rng = np.random.default_rng(5)
    rows = [
        {
            "date": DAY + datetime.timedelta(days=day),
            "gw": gw,
            "client_id": f"c{client}",
            "api": api,
            "t": sorted(rng.choice(86_400, 60, replace=False).tolist()),
            # Sums of these depend on their order.
            "offered": (rng.random(60) * 10.0 ** rng.integers(0, 9, 60)).tolist(),
            "quota": [None if client % 3 else 5e4] * 60,
            "censored": (rng.random(60) < 0.1).tolist(),
        }
        for day in range(DAYS)
        for client in range(CLIENTS)
        for gw in ("a", "b")
        for api in ("produce", "fetch")
        if (client + day) % 7 and (gw == "a" or client % 2)
    ]
    days = [DAY + datetime.timedelta(days=day) for day in range(DAYS)]
    for date in days:
        shares = {"a": 1.0, "b": 0.4 if date == days[1] else 1.0}
        write_compacted(tmp_path / "out", [row for row in rows if row["date"] == date], gateways=shares)
    write_client_tables(tmp_path / "out")
    return str(tmp_path / "out")


def found(out: str, to: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[Any, ...]:
    """What the three jobs find, without the time at which they did."""
    where = ("--plan", str(to / "plan.json"))
    assert main(["recommend", "--out", out, "--history", str(DAYS), "--allow-gaps", *where, *more]) == 0
    whole = json.loads((to / "plan.json").read_text())
    assert main(["recommend", "--out", out, "--history", str(DAYS), *where, *more]) == 0
    plan = json.loads((to / "plan.json").read_text())
    assert main(["backtest", "--out", out, "--test", "2", "--result", str(to / "backtest"), *more]) == 0
    backtest = json.loads((to / "backtest" / "backtest.json").read_text())
    assert main(["report", "--out", out, "--to-dir", str(to / "report"), *more]) == 0
    report = json.loads((to / "report" / "report.json").read_text())
    page = (to / "report" / "index.html").read_text().count("<svg")
    capsys.readouterr()
    for each in (whole, plan, report):
        del each["made_at"]
    return whole, plan, backtest, report, page


@pytest.mark.slow
def test_jobs_find_the_same_to_the_last_digit_however_many_parts_they_have(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    once = found(out, tmp_path / "once", capsys)
    whole, plan, _, report, page = once
    assert len(plan["entries"]) == len(whole["entries"]) == 2 * CLIENTS
    assert [each["clients"] for each in plan["left_out"]] == [CLIENTS // 2]
    assert plan["entries"] != whole["entries"]
    assert len(report["clients"]) == 2 * CLIENTS
    assert page > 0
    monkeypatch.setattr(tables, "ROWS_PER_PART", 8)
    assert found(out, tmp_path / "parts", capsys) == once
    # As on a cluster, where parts are other processes.
    monkeypatch.setattr("pipeline.spark.session.open_session", lambda *_, **__: LocalSession(3))
    assert found(out, tmp_path / "spark", capsys, "--master", "spark://there:7077") == once


@pytest.mark.spark
def test_jobs_find_the_same_as_tasks_of_spark(
    spark: Any, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    once = found(out, tmp_path / "once", capsys)
    monkeypatch.setattr("pipeline.spark.session.open_session", lambda *_, **__: Session(spark))
    assert cores_of(spark) == 2
    assert found(out, tmp_path / "spark", capsys, "--master", "local[2]") == once


@pytest.mark.slow
def test_a_part_has_all_rows_of_its_clients_and_opens_no_file_without_them(out: str) -> None:
    rows = find_clients(out, published_days(out), "client_day")
    columns = ("bucket", "user", "client_id", "api", "date")
    everything = sorted(tuple(row.values()) for table in rows.read(columns) for row in table.to_pylist())
    parts = rows.parts(InProcess(8))
    assert (parts[0].buckets.start, parts[-1].buckets.stop, len(parts)) == (0, FINE_BUCKETS, 8)
    assert all(before.buckets.stop == after.buckets.start for before, after in pairwise(parts))
    by_part = [[row for table in part.read(columns) for row in table.to_pylist()] for part in parts]
    for part, own in zip(parts, by_part, strict=True):
        assert all(row["bucket"] == bucket_of(row["user"], row["client_id"], row["api"]) for row in own)
        assert all(row["bucket"] in part.buckets for row in own)
    assert sorted(tuple(row.values()) for own in by_part for row in own) == everything
    (none,) = rows.divided(InProcess(), [range(min(row[0] for row in everything))])
    assert none.files == ()


def test_small_tables_are_one_part_for_each_core() -> None:
    assert [part.buckets for part in ClientRows(()).parts(InProcess(3))] == [
        range(341),
        range(341, 682),
        range(682, 1024),
    ]


@pytest.mark.parametrize("runner", [InProcess(2), OnSpark(LocalSession(2))])
def test_results_come_in_the_order_of_parts(runner: InProcess | OnSpark) -> None:
    assert runner.cores == 2
    assert list(runner.run(lambda part: [part, part + BIG], range(5))) == [
        each for part in range(5) for each in (part, part + BIG)
    ]
    assert list(runner.run(lambda part: [part], [])) == []
