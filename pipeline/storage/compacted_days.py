"""Lists compacted days and distributes them to Spark's workers, which read the files with Arrow.

A day is all files of its partition, in the form of `pipeline.storage.compacted_files`. The table's state has the
facts about each day as a whole (`CompactedDay`) and the days that have been pruned, changed in the same commit as the
rows. Lines that arrive for a pruned day are only a part of it, so it is not compacted again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import NotYetCompleteError
from pipeline.spark.runner import cores_of
from pipeline.storage.compacted_files import (
    FILE_ORDER,
    CompactedFileWriter,
    Piece,
    dealt,
    pieces_of,
    read_entities,
)
from pipeline.storage.counting import fleets_of
from pipeline.storage.entity_days import ENTITY, Scope, arrays_of
from pipeline.storage.files import end_of, parquet_reader
from pipeline.storage.joining import join_chunks
from pipeline.storage.layout import BUCKET, CompactedDay
from pipeline.storage.partitioned_files import check_counts, notes_of
from pipeline.storage.schemas import COMPACTED_SCHEMA
from pipeline.storage.tables import DataFile, Snapshot, Table, TakenOver

ELEMENTS_AT_ONCE: Final = 2_000_000
"""Recorded seconds in a batch of `map_entities`: about 150 bytes each including intermediate results, 300 MB."""

_ELEMENTS_PER_PART: Final = 16_000_000
_ORDER: Final = [(name, "ascending") for name in (BUCKET, *FILE_ORDER)]

Work: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""The function that a job applies to batches; it runs in Spark's Python workers."""


@dataclass(frozen=True, slots=True)
class CompactedState:
    """All compacted days, and compacted days that have been pruned; by date."""

    days: Mapping[str, CompactedDay] = field(default_factory=dict)
    pruned: Mapping[str, CompactedDay] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The JSON that the table keeps."""
        return {
            # Not asdict: it copies the entries of a thousand gateways a day, which takes longer than the commit.
            name: {
                date: {each.name: getattr(day, each.name) for each in fields(day)}
                for date, day in sorted(days.items())
            }
            for name, days in (("days", self.days), ("pruned", self.pruned))
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> CompactedState:
        """The inverse of `to_json`. An empty mapping gives the state before the first day."""
        days, pruned = (
            {
                # For no clashes an older release wrote an empty list.
                date: CompactedDay(**{**day, "clashes": day["clashes"] or {}})
                for date, day in state.get(name, {}).items()
            }
            for name in ("days", "pruned")
        )
        return cls(days, pruned)


def compacted_table(out: str) -> Table:
    """The table of compacted days of a pipeline's folder."""
    return Table(f"{out}/compacted", COMPACTED_SCHEMA, ["date"], _take_over)


def _take_over(table: Table, found: Snapshot) -> TakenOver:
    """See `tables.TakeOver`. A day without remaining rows counts as pruned."""
    assert found.foreign is not None
    state = CompactedState.from_json(found.state)
    days, pruned = dict(state.days), dict(state.pruned)
    added: list[DataFile] = []
    missing = []
    for date, day in state.days.items():
        if not found.foreign.touched(date):
            continue
        files = found.of(date=date)
        written = _in_order(table, found, day, [file for file in files if file.foreign])
        now = [*(file for file in files if not file.foreign), *written]
        keys, rows = _counts(table.paths(now))
        check_counts(table, found, date, before=(day.keys, day.rows), now=(keys, rows))
        added += written
        if keys < day.keys:
            missing.append(f"{day.rows - rows} recorded seconds and {day.keys - keys} rows of {date}")
            days[date] = day.without(day.keys - keys, day.rows - rows)
        if not keys and day.keys:
            pruned[date] = days.pop(date)
    return TakenOver(added, CompactedState(days, pruned).to_json(), notes_of(found, ", ".join(missing)))


