from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.batches import read_ledger
from pipeline.errors import JobError
from tests.pipeline.conftest import Ingest, rows_of
from tests.pipeline.usage_lines import line, place, row

pytestmark = pytest.mark.spark


def test_repeated_lines_count_once_in_one_batch_and_over_batches(
    spark: Any, tmp_path: Path, ingest: Ingest
) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()), line(1, row()), line(1, row()))
    place(tmp_path / "in", "again.jsonl.gz", line(0, row()), line(1, row()))
    (first,) = ingest().told
    assert (first["lines"], first["rows"], first["duplicates"]) == (2, 2, 3)
    place(tmp_path / "in", "later.jsonl.gz", line(1, row()), line(2, row()))
    (second,) = ingest().told
    assert (second["lines"], second["rows"], second["duplicates"]) == (1, 1, 1)
    assert rows_of(spark, tmp_path / "out") == [("app", 0), ("app", 1), ("app", 2)]


def test_a_batch_is_written_once_however_often_it_is_tried(
    spark: Any, tmp_path: Path, ingest: Ingest
) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()))
    ingest()
    out = tmp_path / "out"
    before = {path: path.stat().st_mtime_ns for path in (out / "raw").rglob("*.parquet")}
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    ingest()
    assert {path: path.stat().st_mtime_ns for path in (out / "raw").rglob("*.parquet")} == before
    (out / "ledger" / "v=000000000000.json").unlink()
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    ingest()
    assert rows_of(spark, out) == [("app", 0)]
    assert read_ledger(str(out)).lines() == 1


def test_a_lost_checkpoint_costs_work_but_no_line_twice(spark: Any, tmp_path: Path, ingest: Ingest) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()))
    ingest()
    place(tmp_path / "in", "usage-a-1.jsonl.gz", line(1, row()))
    (batch,) = ingest("new-checkpoint").told
    assert (batch["rows"], batch["duplicates"]) == (1, 1)
    assert rows_of(spark, tmp_path / "out") == [("app", 0), ("app", 1)]
    with pytest.raises(JobError, match="another ingest has written"):
        ingest()


def test_a_lost_ledger_stops_the_ingest_rather_than_counting_lines_twice(
    tmp_path: Path, ingest: Ingest
) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()))
    ingest()
    shutil.rmtree(tmp_path / "out" / "ledger")
    place(tmp_path / "in", "usage-a-1.jsonl.gz", line(1, row()))
    with pytest.raises(JobError, match="ledger 0 is missing"):
        ingest()
