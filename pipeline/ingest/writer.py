"""Writes one micro-batch of `ingest` so that it counts exactly once, even if it is tried several times.

Workers write the rows of the batch. One commit then adds them to the raw table, together with the new state: which
lines have been read, and that this batch of this checkpoint is among them (`pipeline.storage.raw_table`).

* A run that is killed before the commit tries the batch again with the same input, because Spark recorded beforehand
  what belongs to the batch.
* A run that is killed after the commit finds the batch in the state and skips it.
* If another job has committed meanwhile, the batch is written again on top of the new version. So several ingests may
  write to one folder.

Workers get the index of lines that have been read, and leave these lines out. Two copies of a line in one batch are
rare. In that case the rows of the batch are written again without the second copies.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import JobError, RefusedError
from pipeline.ingest.collector import NOTHING_READ, Collector, Skip
from pipeline.ingest.lines import KEPT_BYTES, UNSIGNED, Torn
from pipeline.spark.runner import Runner, results_of
from pipeline.storage.coverage import day_number
from pipeline.storage.files import read_bytes
from pipeline.storage.offset_index import DAY_S, Entry, OffsetIndex, Run
from pipeline.storage.raw_merging import merge_small
from pipeline.storage.raw_table import (
    HEADS,
    REPEATED,
    RawDay,
    RawState,
    newest_scopes,
    raw_files,
    raw_table,
    write_raw_files,
)
from pipeline.storage.tables import Conflict, DataFile, Snapshot, Table
from quotas.record_signature import SIGNATURE_HEADER, RecordSigner

_TRIES: Final = 5
_CHECKPOINTS_KEPT: Final = 100

Collect = Callable[[Iterable[pa.RecordBatch], Skip, OffsetIndex], Iterator[pa.RecordBatch]]


def files_to_rows(
    batches: Iterable[pa.RecordBatch], skip: Skip, known: OffsetIndex = NOTHING_READ
) -> Iterator[pa.RecordBatch]:
    """Converts whole files (columns path, content) to raw rows; runs in Spark's Python workers."""
    with _without_collector():
        for batch in batches:
            for path, content in zip(batch.column("path"), batch.column("content"), strict=True):
                yield from Collector(skip, known).file(path.as_py(), content.as_py())


def messages_to_rows(
    batches: Iterable[pa.RecordBatch],
    skip: Skip,
    known: OffsetIndex = NOTHING_READ,
    *,
    secrets: Sequence[bytes] = (),
) -> Iterator[pa.RecordBatch]:
    """Converts messages (columns topic, partition, offset, value) to raw rows; runs in Spark's Python workers.

    With secrets (and the columns key and headers), a message that is not signed with one of them is not read.
    """
    with _without_collector():
        found = _signed_messages(batches, secrets) if secrets else _messages(batches)
        for source, messages in groupby(found, key=lambda message: message[0]):
            texts = ((offset, text) for _, offset, text in messages)
            yield from Collector(skip, known).messages(source, texts)


def _signed_messages(
    batches: Iterable[pa.RecordBatch], secrets: Sequence[bytes]
) -> Iterator[tuple[str, int, bytes | Torn]]:
    signers: dict[str, RecordSigner] = {}
    names = ("topic", "partition", "offset", "key", "value", "headers")
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in names]
        for topic, partition, offset, key, value, headers in zip(*columns, strict=True):
            signer = signers.get(topic) or signers.setdefault(topic, RecordSigner(topic, secrets))
            signature = {header["key"]: header["value"] for header in headers or ()}.get(SIGNATURE_HEADER)
            text: bytes | Torn = value or b""
            if signer.secret_of(signature, key, value) is None:
                text = Torn(offset, UNSIGNED, (value or b"")[:KEPT_BYTES])
            yield f"{topic}-{partition}", offset, text


def _messages(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, int, bytes | Torn]]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("topic", "partition", "offset", "value")]
        for topic, partition, offset, value in zip(*columns, strict=True):
            yield f"{topic}-{partition}", offset, value or b""


