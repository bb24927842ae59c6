"""The raw table: the rows that `ingest` has read, and a state that says which lines these were.

Passing arrays to the JVM, for writing or for a shuffle, costs more than computing them. So workers write raw rows
directly to files of the table. Spark gets only what the driver needs: the heads of the lines and the list of files.
The files become part of the table when the driver commits them together with the new state.

Files are ordered by bucket (`layout.bucket_of`), and row groups can be found by bucket. So compacting a day needs no
shuffle either: each task reads its own buckets from every file of the day. Lines that could not be read have the kind
`torn` and no day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from pipeline.errors import RefusedError
from pipeline.storage.bucket_groups import FileGroups
from pipeline.storage.files import files_below, parquet_reader
from pipeline.storage.joining import ORDER
from pipeline.storage.layout import EVENTS, KEY, SERIES
from pipeline.storage.offset_index import OffsetIndex
from pipeline.storage.partitioned_files import PartitionedFiles, check_counts, notes_of
from pipeline.storage.schemas import RAW_SCHEMA
from pipeline.storage.tables import DataFile, Snapshot, Table, TakenOver

ROWS_PER_GROUP: Final = 60_000
"""Raw rows (not seconds) that are sorted and written together."""
_LEAST_ROWS_PER_GROUP: Final = 1_000
_MOST_GROUPS: Final = 32
_REPEATED: Final = [column.name for column in RAW_SCHEMA if not pa.types.is_list(column.type)]
_OLDER: Final = "ledger"
_SMALL_BYTES: Final = 200_000_000
"""The most bytes of small files that a task keeps in memory, besides its bucket."""

HEADS: Final = (
    "kind", "gw", "boot", "source", "date",
    "position", "seq", "ts", "row_count", "dropped_rows", "dropped_events", "scope", "algo", "jump_ms",
)  # fmt: skip
"""Columns of the raw table that the driver gets for the kinds lines and torn."""
REPEATED: Final = "repeated"
"""The kind of rows that are not written: positions of lines that had been read before."""


@dataclass(frozen=True, slots=True)
class RawDay:
    """What has been read of a day."""

    lines: int = 0
    rows: int = 0
    """Recorded seconds of clients."""
    dropped_rows: int = 0
    dropped_events: int = 0
    algorithms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The algorithms of each gateway's controller mutation quota."""
    set_back_ms: Mapping[str, int] = field(default_factory=dict)
    """By how much each gateway's clock was set back."""
    last_batch: int = -1
    """The last batch with lines of this day."""
    gone: bool = False
    """Whether rows of this day have been pruned, now or earlier."""
    scopes: Mapping[str, tuple[int, int, str]] = field(default_factory=dict)
    """For each gateway, its newest line that names a counter's scope: start, number and scope."""
    erased: int = 0
    """Recorded seconds of clients that have been erased, which `rows` does not count."""

    def __add__(self, other: RawDay) -> RawDay:
        """The sum of both; `other` is the later one."""
        algorithms = {
            gw: tuple(sorted({*self.algorithms.get(gw, ()), *other.algorithms.get(gw, ())}))
            for gw in sorted({**self.algorithms, **other.algorithms})
        }
        set_back_ms = {
            gw: self.set_back_ms.get(gw, 0) + other.set_back_ms.get(gw, 0)
            for gw in sorted({**self.set_back_ms, **other.set_back_ms})
        }
        return RawDay(
            self.lines + other.lines,
            self.rows + other.rows,
            self.dropped_rows + other.dropped_rows,
            self.dropped_events + other.dropped_events,
            algorithms,
            set_back_ms,
            other.last_batch,
            self.gone,
            newest_scopes([*self.scopes.items(), *other.scopes.items()]),
            self.erased + other.erased,
        )

    def without(self, rows: int) -> RawDay:
        """The day after so many of its recorded seconds have been erased."""
        return replace(self, rows=self.rows - rows, erased=self.erased + rows)


def newest_scopes(lines: Iterable[tuple[str, tuple[int, int, str]]]) -> dict[str, tuple[int, int, str]]:
    """The newest line of each gateway, as in `RawDay.scopes`; `lines` may come in any order."""
    newest: dict[str, tuple[int, int, str]] = {}
    for gw, line in lines:
        newest[gw] = max(line, newest.get(gw, line))
    return dict(sorted(newest.items()))


