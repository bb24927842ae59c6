"""Erases a client's rows from the tables; after each commit the table fits its state.

Files with rows of the client are rewritten without them. Then replaced files and old files of the log are deleted. If
the process is killed at any moment, the tables are intact, and the next run does the rest.

Before the last commit to a table, each file of the previous version has been checked, even if there is nothing to
erase. So a job that has read rows of the client before, and commits later, gets a conflict and starts again; see
`pipeline.erase.erasure`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.client_tables.tables import is_made
from pipeline.erase.client import Client
from pipeline.storage.compacted_days import CompactedState, compacted_table, published_days
from pipeline.storage.compacted_files import CompactedFileWriter, buckets_of, pieces_of
from pipeline.storage.counting import fleets_of
from pipeline.storage.files import end_of
from pipeline.storage.raw_table import RawState, raw_table, write_raw_files
from pipeline.storage.schemas import COMPACTED_SCHEMA
from pipeline.storage.tables import Conflict, DataFile, Snapshot, Table

Found: TypeAlias = "Counter[tuple[str, str]]"
"""Number of rows found, by place and kind."""

SECONDS: Final = "recorded seconds"
MUTATIONS: Final = "controller mutations"
ROWS: Final = "rows"
UNREADABLE: Final = "lines that could not be read"

_TRIES: Final = 5
_BYTES_AT_ONCE: Final = 64_000_000
"""Size of files in one commit. `ingest` commits every half minute. Of two concurrent commits the later one loses its
files."""
_NAMES: Final = ["user", "client_id", "api"]

Lines: TypeAlias = dict[tuple[str, int], NDArray[np.int64]]
"""Numbers of lines by gateway and start; a line occurs once for each of its rows of the client."""


@dataclass(frozen=True, slots=True)
class Change:
    """A commit that removes rows."""

    add: Sequence[DataFile]
    remove: Sequence[DataFile]
    state: Mapping[str, Any]


class ClientRows(Protocol):
    """A client's rows in one table.

    Attributes:
        table: the table.
    """

    table: Table

    def found(self, file: DataFile) -> Found:
        """The rows of the client in a file; empty if the file does not name the client."""

    def without(self, before: Snapshot, files: Sequence[DataFile]) -> Change:
        """A change that removes the client from some of these files, from at least one if there are any."""


def erase_rows(rows: ClientRows) -> None:
    """Removes all rows of the client from a table. Replaced files stay on the disk until `Table.sweep`.

    Raises:
        Conflict: another job has changed the table each time.
        JobError: the table can't be read or written.
    """
    table = rows.table
    if table.read().version < 0:
        return
    known: dict[str, bool] = {}
    """Whether files name the client."""
    left = _TRIES
    while True:
        before = table.prepared()
        known |= {file.path: bool(rows.found(file)) for file in before.files if file.path not in known}
        named = [file for file in before.files if known[file.path]]
        change = rows.without(before, named)
        try:
            table.commit(before, add=change.add, remove=change.remove, state=change.state)
        except Conflict:
            left -= 1
            if not left:
                raise
            continue
        left = _TRIES
        known |= {file.path: False for file in change.add}
        if {file.path for file in named} <= {file.path for file in change.remove}:
            return


class RawRows:
    """`ClientRows` of the raw table."""

    def __init__(self, out: str, client: Client) -> None:
        """Args: out: the pipeline's folder. client: the client."""
        self.table = raw_table(out)
        self._client = client

    def found(self, file: DataFile) -> Found:
        """See `ClientRows`."""
        return self._look(file)[0]

    def without(self, before: Snapshot, files: Sequence[DataFile]) -> Change:
        """See `ClientRows`."""
        chosen: list[DataFile] = []
        for file in files:
            if chosen and sum(each.bytes for each in chosen) + file.bytes > _BYTES_AT_ONCE:
                break
            chosen.append(file)
        seconds: Counter[str] = Counter()
        kept = self._kept(chosen, seconds)
        files_of = write_raw_files(kept, self.table.folder, before.version + 1)
        add = [answer for answer in files_of if isinstance(answer, DataFile)]
        return Change(add, chosen, RawState.from_json(before.state).without(seconds).to_json())

    def _kept(self, files: Sequence[DataFile], seconds: Counter[str]) -> Iterator[pa.RecordBatch]:
        """The rows of all other clients. Counts recorded seconds of the client by day."""
        for file in files:
            found, lines = self._look(file)
            date = file.partition["date"]
            if date is not None:
                seconds[date] += sum(count for (_, what), count in found.items() if what == SECONDS)
            for batch in self.table.rows_of(file):
                batch = batch.filter(pc.invert(self._named(batch)))
                yield _with_fewer_rows(batch, lines)

    def _named(self, batch: pa.RecordBatch) -> Any:
        named = self._client.rows(batch)
        torn = pc.equal(batch.column("kind"), "torn")
        if not pc.any(torn).as_py():
            return named
        # Of lines that could not be read, each that mentions the client is removed.
        texts = zip(batch.column("text").to_pylist(), batch.column("reason").to_pylist(), strict=True)
        mentioned = [
            self._client.is_in(text or b"") or self._client.is_in((reason or "").encode())
            for text, reason in texts
        ]
        return pc.or_(named, pc.and_(torn, pa.array(mentioned, pa.bool_())))

    def _look(self, file: DataFile) -> tuple[Found, Lines]:
        where = f"raw {file.partition['date'] or 'without a day'}"
        found: Found = Counter()
        lines: dict[tuple[str, int], list[Any]] = {}
        names = [*_NAMES, "kind", *(["text", "reason"] if file.partition["date"] is None else [])]
        # Reading arrays takes nearly all of the time, and most files do not name the client.
        if not any(pc.any(self._named(each)).as_py() for each in self.table.rows_of(file, names)):
            return found, {}
        for batch in self.table.rows_of(file, [*names, "gw", "boot", "seq", "e_ms"]):
            own = batch.filter(self._named(batch))
            kinds = own.column("kind")
            for kind, what, array in (("rows", SECONDS, "seq"), ("events", MUTATIONS, "e_ms")):
                lengths = pc.list_value_length(own.filter(pc.equal(kinds, kind)).column(array))
                found[where, what] += pc.sum(lengths).as_py() or 0
            found[where, UNREADABLE] += pc.sum(pc.equal(kinds, "torn")).as_py() or 0
            for gw, boot, seqs in _numbers_of(own.filter(pc.equal(kinds, "rows"))):
                lines.setdefault((gw, boot), []).append(seqs)
        return +found, {run: np.sort(np.concatenate(seqs)) for run, seqs in lines.items()}


