"""Raw rows of a day as one row per client, by Spark; more in `test_pruning.py` and `test_raw_rows.py`."""

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from pipeline.cli import main
from pipeline.errors import JobError
from pipeline.maintenance.compaction import compact
from pipeline.maintenance.status import status
from pipeline.storage.coverage import Expectation
from pipeline.storage.layout import BUCKETS, committed_batches, published_days, raw_dir, read_compacted
from pipeline.storage.store import MANIFEST
from testkit.pipeline.usage_lines import DAY, LONG_AFTER, event, line, place, row
from tests.pipeline.conftest import Ingest

pytestmark = pytest.mark.spark


def fill(folder: Path, first: int, count: int) -> None:
    """A file of a gateway with two clients, one of which makes topics."""
    mutation = row("admin", api="mutation", node=-1)
    lines = [
        line(seq, row("a", seq), mutation, events=(event("admin", units=seq),), jump_ms=-2_000 * (seq == 15))
        for seq in range(first, first + count)
    ]
    place(folder / "in", f"usage-a-{first}.jsonl.gz", *lines)


def test_a_day_is_one_row_per_client_published_whole_and_again_with_its_late_lines(
    spark: Any, tmp_path: Path, ingest: Ingest
) -> None:
    out = str(tmp_path / "out")
    for first in (20, 10):
        fill(tmp_path, first, 10)
        ingest()
    assert compact(spark, out, LONG_AFTER, allow_gaps=True)["2026-09-28"]["rows"] == 40
    fill(tmp_path, 0, 10)
    ingest()
    # As a killed ingest has left it: the offset index does not have this batch yet.
    *_, last = committed_batches(out)
    shutil.copytree(last.path, raw_dir(out, last.number + 1))
    assert [day["late"] for day in status(out, LONG_AFTER)["days"]] == [True]
    manifest = compact(spark, out, LONG_AFTER, allow_gaps=True)["2026-09-28"]
    share = 30 / 86_400
    expected = {"rows": 60, "keys": 2, "batches": [0, 1, 2], "buckets": BUCKETS, "open": False}
    expected |= {"completeness": share, "gateways": {"a": share}}
    expected |= {"algorithms": {"a": ["token_bucket"]}, "set_back_ms": {"a": 2_000}}
    assert manifest == {"date": "2026-09-28", **expected}
    assert [(day.run, day.rows) for day in published_days(out)] == [(2, 60)]
    admin, client = read_compacted(spark, out).orderBy("api").collect()
    assert client.t == client.offered == list(range(30))
    assert (admin.t, admin.e_units) == (list(range(30)), list(range(30)))
    folder = tmp_path / "out/packed/date=2026-09-28"
    assert [path.name for path in folder.iterdir()] == ["run=000002"]
    # Another engine sees the same.
    count = f"select count(*), sum(len(t)), sum(len(e_ms)) from '{folder}/*/*.parquet'"
    assert duckdb.sql(count).fetchall() == [(2, 60, 30)]


def test_a_day_with_holes_or_not_over_is_compacted_only_when_asked_for_and_keeps_no_other_from_it(
    spark: Any, tmp_path: Path, ingest: Ingest, capsys: pytest.CaptureFixture[str]
) -> None:
    out, today = str(tmp_path / "out"), DAY + 86_400
    evening = [line(seq, row(), ts=today - 10 + seq) for seq in (*range(20), *range(90, 100))]
    place(tmp_path / "in", "evening.jsonl.gz", *evening)
    ingest()
    soon = Expectation(today + 3_700)
    assert [day for day, made in compact(spark, out, soon).items() if not made["open"]] == ["2026-09-28"]
    assert "left as it is: 2026-09-29 is not closed" in capsys.readouterr().err
    with pytest.raises(JobError, match="2026-09-29 is not closed"):
        compact(spark, out, soon, date="2026-09-29", allow_gaps=True)
    with pytest.raises(JobError, match=r"2026-09-29 is only 22.22% complete \(a 22.2%\).*Compacted: nothing"):
        compact(spark, out, soon, allow_open=True)
    manifest = compact(spark, out, soon, allow_open=True, allow_gaps=True)["2026-09-29"]
    assert (manifest["open"], manifest["gateways"]) == (True, {"a": 20 / 90})
    # Over by now: it is compacted again, though no line came since, and most of it is not there.
    with pytest.raises(JobError, match=r"2026-09-29 is only 0.02% complete"):
        compact(spark, out, LONG_AFTER)
    assert list(compact(spark, out, LONG_AFTER, allow_gaps=True)) == ["2026-09-29"]
    assert compact(spark, out, LONG_AFTER) == {}
    assert [day.open for day in published_days(out)] == [False, False]
    assert main(["status", "--out", out]) == 0
    said = capsys.readouterr().out
    assert "missing: 70 lines of a" in said
    assert "20 to 89, 2026-09-29T00:00:09Z to 2026-09-29T00:01:20Z" in said
    assert "2026-09-29: of a only 0.0%" in said
    assert [gap["lines"] for gap in status(out, LONG_AFTER)["gaps"]] == [70]


def test_batches_ordered_otherwise_are_sorted_by_spark(spark: Any, tmp_path: Path, ingest: Ingest) -> None:
    out = str(tmp_path / "out")
    for first in (0, 30):
        fill(tmp_path, first, 30)
    ingest(max_files=1)
    compact(spark, out, LONG_AFTER, allow_gaps=True)
    expected = sorted(map(repr, read_compacted(spark, out).collect()))
    assert [day.buckets for day in published_days(out)] == [BUCKETS]
    # As an older release left it.
    manifest = Path(next(committed_batches(out)).path, MANIFEST)
    content = json.loads(manifest.read_text())
    del content["buckets"]
    manifest.write_text(json.dumps(content))
    compact(spark, out, LONG_AFTER, date="all", allow_gaps=True)
    assert [(day.run, day.buckets) for day in published_days(out)] == [(2, 0)]
    assert sorted(map(repr, read_compacted(spark, out).collect())) == expected


def test_i15_a_day_that_only_a_wrong_clock_named_is_told(spark: Any, tmp_path: Path, ingest: Ingest) -> None:
    out = str(tmp_path / "out")
    ahead = [line(seq, row(), ts=DAY + 86_400 + seq) for seq in (10, 11)]
    right = [line(seq, row()) for seq in (*range(10), *range(12, 20))]
    place(tmp_path / "in", "usage-a-0.jsonl.gz", *right, *ahead)
    ingest()
    rows = {"2026-09-28": 18, "2026-09-29": 2}
    assert {
        date: manifest["rows"] for date, manifest in compact(spark, out, LONG_AFTER, allow_gaps=True).items()
    } == rows
    assert {day["date"]: day["compacted_rows"] for day in status(out, LONG_AFTER)["days"]} == rows
