"""Lines into the raw table, each once; by Spark where its file source and its checkpoints matter.

Kills are in `jobs/test_exactly_once.py`.
"""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from pipeline.errors import JobError
from pipeline.ingest import writer as writer_module
from pipeline.ingest.sources import Pace, files_stream, stream
from pipeline.ingest.writer import Writer, files_to_rows
from pipeline.spark.runner import InProcess
from pipeline.storage.raw_table import raw_table, read_raw_state
from testkit.pipeline.local_session import ingest_files
from testkit.pipeline.usage_lines import DAY, content, line, place, row
from tests.pipeline.conftest import Ingest, rows_of


@pytest.mark.spark
def test_new_files_are_read_once_and_hidden_ones_once_named(tmp_path: Path, ingest: Ingest) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()), line(1, row()))
    hidden = tmp_path / "in" / ".usage-a-2.jsonl.gz.part"
    hidden.write_bytes(content(line(2, row())))
    other = tmp_path / "in" / "usage-a-3.jsonl.gz.tmp"
    other.write_bytes(content(line(3, row())))
    assert [batch.rows for batch in ingest().written] == [2]
    assert ingest().written == []
    hidden.rename(tmp_path / "in" / "usage-a-2.jsonl.gz")
    # More than a week older than the newest: Spark's default would pass over it.
    os.utime(tmp_path / "in" / "usage-a-2.jsonl.gz", (DAY - 40 * 86_400, DAY - 40 * 86_400))
    assert [batch.rows for batch in ingest().written] == [1]
    assert rows_of(tmp_path / "out") == [("app", 0), ("app", 1), ("app", 2)]


def test_torn_and_wrong_lines_are_quarantined_as_gaps(tmp_path: Path, local_ingest: Ingest) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()), b'{"v":1,"gw":', line(2, row()))
    whole = place(tmp_path / "in", "usage-a-3.jsonl.gz", *(line(seq, row(f"c{seq}")) for seq in range(3, 400)))
    whole.write_bytes(whole.read_bytes()[:-200])
    place(tmp_path / "in", "usage-a-400.jsonl.gz", line(400, row()))
    (batch,) = local_ingest().written
    assert batch.torn == 2
    raw = DeltaTable(tmp_path / "out/raw").to_pyarrow_dataset()
    kept = raw.to_table(["at", "reason", "text"], filter=pc.field("kind") == "torn").to_pylist()
    assert any(each["text"] == b'{"v":1,"gw":' and each["at"] == 1 for each in kept)
    assert any("ends early" in each["reason"] for each in kept)
    gaps = list(read_raw_state(str(tmp_path / "out")).index.gaps())
    assert [gaps[0].first, gaps[0].last, gaps[1].last] == [1, 1, 399]
    assert batch.lines + sum(gap.lines for gap in gaps) == 401


@pytest.mark.spark
def test_files_that_were_read_can_be_archived(tmp_path: Path, ingest: Ingest) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()))
    ingest(after=f"archive:{tmp_path / 'archive'}")
    place(tmp_path / "in", "usage-a-1.jsonl.gz", line(1, row()))
    (batch,) = ingest(after=f"archive:{tmp_path / 'archive'}").written
    assert (batch.rows, batch.duplicates) == (1, 0)
    # Spark cleans up in a thread, and what the last batch has read only with the next one.
    assert wait_for(lambda: not (tmp_path / "in" / "usage-a-0.jsonl.gz").exists())
    assert [path.name for path in (tmp_path / "archive").rglob("*.gz")] == ["usage-a-0.jsonl.gz"]


@pytest.mark.spark
def test_a_folder_that_is_not_there_is_told(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="is not a folder"):
        files_stream(spark, str(tmp_path / "nothing"), max_files=1)
    with pytest.raises(JobError, match="--after"):
        files_stream(spark, str(tmp_path.parent), max_files=1, after="burn")


def test_repeated_lines_count_once_in_one_batch_and_over_batches(tmp_path: Path, local_ingest: Ingest) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()), line(1, row()), line(1, row()))
    place(tmp_path / "in", "again.jsonl.gz", line(0, row()), line(1, row()))
    (first,) = local_ingest().written
    assert (first.lines, first.rows, first.duplicates) == (2, 2, 3)
    place(tmp_path / "in", "later.jsonl.gz", line(1, row()), line(2, row()))
    (second,) = local_ingest().written
    assert (second.lines, second.rows, second.duplicates) == (1, 1, 1)
    assert rows_of(tmp_path / "out") == [("app", 0), ("app", 1), ("app", 2)]


def test_input_that_changes_while_a_batch_is_read_is_not_taken(
    tmp_path: Path, local_ingest: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "usage-a-0.jsonl.gz"
    place(tmp_path / "in", name, line(0, row()), line(0, row()), line(1, row()))
    write_rows = writer_module.write_rows

    def changed(run: Any, collect: Any, place_: Any, skip: Any, *rest: Any) -> Any:
        if skip:  # they are read a second time, without what had come before
            place(tmp_path / "in", name, line(0, row()), line(0, row()), line(2, row()))
        return write_rows(run, collect, place_, skip, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(writer_module, "write_rows", changed)
        with pytest.raises(JobError, match="batch 0 reads changed while it was read"):
            local_ingest()
    assert read_raw_state(str(tmp_path / "out")).lines == 0
    local_ingest()
    assert rows_of(tmp_path / "out") == [("app", 0), ("app", 2)]


@pytest.mark.spark
def test_batch_is_written_once_however_often_it_is_tried(tmp_path: Path, ingest: Ingest) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()))
    ingest()
    out = tmp_path / "out"
    version = raw_table(str(out)).read().version
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    assert ingest().written == []
    assert raw_table(str(out)).read().version == version
    assert rows_of(out) == [("app", 0)]