def _numbers_of(rows: pa.RecordBatch) -> Iterator[tuple[str, int, NDArray[np.int64]]]:
    """Gateway, start and line numbers of each row."""
    columns = (rows.column(name) for name in ("gw", "boot", "seq"))
    for gw, boot, seqs in zip(*columns, strict=True):
        yield gw.as_py(), boot.as_py(), seqs.values.to_numpy()


def _with_fewer_rows(batch: pa.RecordBatch, erased: Lines) -> pa.RecordBatch:
    """Raw rows in which the heads of lines no longer count the erased rows."""
    heads = np.flatnonzero(pc.equal(batch.column("kind"), "lines").to_numpy(zero_copy_only=False))
    if not erased or not len(heads):
        return batch
    counts = batch.column("row_count")
    offsets = counts.offsets.to_numpy()
    values = counts.values.to_numpy().copy()
    for at, (gw, boot, seqs) in zip(heads.tolist(), _numbers_of(batch.take(pa.array(heads))), strict=True):
        own = erased.get((gw, boot), np.empty(0, np.int64))
        fewer = np.searchsorted(own, seqs, side="right") - np.searchsorted(own, seqs, side="left")
        values[offsets[at] : offsets[at + 1]] -= fewer.astype(values.dtype)
    column = pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(values, counts.type.value_type), mask=counts.is_null()
    )
    return batch.set_column(batch.schema.get_field_index("row_count"), "row_count", column)