@dataclass(frozen=True, slots=True)
class RawState:
    """What all batches so far have read."""

    batches: int = 0
    lines: int = 0
    rows: int = 0
    torn: int = 0
    duplicates: int = 0
    """Lines that came again and were skipped."""
    checkpoints: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """For each of Spark's checkpoints that was used: its last batch here, and a hash of Spark's plan for it."""
    index: OffsetIndex = field(default_factory=OffsetIndex)
    days: Mapping[str, RawDay] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The JSON that the table keeps."""
        return {
            **{name: getattr(self, name) for name in ("batches", "lines", "rows", "torn", "duplicates")},
            "checkpoints": dict(self.checkpoints),
            "runs": self.index.to_json(),
            **({"forgotten_s": self.index.forgotten_s} if self.index.forgotten_s else {}),
            # Not asdict: it copies the entries of a thousand gateways a day, which takes longer than the commit.
            "days": {
                date: {each.name: getattr(day, each.name) for each in fields(day)}
                for date, day in sorted(self.days.items())
            },
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> RawState:
        """The inverse of `to_json`. An empty mapping gives the state before the first batch."""
        if not state:
            return cls()
        days = {
            date: RawDay(
                **{
                    **day,
                    "algorithms": {gw: tuple(names) for gw, names in day["algorithms"].items()},
                    "scopes": {gw: tuple(line) for gw, line in day.get("scopes", {}).items()},
                }
            )
            for date, day in state["days"].items()
        }
        checkpoints = {name: (batch, planned) for name, (batch, planned) in state["checkpoints"].items()}
        totals = {name: state[name] for name in ("batches", "lines", "rows", "torn", "duplicates")}
        index = OffsetIndex.from_json(state["runs"], state.get("forgotten_s", 0))
        return cls(**totals, checkpoints=checkpoints, index=index, days=days)

    def without(self, rows: Mapping[str, int]) -> RawState:
        """The state after so many recorded seconds of each day have been erased."""
        days = {date: self.days[date].without(count) for date, count in rows.items() if date in self.days}
        return replace(self, rows=self.rows - sum(rows.values()), days={**self.days, **days})


def raw_table(out: str) -> Table:
    """The raw table of a pipeline's folder.

    Raises:
        RefusedError: an older release has written to the folder.
    """
    if files_below(out).get_file_info(_OLDER).type != fs.FileType.NotFound:
        raise RefusedError(
            f"{out} was written by an older release: give another folder, and ingest there what is kept"
        )
    return Table(f"{out}/raw", RAW_SCHEMA, ["date"], _take_over)


def _take_over(table: Table, found: Snapshot) -> TakenOver:
    """See `tables.TakeOver`. A day counts as pruned if lines are missing, not only rows of clients."""
    assert found.foreign is not None
    batches = (batch for file in found.files if file.foreign for batch in table.rows_of(file))
    answers = write_raw_files(batches, table.folder, found.version + 1)
    files = [answer for answer in answers if isinstance(answer, DataFile)]
    now = [*(file for file in found.files if not file.foreign), *files]
    state = RawState.from_json(found.state)
    erased: dict[str, int] = {}
    gone: list[str] = []
    for date, day in state.days.items():
        if found.foreign.touched(date) and not day.gone:
            counts = _counts(table.paths(file for file in now if file.partition["date"] == date))
            check_counts(table, found, date, before=(day.rows, day.lines), now=counts)
            rows, lines = counts
            erased[date] = day.rows - rows
            if lines < day.lines:
                gone.append(date)
    after = state.without(erased)
    days = {date: replace(day, gone=day.gone or date in gone) for date, day in after.days.items()}
    missing = [f"{count} recorded seconds of {date}" for date, count in sorted(erased.items()) if count]
    return TakenOver(files, replace(after, days=days).to_json(), notes_of(found, ", ".join(missing)))


def _counts(paths: Iterable[str]) -> tuple[int, int]:
    """Recorded seconds and lines in files of a day."""
    counts = dict.fromkeys(("t", "seq"), 0)
    for path in paths:
        with parquet_reader(path) as reader:
            for batch in reader.iter_batches(columns=["kind", *counts]):
                for name, kind in (("t", "rows"), ("seq", "lines")):
                    own = batch.filter(pc.equal(batch.column("kind"), kind)).column(name)
                    counts[name] += pc.sum(pc.list_value_length(own)).as_py() or 0
    return counts["t"], counts["seq"]


def read_raw_state(out: str) -> RawState:
    """What all batches so far have read."""
    return RawState.from_json(raw_table(out).read().state)


def write_raw_files(
    batches: Iterable[pa.RecordBatch], folder: str, version: int
) -> Iterator[pa.RecordBatch | DataFile]:
    """Writes raw rows into files of the table, with one file for each day.

    Args:
        batches: rows of the raw table.
        folder: the table's folder.
        version: the version that will add the files.

    Yields:
        Heads of the kinds lines, torn and `REPEATED`, with the columns of `HEADS`; then the files.
    """
    files = raw_files(folder, version)
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        if not batch.num_rows:
            continue  # all rows of the file were erased
        if batch.column("kind")[0].as_py() == REPEATED:
            yield batch.select(HEADS)
            continue
        waiting.append(batch)
        heads = batch.filter(pc.is_in(batch.column("kind"), pa.array(["lines", "torn"])))
        if heads.num_rows:
            yield heads.select(HEADS)
        if sum(one.num_rows for one in waiting) >= ROWS_PER_GROUP:
            _write(files, waiting)
            waiting = []
    if waiting:
        _write(files, waiting)
    yield from files.end()


def raw_files(folder: str, version: int) -> PartitionedFiles:
    """New files of the table; see `write_raw_files`."""
    return PartitionedFiles(
        folder,
        version,
        ["date"],
        RAW_SCHEMA,
        compression="zstd",
        compression_level=1,
        # For numbers that nearly all differ, a dictionary makes a file larger and 1.6 times as slow to write.
        use_dictionary=_REPEATED,
        write_statistics=["bucket"],
    )


def _write(files: PartitionedFiles, batches: list[pa.RecordBatch]) -> None:
    rows = (
        pa.Table.from_batches(batches)
        .sort_by([("date", "ascending"), ("bucket", "ascending")])
        .combine_chunks()
    )
    dates = rows.column("date").combine_chunks()
    differs = pc.fill_null(pc.not_equal(dates[1:], dates[:-1]), False).to_numpy(zero_copy_only=False)
    # Rows without a day come last.
    differs = differs | np.diff(dates.is_null().to_numpy(zero_copy_only=False).astype(np.int8)).astype(bool)
    begins = [0, *(np.flatnonzero(differs) + 1).tolist(), len(rows)]
    for begin, end in pairwise(begins):
        date = dates[begin].as_py()
        own = rows.slice(begin, end - begin)
        # Lines get a row group of their own. So the statistics of the other groups give their buckets.
        lines = int(np.searchsorted(own.column("bucket").to_numpy(), 0))
        for part in (own.slice(0, lines), own.slice(lines)):
            if len(part):
                groups = min(_MOST_GROUPS, len(part) // _LEAST_ROWS_PER_GROUP + 1)
                files.write((None if date is None else date.isoformat(),), part, len(part) // groups + 1)


class DayReader:
    """The rows of some buckets of a day, one bucket after the other; runs in Spark's Python workers."""

    def __init__(
        self, files: Iterable[FileGroups], mine: range, *, columns: Sequence[str] | None = None
    ) -> None:
        """Opens nothing.

        Args:
            files: the files of the day.
            mine: the buckets, out of `FINE_BUCKETS`, that will be read.
            columns: columns of the raw table. None: those that a compacted row needs.
        """
        self._mine = mine
        self._columns = _READ if columns is None else columns
        self._files = [file for file in files if file.groups(mine.start, mine.stop)]
        self._small: dict[str, pa.Table] = {}
        self._small_bytes = 0

    def read(self, first: int, end: int) -> Iterator[pa.Table]:
        """The rows of some buckets within `mine`, file by file."""
        for file in self._files:
            table = self._small.get(file.path)
            if table is None:
                groups = file.groups(first, end)
                if not groups:
                    continue
                if file.one_group and self._small_bytes < _SMALL_BYTES:
                    # A small file is read once for all buckets: a stream leaves many such files.
                    groups = file.groups(self._mine.start, self._mine.stop)
                    table = self._columns_of(file.path, groups)
                    table = _between(table, self._mine.start, self._mine.stop)
                    self._small[file.path] = table
                    self._small_bytes += table.nbytes
                else:
                    table = self._columns_of(file.path, groups)
            table = _between(table, first, end)
            if len(table):
                yield table

    def _columns_of(self, path: str, groups: list[int]) -> pa.Table:
        with parquet_reader(path) as file:
            table = file.read_row_groups(groups, columns=list(self._columns), use_threads=False)
        for name in self._columns:
            # An older release did not write this column.
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(len(table), RAW_SCHEMA.field(name).type))
        return table.select(list(self._columns))


def _between(table: pa.Table, first: int, end: int) -> pa.Table:
    fine = table.column("bucket")
    return table.filter(pc.and_(pc.greater_equal(fine, first), pc.less(fine, end)))


_READ: Final = [*KEY, *ORDER, "bucket", *SERIES, *EVENTS]
