"""The report over packed days, by Spark."""

from __future__ import annotations

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline import report
from pipeline.errors import JobError
from pipeline.layout import BUCKETS, MANIFEST
from pipeline.packed_files import write_packed_file
from quotas.usage_record import OTHER
from tests.support.packed_rows import packed_batch

pytestmark = pytest.mark.spark


def publish(out: Path, day: date, *rows: dict[str, Any], completeness: float = 1.0) -> None:
    """A packed day as `pack` leaves it."""
    folder = out / "packed" / f"date={day}" / "run=000001"
    folder.mkdir(parents=True)
    write_packed_file(
        folder / "part-0.parquet",
        pa.Table.from_batches([packed_batch(*({"date": day, **row} for row in rows))]),
    )
    seconds = sum(len(row["t"]) for row in rows)
    told = {
        "rows": seconds,
        "keys": len(rows),
        "completeness": completeness,
        "batches": [0],
        "buckets": BUCKETS,
    }
    (folder / MANIFEST).write_text(json.dumps(told))


def arguments(*given: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    return parser.parse_args([str(each) for each in given])


def test_clients_are_added_up_over_days_and_brokers_the_largest_first(spark: Any, tmp_path: Path) -> None:
    monday, tuesday = date(2026, 11, 16), date(2026, 11, 17)
    small = {"client_id": "small", "t": [1], "offered": [5.0]}
    rest = {"client_id": OTHER, "t": [1], "offered": [1e9]}
    publish(tmp_path, monday, {"node": 1, "t": [1], "offered": [10.0]}, small, rest)
    publish(
        tmp_path,
        tuesday,
        {"node": 1, "t": [3, 4], "offered": [20.0, 30.0]},
        {"node": 2, "t": [3], "offered": [40.0]},
        {"api": "mutation", "node": -1, "t": [9], "offered": [7.0]},
        completeness=0.99,
    )
    found = report.make(spark, str(tmp_path))
    assert [(client["api"], client["client_id"], client["offered"]) for client in found.clients] == [
        ("produce", "c", 100.0),
        ("produce", "small", 5.0),
        ("produce", OTHER, 1e9),
        ("mutation", "c", 7.0),
    ]
    assert found.completeness == 0.99
    largest = found.clients[0]
    assert (largest["nodes"], largest["active_s"], largest["peak_10s"]) == (2, 4, 9.0)
    only = report.make(spark, str(tmp_path), "2026-11-17", "2026-11-17")
    assert [client["offered"] for client in only.clients] == [90.0, 7.0]


@pytest.mark.usefixtures("spark")
def test_the_job_leaves_a_page_and_a_file_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(tmp_path, date(2026, 11, 16), {"t": [1], "offered": [10.0]})
    assert report.run(arguments("--out", tmp_path, "--to-dir", tmp_path / "page")) == 0
    assert "1 clients over 1 days, 100.00% complete" in capsys.readouterr().out
    assert json.loads((tmp_path / "page" / "report.json").read_text())["clients"][0]["offered"] == 10.0
    assert "every record is there" in (tmp_path / "page" / "index.html").read_text()


@pytest.mark.usefixtures("spark")
def test_days_that_are_not_packed_are_asked_for_in_vain(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="sluice-pipeline pack"):
        report.run(arguments("--out", tmp_path))


def test_a_file_that_is_no_plan_is_named(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("[]")
    with pytest.raises(JobError, match=r"plan\.json: a plan is a JSON object"):
        report.run(arguments("--out", tmp_path, "--plan", plan))