@contextmanager
def _without_collector() -> Iterator[None]:
    """Turns Python's cycle collector off: the many short lists have no cycles, and it would take half of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Writer:
    """Writes batches; the function that Spark's `foreachBatch` calls.

    Attributes:
        written: totals of each batch that this object has committed.
        failure: the error with which it refused a batch. Spark passes on only the text of an exception.
    """

    def __init__(self, out: str, checkpoint: str, collect: Collect, runner: Runner) -> None:
        """Writes nothing yet.

        Args:
            out: the pipeline's folder.
            checkpoint: Spark's checkpoint of the query.
            collect: `files_to_rows` or `messages_to_rows`.
            runner: merges small files.

        Raises:
            RefusedError: an older release has written to `out`.
        """
        self.written: list[RawState] = []
        self.failure: JobError | None = None
        self._collect = collect
        self._runner = runner
        self._checkpoint = checkpoint
        self._table = raw_table(out)

    def __call__(self, frame: Any, batch: int) -> None:
        """Writes a batch.

        Args:
            frame: the batch's rows from the source.
            batch: its number in the checkpoint; a number always comes with the same rows.
        """
        try:
            for left in reversed(range(_TRIES)):
                try:
                    return self._write(frame, batch)
                except Conflict:
                    if not left:
                        raise
        except JobError as exc:
            self.failure = exc
            raise

    def _write(self, frame: Any, batch: int) -> None:
        planned = self._planned(batch)
        before = self._table.prepared()
        state = RawState.from_json(before.state)
        name = self._name()
        last, last_planned = state.checkpoints.get(name, (-1, ""))
        if (batch, planned) == (last, last_planned):
            return  # a run was killed after the commit, before Spark recorded that the batch is done
        if batch != last + 1:
            fault = (
                "is a copy from before what was read since" if batch <= last else "has read what is not there"
            )
            raise RefusedError(
                f"{self._checkpoint} comes with batch {batch}, and {self._table.folder} has batches of it up to "
                f"{last}: it {fault}. Give this ingest a new checkpoint; lines that were read are not read twice"
            )
        read = read_lines(self._table, before, state, self._collect, partial(results_of, frame))
        if read is None:
            raise JobError(
                f"what batch {batch} reads changed while it was read: a file that was still being written, or a "
                "topic that gave up its oldest messages. Nothing of it was taken; ingest again"
            )
        if read.new.torn:
            read = self._without_known_torn(before, read)
        others = {each: known for each, known in state.checkpoints.items() if each != name}
        checkpoints = others | {name: (batch, planned)}
        if len(checkpoints) > _CHECKPOINTS_KEPT:
            # Drops those unused longest. Lines that they read again would be recognized by the offset index.
            checkpoints = dict(list(checkpoints.items())[-_CHECKPOINTS_KEPT:])
        after = replace(read.added_to(state), checkpoints=checkpoints)
        committed = self._table.commit(before, add=read.files, state=after.to_json())
        self.written.append(read.new)
        merge_small(self._runner, self._table, committed)

    def _name(self) -> str:
        """Spark's id of this checkpoint, which it writes before the first batch."""
        return str(json.loads(read_bytes(f"{self._checkpoint}/metadata") or b"{}")["id"])

    def _planned(self, batch: int) -> str:
        """Hash of what Spark recorded about the batch beforehand. Equal if and only if the same batch is retried."""
        return hashlib.sha256(read_bytes(f"{self._checkpoint}/offsets/{batch}") or b"").hexdigest()[:16]

    def _without_known_torn(self, before: Snapshot, found: ReadLines) -> ReadLines:
        """Leaves out unreadable lines that an earlier batch has already added to the table."""
        kept_lines = (batch for file in before.of(date=None) for batch in self._table.rows_of(file, _OF_TORN))
        known = {torn_line for batch in kept_lines for torn_line in _torn_lines(batch)}
        kept = [file for file in found.files if file.partition["date"] is not None]
        torn = 0
        new = raw_files(self._table.folder, before.version + 1)
        for file in found.files:
            if file.partition["date"] is None:
                for batch in self._table.rows_of(file):
                    new_ones = [torn_line not in known for torn_line in _torn_lines(batch)]
                    rows = batch.filter(pa.array(new_ones, pa.bool_()))
                    torn += rows.num_rows
                    if rows.num_rows:
                        new.write((None,), pa.Table.from_batches([rows]), rows.num_rows)
        return replace(found, new=replace(found.new, torn=torn), files=[*kept, *new.end()])


@dataclass(frozen=True, slots=True)
class ReadLines:
    """Lines whose rows are written but not committed yet.

    Attributes:
        new: their contribution to the totals and days; `new.duplicates` are not among the lines.
        index: the offset index including these lines.
        files: the files with their rows.
    """

    new: RawState
    index: OffsetIndex
    files: list[DataFile]

    def added_to(self, state: RawState) -> RawState:
        """The state with these lines added."""
        days = {date: state.days.get(date, RawDay()) + day for date, day in self.new.days.items()}
        return replace(
            state,
            **{total: getattr(state, total) + getattr(self.new, total) for total in _TOTALS},
            index=self.index,
            days={**state.days, **days},
        )


Answer: TypeAlias = pa.RecordBatch | DataFile
Written: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[Answer]]


def read_lines(
    table: Table,
    before: Snapshot,
    state: RawState,
    collect: Collect,
    run: Callable[[Written], Iterable[Answer]],
) -> ReadLines | None:
    """Reads lines and writes their rows as files of the raw table.

    Args:
        table: the raw table.
        before: its newest version.
        state: the state of that version.
        collect: makes raw rows from the source's data.
        run: applies a function to the source's data and returns its results; it may be called twice.

    Returns:
        The lines; None if the source returned other data the second time.
    """
    place = table.folder, before.version + 1
    found = write_rows(run, collect, place, frozenset(), state.index)
    heads = found.heads
    index, duplicates = state.index.add(
        Entry(Run(gw, boot), seq, ts) for gw, boot, _, _, seq, ts, *_ in heads
    )
    if duplicates:
        repeated = set(duplicates)
        again = frozenset((heads[at][2], heads[at][3]) for at in duplicates)
        found = write_rows(run, collect, place, again, state.index)
        heads = [head for at, head in enumerate(heads) if at not in repeated]
        if found.heads != heads:
            return None
    days = _days(heads, state.batches, state.days)
    new = RawState(
        batches=1,
        lines=sum(day.lines for day in days.values()),
        rows=sum(day.rows for day in days.values()),
        torn=found.torn,
        duplicates=found.repeated + len(duplicates),
        days=days,
    )
    return ReadLines(new, index, found.files)


