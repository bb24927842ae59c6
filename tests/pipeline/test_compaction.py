"""Raw rows of a day as one row per client; more in `test_pruning.py` and `test_raw_rows.py`."""

from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from pipeline.cli import main
from pipeline.errors import NotYetCompleteError
from pipeline.maintenance.compaction import compact
from pipeline.maintenance.status import status
from pipeline.spark.runner import OnSpark
from pipeline.storage.compacted_days import CompactedDays, compacted_table, published_days
from pipeline.storage.coverage import Expectation
from pipeline.storage.files import parquet_reader
from pipeline.storage.layout import CompactedDay
from pipeline.storage.raw_table import raw_table
from pipeline.storage.tables import Conflict, Table
from testkit.pipeline.local_session import LocalSession
from testkit.pipeline.usage_lines import DAY, LONG_AFTER, event, line, place, row
from tests.pipeline.conftest import Ingest


def fill(folder: Path, first: int, count: int) -> None:
    """A file of a gateway with two clients, one of which makes topics."""
    mutation = row("admin", api="mutation", node=-1)
    lines = [
        line(seq, row("a", seq), mutation, events=(event("admin", units=seq),), jump_ms=-2_000 * (seq == 15))
        for seq in range(first, first + count)
    ]
    place(folder / "in", f"usage-a-{first}.jsonl.gz", *lines)


@pytest.mark.spark
def test_a_day_is_one_row_per_client_published_whole_and_again_with_its_late_lines(
    spark: Any, tmp_path: Path, ingest: Ingest
) -> None:
    out = str(tmp_path / "out")
    for first in (20, 10):
        fill(tmp_path, first, 10)
        ingest()
    assert compact(OnSpark(spark), out, LONG_AFTER)["2026-09-28"].rows == 40
    fill(tmp_path, 0, 10)
    ingest()
    assert [day["late"] for day in status(out, LONG_AFTER)["days"]] == [True]
    day = compact(OnSpark(spark), out, LONG_AFTER)["2026-09-28"]
    share = 30 / 86_400
    assert day == CompactedDay(
        "2026-09-28", run=day.run, rows=60, keys=2, raw=raw_table(out).read().identifier, last_batch=2, lines=30,
        buckets=4, completeness=share, gateways={"a": share},
        silent={"a": ((DAY + 30, DAY + 86_400),)},
        algorithms={"a": ("token_bucket",)}, set_back_ms={"a": 2_000},
    )  # fmt: skip
    assert [(day.run, day.rows) for day in published_days(out)] == [(day.run, 60)]
    admin, client = compacted(out)
    assert client["t"] == client["offered"] == list(range(30))
    assert (admin["t"], admin["e_units"]) == (list(range(30)), list(range(30)))
    # Another engine sees the same.
    with duckdb.connect() as connection:
        connection.register("days", DeltaTable(f"{out}/compacted").to_pyarrow_dataset())
        found = connection.sql("select count(*), sum(len(t)), sum(len(e_ms)) from days where date = '2026-09-28'")
        assert found.fetchall() == [(2, 60, 30)]
    # What was replaced is there for those that read it, until the next one is compacted.
    folder = tmp_path / "out/compacted/date=2026-09-28"
    files = {path.name for path in folder.iterdir()}
    compact(OnSpark(spark), out, LONG_AFTER)
    left = {path.name for path in folder.iterdir()}
    assert left < files
    assert left == {file.path.rpartition("/")[2] for file in compacted_table(out).read().files}


def compacted(out: str) -> list[dict[str, Any]]:
    """All compacted rows, by API, client and first second."""
    rows = []
    for path in CompactedDays.of(LocalSession(), out).paths:
        with parquet_reader(path) as reader:
            rows += reader.read().to_pylist()
    return sorted(rows, key=lambda row: (row["api"], row["client_id"], row["t"]))


@pytest.mark.slow
def test_days_of_a_span_are_compacted_again_and_no_others(tmp_path: Path, local_ingest: Ingest) -> None:
    out = str(tmp_path / "out")
    lines = [line(day, row(), ts=DAY + day * 86_400 + 5) for day in range(4)]
    place(tmp_path / "in", "four-days.jsonl.gz", *lines)
    local_ingest()
    days = [f"2026-09-{28 + day}" if day < 3 else "2026-10-01" for day in range(4)]
    assert list(compact(LocalSession(), out, LONG_AFTER, first=days[1], last=days[2])) == days[1:3]
    assert list(compact(LocalSession(), out, LONG_AFTER)) == [days[0], days[3]]
    runs = {day.date: day.run for day in published_days(out)}

    assert list(compact(LocalSession(), out, LONG_AFTER, date="all", first=days[2])) == days[2:]
    again = {day.date: day.run for day in published_days(out)}
    assert [date for date in days if again[date] != runs[date]] == days[2:]
    with pytest.raises(NotYetCompleteError, match="no lines of 2026-11-01 to the end have been read"):
        compact(LocalSession(), out, LONG_AFTER, date="all", first="2026-11-01")


