from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.batches import read_ledger
from pipeline.cli import main
from pipeline.errors import JobError
from pipeline.ingest import files_stream
from tests.pipeline.conftest import Ingest, rows_of
from tests.pipeline.usage_lines import DAY, content, line, place, row

pytestmark = pytest.mark.spark


def test_new_files_are_read_once_and_hidden_ones_not_before_they_are_named(
    spark: Any, tmp_path: Path, ingest: Ingest
) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()), line(1, row()))
    hidden = tmp_path / "in" / ".usage-a-2.jsonl.gz.part"
    hidden.write_bytes(content(line(2, row())))
    other = tmp_path / "in" / "usage-a-3.jsonl.gz.tmp"
    other.write_bytes(content(line(3, row())))
    assert [batch["rows"] for batch in ingest().told] == [2]
    assert ingest().told == []
    hidden.rename(tmp_path / "in" / "usage-a-2.jsonl.gz")
    assert [batch["rows"] for batch in ingest().told] == [1]
    assert rows_of(spark, tmp_path / "out") == [("app", 0), ("app", 1), ("app", 2)]


def test_a_file_that_comes_more_than_a_week_late_is_read(tmp_path: Path, ingest: Ingest) -> None:
    place(tmp_path / "in", "usage-a-1.jsonl.gz", line(1, row()))
    ingest()
    late = place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()))
    os.utime(late, (DAY - 40 * 86_400, DAY - 40 * 86_400))
    assert [batch["rows"] for batch in ingest().told] == [1]


def test_torn_and_wrong_lines_are_quarantined_and_show_as_gaps(
    spark: Any, tmp_path: Path, ingest: Ingest
) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()), b'{"v":1,"gw":', line(2, row()))
    whole = place(
        tmp_path / "in", "usage-a-3.jsonl.gz", *(line(seq, row(f"c{seq}")) for seq in range(3, 400))
    )
    whole.write_bytes(whole.read_bytes()[:-200])
    place(tmp_path / "in", "usage-a-400.jsonl.gz", line(400, row()))
    (batch,) = ingest().told
    assert batch["torn"] == 2
    kept = spark.read.parquet(str(tmp_path / "out/quarantine/*")).collect()
    assert any(told.text == b'{"v":1,"gw":' and told["at"] == 1 for told in kept)
    assert any("ends early" in told.reason for told in kept)
    gaps = list(read_ledger(str(tmp_path / "out")).gaps())
    assert [gaps[0].first, gaps[0].last, gaps[1].last] == [1, 1, 399]
    assert batch["lines"] + sum(gap.lines for gap in gaps) == 401


def test_files_that_were_read_can_be_archived(tmp_path: Path, ingest: Ingest) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()))
    ingest(after=f"archive:{tmp_path / 'archive'}")
    place(tmp_path / "in", "usage-a-1.jsonl.gz", line(1, row()))
    (batch,) = ingest(after=f"archive:{tmp_path / 'archive'}").told
    assert (batch["rows"], batch["duplicates"]) == (1, 0)
    # Spark cleans up in a thread, and what the last batch has read only with the next one.
    deadline = time.monotonic() + 20
    while (tmp_path / "in" / "usage-a-0.jsonl.gz").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [path.name for path in (tmp_path / "archive").rglob("*.gz")] == ["usage-a-0.jsonl.gz"]


def test_an_older_copy_of_a_checkpoint_is_refused_and_a_new_one_reads_what_it_would_have_skipped(
    tmp_path: Path, ingest: Ingest
) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()))
    ingest()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    place(tmp_path / "in", "usage-a-1.jsonl.gz", line(1, row()))
    ingest()
    place(tmp_path / "in", "usage-a-2.jsonl.gz", line(2, row()))
    with pytest.raises(JobError, match="a copy from before it"):
        ingest("copy")
    (batch,) = ingest("new").told
    assert (batch["lines"], batch["duplicates"]) == (1, 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "nowhere"], "say files:DIR or kafka:TOPIC"),
        (["--from", "files:/nowhere", "--trigger", "often"], "say available-now"),
    ],
)
def test_wrong_arguments_are_told(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ingest", "--out", str(tmp_path), *arguments]) == 1
    assert said in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_told(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="is not a folder"):
        files_stream(spark, str(tmp_path / "nothing"), max_files=1)
    with pytest.raises(JobError, match="--after"):
        files_stream(spark, str(tmp_path.parent), max_files=1, after="burn")