@dataclass(frozen=True, slots=True)
class Found:
    """Lines that were read and written.

    Attributes:
        heads: for each line gateway, boot, source, position, seq, ts, date, rows, dropped rows, dropped events,
        scope,
            algorithm and jump.
        torn: the number of lines that could not be read.
        repeated: the number of lines that had been read before.
        files: the files that were written.
    """

    heads: list[tuple[Any, ...]]
    torn: int
    repeated: int
    files: list[DataFile]


_OF_TORN: Final = ("source", "at", "text")


def _torn_lines(batch: pa.RecordBatch) -> Iterator[tuple[str, int, int]]:
    """Positions and hashes of torn lines. The hash is needed because a recreated topic uses the same offsets."""
    columns = (batch.column(name).to_pylist() for name in _OF_TORN)
    for source, at, text in zip(*columns, strict=True):
        yield source, at, hash(text)


def write_rows(
    run: Callable[[Written], Iterable[Answer]],
    collect: Collect,
    place: tuple[str, int],
    skip: Skip,
    known: OffsetIndex,
) -> Found:
    """Writes the rows of lines.

    Args:
        run, collect: see `read_lines`.
        place: the folder of the table, and the version that will add the files.
        skip: lines that are left out and not reported.
        known: lines that have been read before.
    """
    folder, version = place

    def written(batches: Iterable[pa.RecordBatch]) -> Iterator[Answer]:
        return write_raw_files(collect(batches, skip, known), folder, version)

    files: list[DataFile] = []
    heads: list[pa.RecordBatch] = []
    for answer in run(written):
        (files if isinstance(answer, DataFile) else heads).append(answer)
    return _found(heads, files)


_TOTALS: Final = ("batches", "lines", "rows", "torn", "duplicates")


def _found(answers: Iterable[pa.RecordBatch], files: list[DataFile]) -> Found:
    heads: list[tuple[Any, ...]] = []
    torn = repeated = 0
    for answer in answers:
        torn += pc.sum(pc.equal(answer.column("kind"), "torn")).as_py() or 0
        again = answer.filter(pc.equal(answer.column("kind"), REPEATED))
        repeated += len(again.column("position").flatten())
        lines = answer.filter(pc.equal(answer.column("kind"), "lines"))
        for _, gw, boot, source, day, *arrays in zip(
            *(lines.column(name).to_pylist() for name in HEADS), strict=True
        ):
            for position, seq, ts, rows, *dropped in zip(*arrays, strict=True):
                heads.append((gw, boot, source, position, seq, ts, day, rows, *dropped))
    # Sorted, so that of two equal lines each attempt leaves out the same one, in whatever order files are listed.
    heads.sort(key=lambda head: head[2:4])
    return Found(heads, torn, repeated, files)


def _days(heads: Sequence[tuple[Any, ...]], batch: int, known: Iterable[str]) -> dict[str, RawDay]:
    by_day: dict[str, list[tuple[Any, ...]]] = {}
    for head in heads:
        by_day.setdefault(str(head[6]), []).append(head)
    days = {day: _day(own, batch) for day, own in sorted(by_day.items())}
    for gw, ts, jump_ms in ((head[0], head[5], head[-1]) for head in heads if head[-1] < 0):
        today, landed = ts // DAY_S, (ts + jump_ms // 1000) // DAY_S
        # The clock was set back over midnight: seconds of earlier days are recorded twice as well.
        for day in {*days, *known} if landed < today else ():
            if landed <= day_number(day) < today:
                days[day] = days.get(day, RawDay()) + RawDay(set_back_ms={gw: -jump_ms}, last_batch=batch)
    return days


def _day(heads: Sequence[tuple[Any, ...]], batch: int) -> RawDay:
    algorithms: dict[str, set[str]] = {}
    set_back_ms: dict[str, int] = {}
    scopes = newest_scopes(
        (gw, (boot, seq, scope)) for gw, boot, _, _, seq, *_, scope, _, _ in heads if scope
    )
    for gw, *_, algorithm, jump_ms in heads:
        if algorithm:
            algorithms.setdefault(gw, set()).add(algorithm)
        if jump_ms < 0:
            set_back_ms[gw] = set_back_ms.get(gw, 0) - jump_ms
    rows, dropped_rows, dropped_events = (sum(head[at] for head in heads) for at in (7, 8, 9))
    told = {gw: tuple(sorted(names)) for gw, names in algorithms.items()}
    return RawDay(len(heads), rows, dropped_rows, dropped_events, told, set_back_ms, batch, scopes=scopes)