def _in_order(table: Table, found: Snapshot, day: CompactedDay, files: list[DataFile]) -> list[DataFile]:
    """Rewrites some files of a day, which contain whole buckets, as one file in the readers' order."""
    path = table.new_path(found, f"date={day.date}")
    spans = [(file, *_buckets(table.path(file))) for file in files]
    elements = _counts(table.paths(files))[1]
    with CompactedFileWriter(f"{table.folder}/{path}") as writer:
        # A few buckets at a time, from all files each time: memory is bounded, without a temporary copy on the disk.
        parts = 1 + elements // ELEMENTS_AT_ONCE
        for part in range(parts):
            mine = range(part * day.buckets // parts, (part + 1) * day.buckets // parts)
            read = [file for file, first, last in spans if first < mine.stop and last >= mine.start]
            rows = [_of_buckets(batch, mine) for file in read for batch in table.rows_of(file)]
            if rows:
                ordered = pa.Table.from_batches(rows).sort_by(_ORDER)
                numbers = ordered.column(BUCKET).to_numpy()
                for bucket in mine:
                    begin, end = np.searchsorted(numbers, (bucket, bucket + 1)).tolist()
                    writer.write(bucket, join_chunks(ordered.slice(begin, end - begin).to_batches()))
    if not writer.keys:
        return []
    return [DataFile(path, {"date": day.date}, writer.keys, end_of(f"{table.folder}/{path}"))]


def _buckets(path: str) -> tuple[int, int]:
    """The least and the largest bucket in a file."""
    with parquet_reader(path) as reader:
        span = pc.min_max(reader.read(columns=[BUCKET]).column(BUCKET)).as_py()
    return (0, -1) if span["min"] is None else (span["min"], span["max"])


def _of_buckets(rows: pa.RecordBatch, mine: range) -> pa.RecordBatch:
    own = rows.column(BUCKET)
    return rows.filter(pc.and_(pc.greater_equal(own, mine.start), pc.less(own, mine.stop)))


def _counts(paths: Iterable[str]) -> tuple[int, int]:
    """Number of rows and of recorded seconds in files."""
    keys = rows = 0
    for path in paths:
        with parquet_reader(path) as reader:
            for batch in reader.iter_batches(columns=["t"]):
                keys += batch.num_rows
                rows += pc.sum(pc.list_value_length(batch.column("t"))).as_py() or 0
    return keys, rows


def published_days(out: str, first: str | None = None, last: str | None = None) -> list[CompactedDay]:
    """All compacted days, by date.

    Args:
        out: the pipeline's folder.
        first: the first day to include, as 2026-11-21.
        last: the last day to include.
    """
    return _between(compacted_table(out).read(), first, last)


def _between(found: Snapshot, first: str | None, last: str | None) -> list[CompactedDay]:
    days = CompactedState.from_json(found.state).days
    return [
        day
        for date, day in sorted(days.items())
        if (first is None or date >= first) and (last is None or date <= last)
    ]


def compacted_days(out: str, first: str | None = None, last: str | None = None) -> list[CompactedDay]:
    """As `published_days`, but at least one day.

    Raises:
        NotYetCompleteError: no day in this range is compacted.
    """
    return _at_least_one(published_days(out, first, last), out, first, last)


def _at_least_one(
    days: list[CompactedDay], out: str, first: str | None, last: str | None
) -> list[CompactedDay]:
    if not days:
        span = f" from {first or 'the beginning'} to {last or 'the end'}" if first or last else ""
        raise NotYetCompleteError(f"no compacted day in {out}{span}: run `sluice-pipeline compact` first")
    return days


@dataclass(frozen=True, slots=True)
class CompactedDays:
    """Some compacted days.

    Attributes:
        spark: the session.
        days: by date; at least one.
        paths: the paths of their files.
        fleets: see `pipeline.storage.counting.fleets_of`, from all compacted days.
    """

    spark: Any
    days: tuple[CompactedDay, ...]
    paths: tuple[str, ...]
    fleets: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, spark: Any, out: str, first: str | None = None, last: str | None = None) -> CompactedDays:
        """The compacted days of a folder.

        Args:
            spark: a SparkSession.
            out: the pipeline's folder.
            first: the first day, as 2026-11-21; None: from the beginning.
            last: the last day; None: to the end.

        Raises:
            NotYetCompleteError: no day in this range is compacted.
        """
        table = compacted_table(out)
        found = table.in_order()
        days = _at_least_one(_between(found, first, last), out, first, last)
        files = [file for day in days for file in found.of(date=day.date)]
        return cls(spark, tuple(days), tuple(table.paths(files)), fleets_of(_between(found, None, None)))

    def map_entities(
        self,
        work: Work,
        result: str,
        *,
        scope: Scope = Scope.GATEWAY,
        arrays: Collection[str] = (),
        apis: Collection[str] | None = None,
        elements_at_once: int = ELEMENTS_AT_ONCE,
    ) -> Any:
        """Applies a function to rows as quotas count: one row for each client, counter and day.

        Args:
            work: gets batches with the columns of `entity_days.ENTITY` and arrays; it may get none.
            result: the columns of its results, as Spark DDL.
            scope: whether the brokers of a gateway, and the gateways of a fleet, count together. Listeners always do.
            arrays: those of `entity_days.ARRAYS` that are needed besides `arrays_of(())`.
            apis: rows of other APIs are left out.
            elements_at_once: see `ELEMENTS_AT_ONCE`.

        Returns:
            A DataFrame.
        """
        needed = arrays_of(arrays)
        fleets = self.fleets if scope is Scope.FLEET else {}

        def entities(pieces: list[Piece]) -> Iterator[pa.RecordBatch]:
            return work(
                read_entities(
                    pieces,
                    ENTITY,
                    needed,
                    brokers_apart=scope is Scope.BROKER,
                    fleets=fleets,
                    apis=apis,
                    most_elements=elements_at_once,
                )
            )

        return self.deal(entities, result)

    def parts(self, cores: int) -> list[list[Piece]]:
        """The row groups of the files, divided into parts; a bucket of a day is never divided.

        Args:
            cores: how many parts can be processed at once.
        """
        return dealt(pieces_of(self.paths), cores, _ELEMENTS_PER_PART)

    def deal(self, read: Callable[[list[Piece]], Iterator[pa.RecordBatch]], result: str) -> Any:
        """Applies a function to parts of the files, in Spark's workers.

        Args:
            read: gets row groups of whole buckets of a day, in order.
            result: the columns of its results, as Spark DDL.

        Returns:
            A DataFrame.
        """
        parts = self.parts(cores_of(self.spark))

        def mine(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for part in batch.column("id").to_pylist():
                    yield from read(parts[part])

        return self.spark.range(0, len(parts), 1, max(1, len(parts))).mapInArrow(mine, result)