class CompactedRows:
    """`ClientRows` of compacted days."""

    def __init__(self, out: str, client: Client) -> None:
        """Args: out: the pipeline's folder. client: the client."""
        self.table = compacted_table(out)
        self._client = client

    def found(self, file: DataFile) -> Found:
        """See `ClientRows`."""
        where = f"compacted {file.partition['date']}"
        found: Found = Counter()
        for own in _named_rows(self.table, file, self._client, "t"):
            found[where, ROWS] += own.num_rows
            found[where, SECONDS] += pc.sum(pc.list_value_length(own.column("t"))).as_py() or 0
        return +found

    def without(self, before: Snapshot, files: Sequence[DataFile]) -> Change:
        """See `ClientRows`."""
        if not files:
            return Change((), (), before.state)
        state = CompactedState.from_json(before.state)
        date = str(files[0].partition["date"])
        chosen = [file for file in files if file.partition["date"] == date]
        found = sum((self.found(file) for file in chosen), Counter())
        keys, seconds = (
            sum(count for (_, each), count in found.items() if each == what) for what in (ROWS, SECONDS)
        )
        days = {
            **state.days,
            **({date: state.days[date].without(keys, seconds)} if date in state.days else {}),
        }
        add = [new for file in chosen if (new := self._written(before, file)) is not None]
        return Change(add, chosen, CompactedState(days, state.pruned).to_json())

    def _written(self, before: Snapshot, file: DataFile) -> DataFile | None:
        """Writes the rows of all other clients to a new file."""
        path = self.table.new_path(before, f"date={file.partition['date']}")
        with CompactedFileWriter(f"{self.table.folder}/{path}") as writer:
            pieces = sorted(pieces_of([self.table.path(file)]))
            for bucket, batches in buckets_of(pieces, COMPACTED_SCHEMA.names):
                kept = (batch.filter(pc.invert(self._client.rows(batch))) for batch in batches)
                writer.write(bucket, (batch for batch in kept if batch.num_rows))
        if not writer.keys:
            return None
        return DataFile(path, dict(file.partition), writer.keys, end_of(f"{self.table.folder}/{path}"))


class MadeRows:
    """`ClientRows` of a table that is made of compacted days.

    It also has sums over all clients, and the largest clients of a day. So all rows of a day are removed. They are
    then made again from the remaining compacted rows.
    """

    def __init__(self, out: str, table: Table, client: Client) -> None:
        """Args: out: the pipeline's folder. table: the table. client: the client."""
        self.table = table
        self._out = out
        self._client = client

    def found(self, file: DataFile) -> Found:
        """See `ClientRows`."""
        where = f"{self.table.folder.rpartition('/')[2]} {file.partition['date']}"
        found: Found = Counter()
        for own in _named_rows(self.table, file, self._client):
            found[where, ROWS] += own.num_rows
        return +found

    def without(self, before: Snapshot, files: Sequence[DataFile]) -> Change:
        """See `ClientRows`."""
        published = published_days(self._out)
        fleets = fleets_of(published)
        current = {day.date for day in published if is_made(day, fleets, before)}
        gone = {file.partition["date"] for file in files} | (before.state.get("days", {}).keys() - current)
        remove = [file for file in before.files if file.partition["date"] in gone]
        days = {date: made for date, made in before.state.get("days", {}).items() if date not in gone}
        return Change((), remove, {"days": days})


def _named_rows(table: Table, file: DataFile, client: Client, *more: str) -> Iterator[pa.RecordBatch]:
    """Rows of the client in a file, with the columns of names and further columns."""
    if any(pc.any(client.rows(each)).as_py() for each in table.rows_of(file, _NAMES)):
        for batch in table.rows_of(file, [*_NAMES, *more]):
            yield batch.filter(client.rows(batch))
