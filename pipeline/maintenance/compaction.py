"""Compacts a day of raw rows to one row per client, for all other jobs.

The raw rows of a day are ordered by client, start and number of the line, and joined (`pipeline.storage.joining`).
Each task reads its own buckets of the day's raw files and writes a file of the compacted table. One commit replaces
all earlier files of the day by these.

* A day with late lines is compacted again.
* A day that may still get lines is not compacted, since half a day looks like a quiet one.
* A day with missing lines is compacted, and the losses are recorded with it. Jobs that need a client's whole day
leave
  out clients that may be in the missing lines.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import JobError, NotYetCompleteError, RefusedError
from pipeline.maintenance.dividing import MOST_SECONDS, divided
from pipeline.spark.runner import Runner
from pipeline.storage.bucket_groups import FileGroups, look
from pipeline.storage.compacted_days import CompactedState, compacted_table
from pipeline.storage.compacted_files import FILE_ORDER, CompactedFileWriter
from pipeline.storage.coverage import Expectation, coverage
from pipeline.storage.files import end_of
from pipeline.storage.joining import ORDER, join_chunks
from pipeline.storage.layout import FINE_BUCKETS, CompactedDay, buckets_for
from pipeline.storage.raw_table import DayReader, RawDay, RawState, raw_table
from pipeline.storage.tables import Conflict, DataFile, file_name

_ROWS_JOINED_AT_ONCE: Final = 60_000
_ROWS_PER_TASK: Final = 4_000_000
_ROW_ORDER: Final = [*FILE_ORDER, *ORDER]


def compact(
    runner: Runner,
    out: str,
    expectation: Expectation,
    *,
    date: str = "new",
    first: str | None = None,
    last: str | None = None,
    allow_open: bool = False,
) -> dict[str, CompactedDay]:
    """Compacts days and publishes them.

    Args:
        runner: runs the parts of a day.
        out: the pipeline's folder.
        expectation: the gateways and the time that are expected.
        date: a day, or all, or new.
        first, last: with all and new, the first and the last day.
        allow_open: also compact days that may still get lines. They are marked, and compacted again when lines come.

    Returns:
        Each day that was compacted.

    Raises:
        NotYetCompleteError: the given day does not exist or is not closed, or nothing was compacted and some days are
            not closed.
        RefusedError: raw rows from which the given day was compacted have been deleted, or no line of the day has a
            plausible time.
        JobError: another job has compacted or pruned meanwhile.
    """
    raw = raw_table(out)
    before = raw.in_order()
    state = RawState.from_json(before.state)
    found = CompactedState.from_json(compacted_table(out).in_order().state)
    known = coverage(state.index, expectation)
    wanted: list[str] = []
    waiting: list[str] = []
    why: type[JobError]
    read_days = {
        day: read
        for day, read in sorted(state.days.items())
        if (first is None or day >= first) and (last is None or day <= last)
    }
    for day, read in read_days.items():
        there = found.days.get(day)
        if date in (day, "all") or (date == "new" and is_due(read, before.identifier, there)):
            why = RefusedError
            if expectation.lies_ahead(day) or (expectation.is_open(day) and not allow_open):
                why = NotYetCompleteError
                if not expectation.lies_ahead(day):
                    waiting.append(day)
                left = f"{day} is not closed: half a day would count as a quiet one. Wait for its end" + (
                    "" if expectation.lies_ahead(day) else ", or say --allow-open"
                )
            elif day in found.pruned:
                left = f"{day} was compacted and has been pruned: records that came since are only part of the day"
            elif read.gone:
                left = (
                    f"{day} was compacted from raw rows that have been pruned since: compacting it again would lose "
                    "what was in them"
                )
            elif there is not None and read.lines < there.lines and date != day:
                left = (
                    f"{day} was compacted from {there.lines} lines, of which {read.lines} are in the raw table now: "
                    f"--date {day} takes these for the day"
                )
            elif day not in known:
                left = f"{day} has no lines with a time that can be right"
            else:
                wanted.append(day)
                continue
            if date == day:
                raise why(left)
            # A late line for a day of last month must not prevent today's compaction.
            print(f"left as it is: {left}", file=sys.stderr)
    asked = date if date not in ("all", "new") else f"{first or 'the beginning'} to {last or 'the end'}"
    if (date == asked and not wanted) or (state.days and not read_days):
        raise NotYetCompleteError(
            f"no lines of {asked} have been read: there are {', '.join(sorted(state.days)) or 'none'}"
        )
    # Deletes files that the last run replaced. Jobs that were reading them have had time until now.
    compacted_table(out).sweep()
    done = {}
    for day in wanted:
        paths = raw.paths(before.of(date=day))
        about = CompactedDay(
            day,
            raw=before.identifier,
            last_batch=state.days[day].last_batch,
            lines=state.days[day].lines,
            buckets=buckets_for(state.days[day].rows),
            completeness=known[day].share,
            gateways=known[day].shares(),
            silent=known[day].silent(),
            clashes=known[day].clash_texts(),
            open=expectation.is_open(day),
            algorithms=state.days[day].algorithms,
            set_back_ms=state.days[day].set_back_ms,
            scopes={gw: scope for gw, (_, _, scope) in state.days[day].scopes.items()},
            erased=state.days[day].erased,
        )
        done[day] = _compact_day(runner, out, about, paths, state.days[day].rows, found.days.get(day))
    if waiting and not done:
        raise NotYetCompleteError(f"nothing was compacted: {', '.join(waiting)} not closed")
    return done


def is_due(read: RawDay, raw: str, compacted: CompactedDay | None) -> bool:
    """Whether a day has lines that are not in its compacted form, or was compacted before its end.

    Args:
        read: what was read of the day.
        raw: the identifier of the raw table. If the table is deleted or restored, batch numbers start again.
        compacted: the compacted day, if there is one.
    """
    if compacted is None or compacted.open:
        return True
    return (raw, read.last_batch, read.lines) != (compacted.raw, compacted.last_batch, compacted.lines)


@dataclass(frozen=True, slots=True)
class _Written:
    """A compacted file with some buckets of a day."""

    file: DataFile
    elements: int
    several_brokers: bool


def _compact_day(
    runner: Runner, out: str, day: CompactedDay, paths: list[str], rows: int, seen: CompactedDay | None
) -> CompactedDay:
    """Compacts a day part by part, and commits. `seen` is the day when its raw files were listed."""
    table = compacted_table(out)
    before = table.prepared()
    state = CompactedState.from_json(before.state)
    if day.date in state.pruned or state.days.get(day.date) != seen:
        raise Conflict(f"{day.date} was compacted or pruned by another job meanwhile: run this again")
    date, folder, version, buckets = day.date, table.folder, before.version + 1, day.buckets
    parts = min(buckets, max(runner.cores, rows // _ROWS_PER_TASK + 1))

    # Opens each file once to find its buckets; later parts open the files that they need.
    files = look(runner, paths)

    def compacted(part: tuple[range, list[FileGroups]]) -> Iterator[_Written]:
        mine, own = part
        return compact_buckets(own, date, mine, buckets, folder, version)

    fine = FINE_BUCKETS // buckets
    own_parts = []
    for part in range(parts):
        mine = range(part * buckets // parts, (part + 1) * buckets // parts)
        own = [file for file in files if file.groups(mine.start * fine, mine.stop * fine)]
        own_parts.append((mine, own))
    found = list(runner.run(compacted, own_parts))
    elements = sum(each.elements for each in found)
    if elements != rows:
        raise JobError(
            f"{date}: {elements} rows were compacted of {rows}: this is a bug, nothing is committed"
        )
    done = replace(
        day,
        run=uuid.uuid4().hex,
        rows=elements,
        keys=sum(each.file.rows for each in found),
        several_brokers=any(each.several_brokers for each in found),
    )
    after = replace(state, days={**state.days, date: done})
    table.commit(
        before, add=[each.file for each in found], remove=before.of(date=date), state=after.to_json()
    )
    return done


def compact_buckets(
    files: list[FileGroups],
    date: str,
    mine: range,
    buckets: int,
    folder: str,
    version: int,
) -> Iterator[_Written]:
    """Compacts some buckets of a day into one file of the table.

    Args:
        files: raw files of the day that have rows of these buckets.
        date: the day.
        mine: the buckets, rising.
        buckets: the number of buckets of the day.
        folder: the table's folder.
        version: the version that will add the file.

    Yields:
        The file; nothing if there are no rows.
    """
    fine = FINE_BUCKETS // buckets
    span = range(mine.start * fine, mine.stop * fine)
    whole = DayReader(files, span)
    name = f"date={date}/{file_name(version)}"
    with CompactedFileWriter(f"{folder}/{name}") as writer:
        # Bucket by bucket, and a large bucket in parts, so that memory is bounded.
        for bucket in mine:

            def read(columns: Sequence[str] | None, bucket: int = bucket) -> Iterator[pa.Table]:
                reader = whole if columns is None else DayReader(files, span, columns=columns)
                return reader.read(bucket * fine, (bucket + 1) * fine)

            for table in divided(read, MOST_SECONDS):
                order = pc.sort_indices(
                    table.select(_ROW_ORDER), [(name, "ascending") for name in _ROW_ORDER]
                )
                writer.write(bucket, join_chunks(_taken(table, order)))
    if writer.keys:
        file = DataFile(name, {"date": date}, writer.keys, end_of(f"{folder}/{name}"), 0)
        yield _Written(file, writer.elements, writer.several_brokers)


def _taken(table: pa.Table, order: pa.Array) -> Iterator[pa.RecordBatch]:
    for begin in range(0, len(order), _ROWS_JOINED_AT_ONCE):
        yield from table.take(order[begin : begin + _ROWS_JOINED_AT_ONCE]).combine_chunks().to_batches()
