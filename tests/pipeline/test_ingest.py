"""Lines into the raw table, each once, by Spark; kills are in `jobs/test_exactly_once.py`."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import JobError
from pipeline.ingest.sources import files_stream, stream
from pipeline.ingest.writer import Writer, files_to_rows
from pipeline.storage.index_files import read_offset_index
from testkit.pipeline.usage_lines import DAY, content, line, place, row
from tests.pipeline.conftest import Ingest, rows_of

pytestmark = pytest.mark.spark


def test_new_files_are_read_once_and_hidden_ones_once_named(spark: Any, tmp_path: Path, ingest: Ingest) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()), line(1, row()))
    hidden = tmp_path / "in" / ".usage-a-2.jsonl.gz.part"
    hidden.write_bytes(content(line(2, row())))
    other = tmp_path / "in" / "usage-a-3.jsonl.gz.tmp"
    other.write_bytes(content(line(3, row())))
    assert [batch["rows"] for batch in ingest().manifests] == [2]
    assert ingest().manifests == []
    hidden.rename(tmp_path / "in" / "usage-a-2.jsonl.gz")
    # More than a week older than the newest: Spark's default would pass over it.
    os.utime(tmp_path / "in" / "usage-a-2.jsonl.gz", (DAY - 40 * 86_400, DAY - 40 * 86_400))
    assert [batch["rows"] for batch in ingest().manifests] == [1]
    assert rows_of(spark, tmp_path / "out") == [("app", 0), ("app", 1), ("app", 2)]


def test_torn_and_wrong_lines_are_quarantined_as_gaps(spark: Any, tmp_path: Path, ingest: Ingest) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()), b'{"v":1,"gw":', line(2, row()))
    whole = place(tmp_path / "in", "usage-a-3.jsonl.gz", *(line(seq, row(f"c{seq}")) for seq in range(3, 400)))
    whole.write_bytes(whole.read_bytes()[:-200])
    place(tmp_path / "in", "usage-a-400.jsonl.gz", line(400, row()))
    (batch,) = ingest().manifests
    assert batch["torn"] == 2
    kept = spark.read.parquet(str(tmp_path / "out/quarantine/*")).collect()
    assert any(each.text == b'{"v":1,"gw":' and each["at"] == 1 for each in kept)
    assert any("ends early" in each.reason for each in kept)
    gaps = list(read_offset_index(str(tmp_path / "out")).gaps())
    assert [gaps[0].first, gaps[0].last, gaps[1].last] == [1, 1, 399]
    assert batch["lines"] + sum(gap.lines for gap in gaps) == 401


def test_files_that_were_read_can_be_archived(tmp_path: Path, ingest: Ingest) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()))
    ingest(after=f"archive:{tmp_path / 'archive'}")
    place(tmp_path / "in", "usage-a-1.jsonl.gz", line(1, row()))
    (batch,) = ingest(after=f"archive:{tmp_path / 'archive'}").manifests
    assert (batch["rows"], batch["duplicates"]) == (1, 0)
    # Spark cleans up in a thread, and what the last batch has read only with the next one.
    assert wait_for(lambda: not (tmp_path / "in" / "usage-a-0.jsonl.gz").exists())
    assert [path.name for path in (tmp_path / "archive").rglob("*.gz")] == ["usage-a-0.jsonl.gz"]


def test_a_folder_that_is_not_there_is_told(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="is not a folder"):
        files_stream(spark, str(tmp_path / "nothing"), max_files=1)
    with pytest.raises(JobError, match="--after"):
        files_stream(spark, str(tmp_path.parent), max_files=1, after="burn")


def test_repeated_lines_count_once_in_one_batch_and_over_batches(spark: Any, tmp_path: Path, ingest: Ingest) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()), line(1, row()), line(1, row()))
    place(tmp_path / "in", "again.jsonl.gz", line(0, row()), line(1, row()))
    (first,) = ingest().manifests
    assert (first["lines"], first["rows"], first["duplicates"]) == (2, 2, 3)
    place(tmp_path / "in", "later.jsonl.gz", line(1, row()), line(2, row()))
    (second,) = ingest().manifests
    assert (second["lines"], second["rows"], second["duplicates"]) == (1, 1, 1)
    assert rows_of(spark, tmp_path / "out") == [("app", 0), ("app", 1), ("app", 2)]


def test_batch_is_written_once_however_often_it_is_tried(spark: Any, tmp_path: Path, ingest: Ingest) -> None:
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
    assert read_offset_index(str(out)).lines() == 1


def test_an_older_copy_of_a_checkpoint_is_refused_and_a_new_one_costs_work_but_no_line_twice(
    spark: Any, tmp_path: Path, ingest: Ingest
) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()))
    ingest()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    place(tmp_path / "in", "usage-a-1.jsonl.gz", line(1, row()))
    ingest()
    place(tmp_path / "in", "usage-a-2.jsonl.gz", line(2, row()))
    with pytest.raises(JobError, match="a copy from before it"):
        ingest("copy")
    (batch,) = ingest("new").manifests
    assert (batch["lines"], batch["rows"], batch["duplicates"]) == (1, 1, 2)
    assert rows_of(spark, tmp_path / "out") == [("app", 0), ("app", 1), ("app", 2)]
    with pytest.raises(JobError, match="another ingest has written"):
        ingest()


def test_a_lost_index_stops_ingest_rather_than_counting_lines_twice(tmp_path: Path, ingest: Ingest) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()))
    ingest()
    shutil.rmtree(tmp_path / "out" / "ledger")
    place(tmp_path / "in", "usage-a-1.jsonl.gz", line(1, row()))
    with pytest.raises(JobError, match="offset index 0 is missing"):
        ingest()


def test_sigterm_ends_a_continuous_ingest_with_everything_it_has_read(spark: Any, tmp_path: Path) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()))
    out, notes = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    writer = Writer(spark, out, notes, files_to_rows)

    def feed() -> None:
        # With or without what is waited for: the query would else go on for ever.
        wait_for(lambda: read_offset_index(out).lines() == 1)
        place(tmp_path / "in", "usage-a-1.jsonl.gz", line(1, row()))
        wait_for(lambda: read_offset_index(out).lines() == 2)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    feeder = threading.Thread(target=feed)
    feeder.start()
    stream(files_stream(spark, str(tmp_path / "in"), max_files=10), writer, notes, {"processingTime": "1 seconds"})
    feeder.join()
    assert [manifest["rows"] for manifest in writer.manifests] == [1, 1]
    assert signal.getsignal(signal.SIGTERM) is before


def wait_for(happened: Callable[[], bool], *, seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not (done := happened()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return done
