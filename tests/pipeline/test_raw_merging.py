"""Small raw files are merged as they come, and rows stay what they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.ingest.collector import Collector
from pipeline.maintenance import compaction
from pipeline.maintenance.compaction import compact
from pipeline.spark.runner import InProcess
from pipeline.storage import raw_merging, raw_table
from pipeline.storage.bucket_groups import FileGroups, groups_of
from pipeline.storage.compacted_days import published_days
from pipeline.storage.layout import FINE_BUCKETS, bucket_of
from pipeline.storage.raw_merging import SMALLEST_BYTES, TOGETHER, due, merge_small
from pipeline.storage.raw_table import DayReader, read_raw_state, write_raw_files
from pipeline.storage.schemas import RAW_SCHEMA
from pipeline.storage.tables import Conflict, DataFile, Snapshot
from testkit.pipeline.local_session import compact_all, contents, ingest_files
from testkit.pipeline.usage_lines import DAY, LONG_AFTER, content, event, line, place, row

DATE = "2026-09-28"


def ingest(tmp_path: Path, batches: int, *, first: int = 0) -> str:
    """Ingests lines, each in a batch of its own; every fifth one has a torn line."""
    for seq in range(first, first + batches):
        rows = [row(f"c{client}") for client in range(seq % 3 + 1)]
        text = content(line(seq, *rows, events=(event(),)), *([b"junk"] if seq % 5 == 0 else []))
        file = tmp_path / "in" / f"usage-a-{seq}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)
        ingest_files(str(tmp_path / "out"), tmp_path / "checkpoint", file)
    return str(tmp_path / "out")


def files_of(out: str) -> list[DataFile]:
    return raw_table.raw_table(out).read().of(date=DATE)


@pytest.mark.slow
def test_a_day_has_few_files_however_many_batches_came_and_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_merging, "TOGETHER", 4)
    merging = ingest(tmp_path / "merging", 9)
    # The first four become one, and so do that one and the next three.
    assert len(files_of(merging)) == 3
    monkeypatch.setattr("pipeline.ingest.writer.merge_small", lambda _runner, _table, found: found)
    apart = ingest(tmp_path / "apart", 9)
    assert len(files_of(apart)) == 9
    assert contents(merging) == contents(apart)
    states = [replace(read_raw_state(out), checkpoints={}) for out in (merging, apart)]
    assert states[0] == states[1]
    for out in (merging, apart):
        compact_all(out)
    days = [[replace(day, run="", raw="") for day in published_days(out)] for out in (merging, apart)]
    assert days[0] == days[1]
    assert contents(merging)["compacted"] == contents(apart)["compacted"]


def test_files_are_merged_with_files_of_their_size_and_torn_lines_stay() -> None:
    def files(count: int, size: int, date: str | None) -> list[DataFile]:
        return [DataFile(f"{0:020}-{at:032}.parquet", {"date": date}, 1, size) for at in range(count)]

    small, large = files(TOGETHER, 10, DATE), files(TOGETHER - 1, SMALLEST_BYTES + 1, DATE)
    other, torn = files(2 * TOGETHER + 1, 10, "2026-09-29"), files(3 * TOGETHER, 10, None)
    largest = files(2 * TOGETHER, SMALLEST_BYTES * TOGETHER**3, DATE)
    found = due(Snapshot(1, (*small, *large, *other, *torn, *largest)))
    assert found == [small, other[:TOGETHER], other[TOGETHER:-1]]


@pytest.mark.slow
def test_what_another_job_commits_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = ingest(tmp_path, TOGETHER - 1)
    table = raw_table.raw_table(out)
    before = table.read()
    more = ingest(tmp_path, 1, first=TOGETHER - 1)
    assert len(files_of(more)) == 1
    monkeypatch.setattr(raw_merging, "TOGETHER", 2)
    assert merge_small(InProcess(), table, before) == before
    assert len(files_of(out)) == 1
    assert read_raw_state(out).lines == TOGETHER
    with pytest.raises(Conflict):
        table.commit(before, state=before.state)


def test_rows_of_a_merged_file_lie_by_bucket_with_row_groups_to_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_merging, "_BYTES_AT_ONCE", 10_000)
    written = []
    for seq in range(3):
        rows = [row(f"c{client}") for client in range(500)]
        answers = write_raw_files(Collector().file("f", content(line(seq, *rows))), str(tmp_path), 1)
        written += [answer for answer in answers if isinstance(answer, DataFile)]
    paths = [f"{tmp_path}/{file.path}" for file in written]
    (merged,) = raw_merging._merge(paths, written, str(tmp_path), 2)
    assert merged.rows == 3 * 501
    (raw,) = groups_of([f"{tmp_path}/{merged.path}"])
    assert raw.spans[0] == (-1, -1)
    assert len(raw.spans) > 4
    assert all(before[1] <= after[0] for before, after in zip(raw.spans, raw.spans[1:], strict=False))
    reader = DayReader([raw], range(-1, FINE_BUCKETS), columns=RAW_SCHEMA.names)
    found = [each for table in reader.read(-1, FINE_BUCKETS) for each in table.to_pylist()]
    assert sorted(each["seq"] for each in found if each["kind"] == "lines") == [[0], [1], [2]]
    assert len([each for each in found if each["kind"] == "rows"]) == 1_500


@pytest.mark.slow
def test_a_part_opens_no_file_that_has_nothing_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.ingest.writer.merge_small", lambda _runner, _table, found: found)
    names = [f"c{number}" for number in range(8)]
    for seq, name in enumerate(names):
        file = place(tmp_path / "in", f"usage-a-{seq}.jsonl.gz", line(seq, row(name)))
        ingest_files(str(tmp_path / "out"), tmp_path / "checkpoint", file)
    opened: list[str] = []
    real = DayReader._columns_of

    def counted(self: DayReader, path: str, groups: list[int]) -> Any:
        opened.append(path)
        return real(self, path, groups)

    monkeypatch.setattr(DayReader, "_columns_of", counted)
    parts: list[tuple[range, int]] = []
    really = compaction.compact_buckets

    def seen(files: list[FileGroups], date: str, mine: range, *rest: Any) -> Any:
        parts.append((mine, len(files)))
        return really(files, date, mine, *rest)

    monkeypatch.setattr(compaction, "compact_buckets", seen)
    (day,) = compact(InProcess(4), str(tmp_path / "out"), LONG_AFTER).values()
    assert day.rows == len(names)
    assert sorted(opened) == sorted(set(opened))
    assert len(opened) == len(names)
    buckets = [bucket_of("alice", name, "produce") * day.buckets // FINE_BUCKETS for name in names]
    assert parts == [(mine, sum(bucket in mine for bucket in buckets)) for mine, _ in parts]


@pytest.mark.slow
def test_lines_that_come_again_are_not_written_again_and_torn_ones_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, read = str(tmp_path / "out"), []
    file = place(tmp_path / "in", "usage-a-0.jsonl", line(0, row()), line(1, row("d")))
    file.write_bytes(content(line(0, row()), b"junk", line(1, row("d"))))
    ingest_files(out, tmp_path / "first", file)
    before = contents(out)["raw"]
    real = Collector.file

    def counted(self: Collector, source: str, text: bytes) -> Any:
        read.append(source)
        return real(self, source, text)

    monkeypatch.setattr(Collector, "file", counted)
    # The same file for a new checkpoint, beside one line and one tear that are new.
    other = tmp_path / "in" / "usage-b-0.jsonl"
    other.write_bytes(content(line(0, row(), gw="b", ts=DAY + 5), b"other junk"))
    writer = ingest_files(out, tmp_path / "second", file, other)
    assert read == [file.name, other.name]
    (batch,) = writer.written
    assert (batch.lines, batch.rows, batch.duplicates, batch.torn) == (1, 1, 2, 1)
    state = read_raw_state(out)
    assert (state.lines, state.duplicates, state.torn) == (3, 2, 2)
    after = contents(out)["raw"]
    assert len(after) == len(before) + 3
    assert set(before) <= set(after)
    # A copy of a line in the same batch is left out too, by reading the batch once more.
    read.clear()
    copies = [place(tmp_path / "in", f"usage-c-{at}.jsonl.gz", line(0, row(), gw="c")) for at in range(2)]
    writer = ingest_files(out, tmp_path / "second", *copies)
    assert read == 2 * [copy.name for copy in copies]
    assert (writer.written[0].lines, writer.written[0].duplicates) == (1, 1)
