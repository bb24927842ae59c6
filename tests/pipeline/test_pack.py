from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from pipeline.batches import read_ledger, with_losses
from pipeline.cli import main
from pipeline.errors import JobError
from pipeline.layout import (
    BUCKETS,
    EVENTS,
    KEY,
    MANIFEST,
    SERIES,
    committed_batches,
    published_days,
    raw_dir,
    read_packed,
)
from pipeline.pack import pack, packed_frame
from pipeline.recommend import history_days
from pipeline.status import status
from tests.pipeline.conftest import Ingest
from tests.pipeline.usage_lines import BOOT, DAY, event, line, place, row

pytestmark = pytest.mark.spark


def fill(folder: Path, first: int, count: int, name: str | None = None) -> None:
    """A file of a gateway with two clients, one of which makes topics."""
    mutation = row("admin", api="mutation", node=-1)
    lines = [
        line(seq, row("a", seq), mutation, events=(event("admin", units=seq),))
        for seq in range(first, first + count)
    ]
    place(folder, name or f"usage-a-{first}.jsonl.gz", *lines)


def packed_of_two_batches(spark: Any, folder: Path, ingest: Ingest) -> str:
    """The folder of a day whose lines came in two batches, packed."""
    out = str(folder / "out")
    fill(folder / "in", 0, 30)
    fill(folder / "in", 30, 30)
    ingest(max_files=1)
    pack(spark, out)
    return out


def test_a_day_is_one_row_per_client_and_published_whole(spark: Any, tmp_path: Path, ingest: Ingest) -> None:
    for first in (0, 20, 10):
        fill(tmp_path / "in", first, 10)
        ingest()
    out = str(tmp_path / "out")
    told = pack(spark, out)["2026-09-28"]
    assert (told["rows"], told["keys"], told["completeness"], told["batches"]) == (60, 2, 1.0, [0, 1, 2])
    admin, client = read_packed(spark, out).orderBy("api").collect()
    assert client.t == client.offered == list(range(30))
    assert (admin.t, admin.e_units) == (list(range(30)), list(range(30)))
    assert pack(spark, out) == {}
    folder = tmp_path / "out/packed/date=2026-09-28"
    assert [path.name for path in folder.iterdir()] == ["run=000001"]
    # Another engine sees the same.
    count = f"select count(*), sum(len(t)), sum(len(e_ms)) from '{folder}/*/*.parquet'"
    assert duckdb.sql(count).fetchall() == [(2, 60, 30)]


def test_a_day_with_late_lines_is_packed_again(spark: Any, tmp_path: Path, ingest: Ingest) -> None:
    out = str(tmp_path / "out")
    fill(tmp_path / "in", 1, 50)
    ingest()
    pack(spark, out)
    fill(tmp_path / "in", 0, 1)
    ingest()
    assert [day["late"] for day in status(out)["days"]] == [True]
    assert pack(spark, out)["2026-09-28"]["rows"] == 102
    assert [(day.run, day.rows) for day in published_days(out)] == [(2, 102)]
    assert [day["late"] for day in status(out)["days"]] == [False]


def test_a_batch_that_the_ledger_does_not_have_yet_is_left_to_the_ingest_that_ends_it(
    spark: Any, tmp_path: Path, ingest: Ingest
) -> None:
    out = str(tmp_path / "out")
    fill(tmp_path / "in", 0, 10)
    ingest()
    (batch,) = committed_batches(out)
    shutil.copytree(batch.path, raw_dir(out, batch.number + 1))
    assert len(list(committed_batches(out))) == 2
    told = pack(spark, out)["2026-09-28"]
    assert (told["rows"], told["batches"]) == (20, [batch.number])