@pytest.mark.slow
def test_a_day_with_holes_is_compacted_and_named_and_one_that_is_not_over_only_when_asked_for(
    tmp_path: Path, local_ingest: Ingest, capsys: pytest.CaptureFixture[str]
) -> None:
    out, today = str(tmp_path / "out"), DAY + 86_400
    evening = [line(seq, row(), ts=today - 10 + seq) for seq in (*range(20), *range(90, 100))]
    place(tmp_path / "in", "evening.jsonl.gz", *evening)
    local_ingest()
    soon = Expectation(today + 3_700)
    assert [day for day, made in compact(LocalSession(), out, soon).items() if not made.open] == ["2026-09-28"]
    assert "left as it is: 2026-09-29 is not closed" in capsys.readouterr().err
    with pytest.raises(NotYetCompleteError, match="2026-09-29 is not closed"):
        compact(LocalSession(), out, soon, date="2026-09-29")
    with pytest.raises(NotYetCompleteError, match="nothing was compacted: 2026-09-29 not closed"):
        compact(LocalSession(), out, soon)
    day = compact(LocalSession(), out, soon, allow_open=True)["2026-09-29"]
    assert (day.open, day.gateways) == (True, {"a": 20 / 90})
    assert day.silent == {"a": ((today + 10, today + 80),)}
    # Over by now: it is compacted again, though no line came since, and most of it is not there.
    assert list(compact(LocalSession(), out, LONG_AFTER)) == ["2026-09-29"]
    assert compact(LocalSession(), out, LONG_AFTER) == {}
    assert [day.open for day in published_days(out)] == [False, False]
    assert main(["status", "--out", out]) == 0
    said = capsys.readouterr().out
    assert "missing: 70 lines of a" in said
    assert "20 to 89, 2026-09-29T00:00:09Z to 2026-09-29T00:01:20Z" in said
    assert "2026-09-29: of a only 0.0%" in said
    assert [gap["lines"] for gap in status(out, LONG_AFTER)["gaps"]] == [70]


@pytest.mark.slow
def test_a_day_is_the_same_however_many_buckets_it_has(
    tmp_path: Path, local_ingest: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "out")
    lines = [line(seq, *(row(f"c{number}", number) for number in range(200))) for seq in range(30)]
    place(tmp_path / "in", "usage-a-0.jsonl.gz", *lines[:15])
    place(tmp_path / "in", "usage-a-15.jsonl.gz", *lines[15:])
    local_ingest(max_files=1)
    compact(LocalSession(), out, LONG_AFTER)
    expected = [{**row, "bucket": None} for row in compacted(out)]
    assert len(expected) == 200
    monkeypatch.setattr("pipeline.storage.layout._SECONDS_PER_BUCKET", 80)
    (day,) = compact(LocalSession(), out, LONG_AFTER, date="all").values()
    assert day.buckets == 128
    found = compacted(out)
    assert len({row["bucket"] for row in found}) > 60
    assert [{**row, "bucket": None} for row in found] == expected


def test_a_day_that_another_job_compacts_meanwhile_is_told_and_stays_whole(
    tmp_path: Path, local_ingest: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "out")
    fill(tmp_path, 0, 10)
    local_ingest()
    commit, others = Table.commit, iter([1])

    def interrupted(table: Table, *arguments: Any, **changes: Any) -> Any:
        for _ in others:
            compact(LocalSession(), out, LONG_AFTER)
            compacted_table(out).sweep()
        return commit(table, *arguments, **changes)

    monkeypatch.setattr(Table, "commit", interrupted)
    with pytest.raises(Conflict, match="compacted was changed by another job meanwhile: run this again"):
        compact(LocalSession(), out, LONG_AFTER)
    assert [day.rows for day in published_days(out)] == [20]
    assert len(compacted(out)) == 2


def test_a_compaction_of_what_was_there_before_does_not_replace_a_later_one(
    tmp_path: Path, local_ingest: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "out")
    fill(tmp_path, 0, 10)
    local_ingest()
    sweep, others = Table.sweep, iter([1])

    def interrupted(table: Table) -> int:
        for _ in others:
            # Raw files are listed, and nothing is written yet.
            fill(tmp_path, 10, 5)
            local_ingest()
            compact(LocalSession(), out, LONG_AFTER)
        return sweep(table)

    monkeypatch.setattr(Table, "sweep", interrupted)
    with pytest.raises(Conflict, match="2026-09-28 was compacted or pruned by another job meanwhile"):
        compact(LocalSession(), out, LONG_AFTER)
    assert [day.rows for day in published_days(out)] == [30]


def test_i15_a_day_that_only_a_wrong_clock_named_is_told(tmp_path: Path, local_ingest: Ingest) -> None:
    out = str(tmp_path / "out")
    ahead = [line(seq, row(), ts=DAY + 86_400 + seq) for seq in (10, 11)]
    right = [line(seq, row()) for seq in (*range(10), *range(12, 20))]
    place(tmp_path / "in", "usage-a-0.jsonl.gz", *right, *ahead)
    local_ingest()
    rows = {"2026-09-28": 18, "2026-09-29": 2}
    assert {date: day.rows for date, day in compact(LocalSession(), out, LONG_AFTER).items()} == rows
    assert {day["date"]: day["compacted_rows"] for day in status(out, LONG_AFTER)["days"]} == rows
