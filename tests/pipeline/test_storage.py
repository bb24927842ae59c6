"""Tables that change in one commit, and which lines have been read."""

import datetime
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from pipeline.errors import JobError
from pipeline.storage import tables
from pipeline.storage.files import end_of, files_below, is_local, parquet_writer, read_bytes
from pipeline.storage.layout import FINE_BUCKETS, bucket_of, buckets_for
from pipeline.storage.offset_index import Entry, Gap, Interval, OffsetIndex, Run
from pipeline.storage.partitioned_files import take_over_rows
from pipeline.storage.raw_table import RawDay, RawState
from pipeline.storage.tables import Conflict, DataFile, Snapshot, Table

DAY = "2026-11-21"
NEXT = "2026-11-22"
COLUMNS = pa.schema([("date", pa.date32()), ("x", pa.int64())])


# -- tables ----------------------------------------------------------------------------------------------------------
@pytest.fixture(params=["here", pytest.param("s3", marks=pytest.mark.slow)])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    root = str(tmp_path / "a b?") if request.param == "here" else request.getfixturevalue("bucket")
    return Table(f"{root}/table", COLUMNS, ["date"], take_over_rows)


def written(table: Table, before: Snapshot, date: str, *values: int) -> DataFile:
    path = table.new_path(before, f"date={date}")
    days = pa.array([datetime.date.fromisoformat(date)] * len(values), pa.date32())
    rows = pa.table({"date": days, "x": pa.array(values, pa.int64())})
    with parquet_writer(f"{table.folder}/{path}", rows.schema) as writer:
        writer.write_table(rows)
    return DataFile(path, {"date": date}, len(values), end_of(f"{table.folder}/{path}"), 0)


def files_of(table: Table) -> Any:
    """All that lies there, a part of the table or not."""
    return files_below(table.folder).get_file_info(fs.FileSelector("", recursive=True))


def values_of(table: Table) -> list[int]:
    """As anybody reads a Delta table."""
    rows = DeltaTable(table._uri).to_pyarrow_table(columns=["x"])
    return sorted(value for value in rows.column("x").to_pylist() if value is not None)


def test_rows_and_state_change_in_one_commit_and_an_older_version_stays_as_it_was(table: Table) -> None:
    assert (table.read().version, table.read().state) == (-1, {})
    empty = table.prepared()
    first = table.commit(
        empty, add=[written(table, empty, DAY, 1, 2), written(table, empty, NEXT, 3)], state={"n": 1}
    )
    assert (first.state, [file.rows for file in first.of(date=DAY)]) == ({"n": 1}, [2])
    assert values_of(table) == [1, 2, 3]
    second = table.commit(
        first, add=[written(table, first, DAY, 4)], remove=first.of(date=DAY), state={"n": 2, "text": "ü\n"}
    )
    assert second == table.read()
    assert (second.state, values_of(table)) == ({"n": 2, "text": "ü\n"}, [3, 4])
    assert (first.state, len(first.files)) == ({"n": 1}, 2)
    assert all(read_bytes(table.path(file)) for file in first.files)


def test_of_two_that_write_upon_the_same_version_one_is_told_and_nothing_of_it_counts(table: Table) -> None:
    before = table.prepared()
    mine, theirs = written(table, before, DAY, 1), written(table, before, DAY, 2)
    table.commit(before, add=[theirs], state={"who": "they"})
    with pytest.raises(Conflict, match="was changed by another job meanwhile"):
        table.commit(before, add=[mine], state={"who": "me"})
    assert (table.read().state, values_of(table)) == ({"who": "they"}, [2])
    # A table that is made by two at once is made once.
    assert table.prepared() == table.read()