@pytest.mark.spark
def test_an_older_copy_of_a_checkpoint_is_refused_and_a_new_one_costs_work_but_no_line_twice(
    tmp_path: Path, ingest: Ingest
) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()))
    ingest()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    place(tmp_path / "in", "usage-a-1.jsonl.gz", line(1, row()))
    ingest()
    place(tmp_path / "in", "usage-a-2.jsonl.gz", line(2, row()))
    with pytest.raises(JobError, match="a copy from before what was read since"):
        ingest("copy")
    (batch,) = ingest("new").written
    assert (batch.lines, batch.rows, batch.duplicates) == (1, 1, 2)
    assert rows_of(tmp_path / "out") == [("app", 0), ("app", 1), ("app", 2)]
    # The first one continues beside it.
    (batch,) = ingest().written
    assert (batch.lines, batch.duplicates) == (0, 1)


def test_a_checkpoint_that_has_read_what_is_not_there_is_refused(tmp_path: Path, local_ingest: Ingest) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()))
    local_ingest()
    shutil.rmtree(tmp_path / "out" / "raw")
    place(tmp_path / "in", "usage-a-1.jsonl.gz", line(1, row()))
    with pytest.raises(JobError, match=r"batches of it up to -1: it has read what is not there"):
        local_ingest()


def test_a_folder_of_an_older_release_is_refused(tmp_path: Path, local_ingest: Ingest) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()))
    (tmp_path / "out" / "ledger").mkdir(parents=True)
    with pytest.raises(JobError, match="was written by an older release"):
        local_ingest()


def test_a_batch_that_loses_against_another_ingest_is_written_upon_it(
    tmp_path: Path, local_ingest: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seq in (0, 1):
        place(tmp_path / "in", f"usage-a-{seq}.jsonl.gz", line(seq, row()))
    write_rows, others = writer_module.write_rows, iter(["second"])

    def interrupted(*arguments: Any) -> Any:
        found = write_rows(*arguments)
        for other in others:
            # All of it again, by another one that is quicker.
            ingest_files(str(tmp_path / "out"), tmp_path / other, *(tmp_path / "in").iterdir())
        return found

    monkeypatch.setattr(writer_module, "write_rows", interrupted)
    (batch,) = local_ingest("first").written
    assert (batch.lines, batch.duplicates) == (0, 2)
    assert rows_of(tmp_path / "out") == [("app", 0), ("app", 1)]
    state = read_raw_state(str(tmp_path / "out"))
    assert (state.batches, state.lines, state.duplicates, len(state.checkpoints)) == (2, 2, 2, 2)


@pytest.mark.slow
def test_days_of_a_file_are_files_of_their_own_however_many(tmp_path: Path, local_ingest: Ingest) -> None:
    lines = [line(seq, row(), ts=DAY + 86_400 * (seq // 2)) for seq in range(24)]
    place(tmp_path / "in", "usage-a-0.jsonl.gz", *lines, *lines[::2])
    (batch,) = local_ingest().written
    assert (batch.lines, batch.duplicates, len(batch.days)) == (24, 12, 12)
    assert len(rows_of(tmp_path / "out")) == 24
    found = raw_table(str(tmp_path / "out")).read()
    assert {file.partition["date"] for file in found.files} == batch.days.keys()


@pytest.mark.spark
def test_a_round_reads_all_there_is_and_sigterm_ends_a_continuous_ingest(spark: Any, tmp_path: Path) -> None:
    out, notes = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    writer = Writer(out, notes, files_to_rows, InProcess())
    for seq in range(3):
        place(tmp_path / "in", f"usage-a-{seq}.jsonl.gz", line(seq, row()))
    frame = files_stream(spark, str(tmp_path / "in"), max_files=1)

    def end(lines: int, *more: int) -> None:
        # With or without what is waited for: the query would else continue for ever.
        for seq in more:
            wait_for_lines(out, seq)
            place(tmp_path / "in", f"usage-a-{seq}.jsonl.gz", line(seq, row()))
        wait_for_lines(out, lines)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    # Three batches in a round: the next one is in an hour. Then a round for what comes later.
    for every_s, lines, more in ((3_600, 3, ()), (1, 5, (3, 4))):
        feeder = threading.Thread(target=end, args=(lines, *more))
        feeder.start()
        stream(frame, writer, notes, every_s)
        feeder.join()
        assert [batch.rows for batch in writer.written] == [1] * lines
        assert signal.getsignal(signal.SIGTERM) is before


def wait_for_lines(out: str, count: int) -> None:
    wait_for(lambda: read_raw_state(out).index.lines() == count)


def wait_for(happened: Callable[[], bool], *, seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not (done := happened()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return done


def test_an_ingest_says_that_it_falls_behind_when_two_rounds_in_a_row_take_too_long() -> None:
    pace = Pace(30)
    assert [pace.after(took_s) for took_s in (95.0, 29.0, 31.0, 30.0)] == [None] * 4
    assert pace.after(31.0) is None
    note = pace.after(45.4)
    assert note is not None
    assert note.startswith("ingest falls behind: reading what came in 30 s took 45 s.")
    assert pace.after(3.0) is None