def test_a_day_with_holes_is_packed_only_when_asked_for(
    spark: Any, tmp_path: Path, ingest: Ingest, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    fill(tmp_path / "in", 0, 50)
    fill(tmp_path / "in", 60, 40)
    ingest()
    with pytest.raises(JobError, match=r"2026-09-28 is only 90.00% complete"):
        pack(spark, out)
    assert published_days(out) == []
    assert pack(spark, out, allow_gaps=True)["2026-09-28"]["completeness"] == 0.9
    assert main(["status", "--out", out]) == 0
    told = capsys.readouterr().out
    assert "missing: 10 lines of a" in told
    assert "50 to 59, 2026-09-28T00:00:49Z to 2026-09-28T00:01:00Z" in told
    assert status(out)["gaps"][0]["lines"] == 10
    assert len(list(read_ledger(out).gaps())) == 1


def test_a_day_with_holes_keeps_no_other_day_from_being_packed(
    spark: Any, tmp_path: Path, ingest: Ingest
) -> None:
    out = str(tmp_path / "out")
    today = DAY + 86_400
    lines = [line(seq, row(), ts=today + seq) for seq in (*range(10), *range(90, 100))]
    place(tmp_path / "in", "today.jsonl.gz", *lines)
    place(tmp_path / "in", "yesterday.jsonl.gz", *(line(seq, row(), boot=BOOT + 1) for seq in range(10)))
    ingest()
    with pytest.raises(JobError, match=r"2026-09-29 is only 20.00% complete.*Packed: 2026-09-28"):
        pack(spark, out)
    assert [day.date for day in published_days(out)] == ["2026-09-28"]


def test_a_loss_that_shows_only_after_packing_counts_from_then_on(
    spark: Any, tmp_path: Path, ingest: Ingest
) -> None:
    out = str(tmp_path / "out")
    fill(tmp_path / "in", 0, 50)
    ingest()
    pack(spark, out)
    # What the gateway wrote in the evening is lost, as its first line of the next day tells.
    place(tmp_path / "in", "next.jsonl.gz", line(150, row(), ts=DAY + 86_401))
    ingest()
    (packed,) = published_days(out)
    (known,) = with_losses([packed], out)
    assert packed.completeness == 1.0
    assert known.completeness == pytest.approx(50 / 150)
    assert [day["late"] for day in status(out)["days"]] == [False, False]
    with pytest.raises(JobError, match=r"2026-09-28 is 33.3% complete"):
        history_days([known], 1, None, allow_gaps=False)


def test_a_day_whose_raw_batches_are_gone_is_left_as_it_is_and_others_are_packed(
    spark: Any, tmp_path: Path, ingest: Ingest, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    fill(tmp_path / "in", 0, 50)
    ingest()
    pack(spark, out)
    for path in (tmp_path / "out/raw/batch=000000000000").iterdir():
        path.unlink()
    place(tmp_path / "in", "late.jsonl.gz", line(50, row()), line(51, row(), ts=DAY + 86_400))
    ingest()
    assert list(pack(spark, out)) == ["2026-09-29"]
    assert "2026-09-28 was packed from raw batches that are gone" in capsys.readouterr().err
    with pytest.raises(JobError, match="would lose what was in them"):
        pack(spark, out, date="2026-09-28")
    assert [day.rows for day in published_days(out)] == [100, 1]


def test_sparks_own_sort_gives_the_same_day_as_the_workers(
    spark: Any, tmp_path: Path, ingest: Ingest
) -> None:
    out = packed_of_two_batches(spark, tmp_path, ingest)
    order = [*KEY, *SERIES, *EVENTS]
    sorted_by_spark = packed_frame(spark, [batch.path for batch in committed_batches(out)], "2026-09-28", 120)
    by_workers = sorted(map(repr, read_packed(spark, out).select(*order).collect()))
    assert sorted(map(repr, sorted_by_spark.select(*order).collect())) == by_workers


def test_batches_that_are_ordered_otherwise_are_sorted_by_spark_and_the_day_says_so(
    spark: Any, tmp_path: Path, ingest: Ingest
) -> None:
    out = packed_of_two_batches(spark, tmp_path, ingest)
    expected = sorted(map(repr, read_packed(spark, out).collect()))
    assert [day.buckets for day in published_days(out)] == [BUCKETS]
    # As an older release left it.
    manifest = Path(next(committed_batches(out)).path, MANIFEST)
    told = json.loads(manifest.read_text())
    del told["buckets"]
    manifest.write_text(json.dumps(told))
    pack(spark, out, date="all")
    assert [(day.run, day.buckets) for day in published_days(out)] == [(2, 0)]
    assert sorted(map(repr, read_packed(spark, out).collect())) == expected


def test_a_day_that_was_never_read_is_told(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="no lines of 2026-01-01"):
        pack(spark, str(tmp_path), date="2026-01-01")
    assert main(["pack", "--out", str(tmp_path), "--date", "yesterday"]) == 1


def test_i15_a_day_that_only_a_clock_set_wrong_named_is_packed_and_told(
    spark: Any, tmp_path: Path, ingest: Ingest
) -> None:
    out = str(tmp_path / "out")
    ahead = [line(seq, row(), ts=DAY + 86_400 + seq) for seq in (10, 11)]
    right = [line(seq, row()) for seq in (*range(10), *range(12, 20))]
    place(tmp_path / "in", "usage-a-0.jsonl.gz", *right, *ahead)
    ingest()
    assert {date: told["rows"] for date, told in pack(spark, out).items()} == {
        "2026-09-28": 18,
        "2026-09-29": 2,
    }
    assert [(day["date"], day["packed_rows"]) for day in status(out)["days"]] == [
        ("2026-09-28", 18),
        ("2026-09-29", 2),
    ]