def test_a_commit_whose_answer_was_lost_is_there_all_the_same(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    before, commit = table.prepared(), DeltaTable.create_write_transaction

    def lost(handle: DeltaTable, *arguments: Any, **options: Any) -> None:
        commit(handle, *arguments, **options)
        raise OSError("connection reset")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lost)
    assert table.commit(before, add=[written(table, before, DAY, 1)], state={"n": 1}).state == {"n": 1}
    assert values_of(table) == [1]

    def failed(*arguments: Any, **options: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", failed)
    with pytest.raises(JobError, match="No space left on device"):
        table.commit(table.read(), state={"n": 2})
    assert table.read().state == {"n": 1}


def test_files_of_attempts_that_came_to_nothing_go_and_those_under_way_stay(table: Table) -> None:
    before = table.prepared()
    left = written(table, before, DAY, 9)
    now = table.commit(before, add=[written(table, before, DAY, 1)], state={})
    replaced = now.of(date=DAY)
    under_way = written(table, now, DAY, 2)
    assert table.sweep() == left.bytes
    after = table.commit(now, add=[under_way], remove=replaced, state={})
    # What was replaced can still be read, until the next one sweeps.
    assert read_bytes(table.path(replaced[0]))
    next_one = written(table, after, NEXT, 3)
    foreign = f"{table.folder}/date={DAY}/part-00000.parquet"
    with parquet_writer(foreign, COLUMNS):
        pass
    assert table.sweep() > 0
    assert table.sweep() == 0
    assert read_bytes(table.path(replaced[0])) is None
    assert read_bytes(foreign)
    table.commit(after, add=[next_one], state={})
    assert values_of(table) == [2, 3]


def test_old_states_are_not_kept_and_a_reader_finds_the_one_of_its_version(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_STATES_KEPT", 3)
    found = table.prepared()
    for number in range(8):
        found = table.commit(found, state={"n": number})
    states = os.listdir(f"{table.folder}/state") if is_local(table.folder) else []
    assert len(states) <= 5
    assert table.read().state == {"n": 7}


def test_a_table_gets_columns_that_a_newer_release_writes(table: Table) -> None:
    before = table.prepared()
    table.commit(before, add=[written(table, before, DAY, 1)], state={"n": 1})
    newer = Table(table.folder, COLUMNS.append(pa.field("y", pa.list_(pa.float64()))), ["date"], take_over_rows)
    now = newer.prepared()
    assert (now.state, newer.prepared().version) == ({"n": 1}, now.version)
    assert "y" in [column.name for column in DeltaTable(table._uri).schema().fields]
    # The older one can continue.
    now = table.prepared()
    table.commit(now, add=[written(table, now, DAY, 2)], state={"n": 2})
    assert values_of(table) == [1, 2]


def test_files_that_another_writer_has_written_are_read_and_written_anew(table: Table) -> None:
    found = table.prepared()
    for value in (1, 2):
        found = table.commit(found, add=[written(table, found, DAY, value)], state={"n": value})
    other = DeltaTable(table._uri)
    other.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    other.update_incremental()
    other.optimize.compact(partition_filters=[("date", "=", DAY)])
    other.delete("x = 1")
    found = table.read()
    assert (found.state, [file.foreign for file in found.files]) == ({"n": 2}, [True])
    moved = found.files[0].path
    found = table.in_order()
    assert (found.state, [file.foreign for file in found.files], values_of(table)) == ({"n": 2}, [False], [2])
    # What another writer has left is swept as well.
    assert moved in [info.path for info in files_of(table)]
    table.sweep()
    assert moved not in [info.path for info in files_of(table)]
    assert (table.in_order().version, values_of(table)) == (found.version, [2])


def test_two_that_sweep_at_once_and_a_clean_up_that_fails_do_no_harm(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = table.prepared()
    written(table, before, DAY, 9)
    now = table.commit(before, state={"n": 1})
    files, deleting = files_below(table.folder), []

    class Late:
        """Each file is deleted by another one first."""

        get_file_info = files.get_file_info

        def delete_file(self, path: str) -> None:
            deleting.append(path)
            files.delete_file(path)
            files.delete_file(path)

    monkeypatch.setattr("pipeline.storage.tables.files_below", lambda folder: Late())
    table.sweep()
    assert len(deleting) == 1
    monkeypatch.undo()

    def failing(*arguments: Any, **options: Any) -> int:
        raise PermissionError("read-only")

    monkeypatch.setattr(Table, "_delete", failing)
    assert table.commit(now, state={"n": 2}).state == {"n": 2}


@pytest.mark.parametrize("root", ["{here}/a%20b", "{here}/a\\b", "s3://bucket/a#b", "s3://bucket/a?b"])
def test_a_folder_whose_name_leads_elsewhere_is_refused(tmp_path: Path, root: str) -> None:
    with pytest.raises(JobError, match="in its name can't hold tables"):
        Table(root.format(here=tmp_path), COLUMNS, ["date"], take_over_rows)


def test_a_log_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    table = Table(str(tmp_path / "table"), COLUMNS, ["date"], take_over_rows)
    table.commit(table.prepared(), state={"n": 1})
    log = max((tmp_path / "table" / "_delta_log").glob("*.json"))
    log.write_bytes(log.read_bytes()[:-40])
    with pytest.raises(JobError, match="table: Kernel error"):
        table.read()


def test_paths_with_a_scheme_are_elsewhere() -> None:
    assert is_local("/data/out") and is_local("out") and is_local("file:///data")  # noqa: PT018
    assert not is_local("s3://bucket/out")


# -- buckets and states ----------------------------------------------------------------------------------------------
def test_a_keys_bucket_never_changes() -> None:
    # Files of an older release are searched by it.
    assert bucket_of("user", "client", "produce") == 446
    assert {bucket_of("u", f"c{number}", "fetch") for number in range(20_000)} == set(range(FINE_BUCKETS))


def test_a_day_has_as_many_buckets_as_it_is_large() -> None:
    assert [buckets_for(rows) for rows in (0, 64_000_000, 64_000_001, 10**9, 10**12)] == [4, 32, 64, 512, 1024]


def test_what_is_read_of_a_day_adds_up() -> None:
    one = RawDay(1, 10, 2, 3, {"a": ("rate",)}, {"a": 5}, last_batch=4, gone=True)
    other = RawDay(2, 20, 0, 1, {"a": ("token_bucket",), "b": ("rate",)}, {"b": 1}, last_batch=6)
    both = RawDay(3, 30, 2, 4, {"a": ("rate", "token_bucket"), "b": ("rate",)}, {"a": 5, "b": 1}, 6, gone=True)
    assert one + other == both
    state = RawState(1, 2, 3, 4, 5, {"c": (6, "planned")}, OffsetIndex(), {DAY: both})
    assert RawState.from_json(state.to_json()) == state
    assert RawState.from_json({}) == RawState()


# -- the offset index ------------------------------------------------------------------------------------------------
RUN = Run("a", 1_790_000_000_000)
START = RUN.boot // 1000


def entries(*seqs: int, run: Run = RUN) -> list[Entry]:
    return [Entry(run, seq, run.boot // 1000 + 1 + seq) for seq in seqs]


LINES = st.lists(
    st.builds(
        lambda gw, boot, seq: Entry(Run(gw, boot), seq, boot // 1000 + 1 + seq),
        st.sampled_from(["a", "b"]),
        st.sampled_from([RUN.boot, RUN.boot + 5_000]),
        st.integers(0, 30),
    ),
    max_size=60,
)


def read(lines: list[Entry], batch: int) -> tuple[OffsetIndex, int]:
    index, duplicates = OffsetIndex(), 0
    for begin in range(0, len(lines), batch):
        index, repeated = index.add(lines[begin : begin + batch])
        duplicates += len(repeated)
    return index, duplicates


@given(LINES, st.randoms(use_true_random=False), st.integers(1, 70), st.integers(1, 70))
def test_any_order_and_repetition_end_in_the_same_index(
    lines: list[Entry], chance: object, batch: int, other: int
) -> None:
    again = lines + lines[::2]
    chance.shuffle(again)  # type: ignore[attr-defined]
    index, duplicates = read(lines, batch)
    shuffled, more_duplicates = read(again, other)
    assert shuffled == index
    assert index.lines() == len(set(lines)) == len(lines) - duplicates == len(again) - more_duplicates


@given(LINES)
def test_lines_and_gaps_are_all_numbers_up_to_the_last_one(lines: list[Entry]) -> None:
    index, _ = OffsetIndex().add(lines)
    last = {run: max(seq for owner, seq, _ in lines if owner == run) for run, _, _ in lines}
    missing = {(gap.gw, gap.boot, seq) for gap in index.gaps() for seq in range(gap.first, gap.last + 1)}
    there = {(*run, seq) for run, seq, _ in lines}
    assert missing | there == {(*run, seq) for run, end in last.items() for seq in range(end + 1)}
    assert not missing & there


@given(LINES)
def test_an_index_comes_back_from_json_as_it_was(lines: list[Entry]) -> None:
    index, _ = OffsetIndex().add(lines)
    assert OffsetIndex.from_json(index.to_json()) == index


def test_neighbours_join_and_a_gap_names_its_lines_and_the_seconds_around_it() -> None:
    index, duplicates = OffsetIndex().add(entries(3, 1, 2, 2))
    assert duplicates == [3]
    assert index.runs == {RUN: (Interval(1, 3, START + 2, START + 4),)}
    index, duplicates = index.add(entries(0, 1))
    assert duplicates == [1]
    assert index.runs == {RUN: (Interval(0, 3, START + 1, START + 4),)}
    index, _ = OffsetIndex().add(entries(2, 3, 7))
    assert list(index.gaps()) == [
        Gap("a", RUN.boot, 0, 1, START, START + 3),
        Gap("a", RUN.boot, 4, 6, START + 4, START + 8),
    ]
