"""Makes the tables of clients from compacted days; the files of a day appear in one commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.client_tables.rows import SCHEMA, client_rows
from pipeline.client_tables.tables import client_use_table, clients_table, is_made, made_of, scopes_of
from pipeline.client_tables.timelines import SUMMARY
from pipeline.client_tables.use import use_of
from pipeline.spark.runner import Runner
from pipeline.storage.compacted_days import ELEMENTS_AT_ONCE, CompactedDays, published_days
from pipeline.storage.compacted_files import Piece, read_entities
from pipeline.storage.counting import fleets_of
from pipeline.storage.entity_days import ARRAYS, ENTITY, Scope, arrays_of
from pipeline.storage.layout import BUCKET, CompactedDay
from pipeline.storage.partitioned_files import PartitionedFiles
from pipeline.storage.tables import DataFile, Snapshot, Table

ROWS_PER_GROUP: Final = 10_000
"""Rows are ordered by bucket, so a reader opens only the row groups that may have its buckets."""


def make_missing(runner: Runner, out: str) -> list[str]:
    """Makes the tables of all compacted days that lack them or have tables of an earlier run.

    Args:
        runner: runs the parts of a day.
        out: the pipeline's folder.

    Returns:
        The days whose tables were made.
    """
    tables = clients_table(out), client_use_table(out)
    found = [table.read() for table in tables]
    published = published_days(out)
    fleets = fleets_of(published)
    due = [day for day in published if not is_made(day, fleets, *found)]
    if due:
        for table in tables:
            table.sweep()  # files that the last commit replaced
    for day in due:
        days = CompactedDays.of(None, out, day.date, day.date)
        _make_clients(runner, days, day, tables[0])
        _make_use(runner, days, day, tables[1])
    return [day.date for day in due]


def _make_clients(runner: Runner, days: CompactedDays, day: CompactedDay, table: Table) -> None:
    before = table.prepared()
    folder, version = table.folder, before.version + 1
    parts = days.parts(runner.cores)
    files: list[DataFile] = []
    for scope in scopes_of(day, days.fleets):
        fleets = days.fleets if scope is Scope.FLEET else {}

        def written(
            pieces: list[Piece], scope: Scope = scope, fleets: Mapping[str, str] = fleets
        ) -> list[DataFile]:
            files = PartitionedFiles(folder, version, ["date", "scope", "table"], SCHEMA, compression="zstd")
            rows = pa.Table.from_batches(client_rows(entities_of(pieces, scope, fleets)), schema=SCHEMA)
            for name in pc.unique(rows.column("table")).to_pylist():
                own = rows.filter(pc.equal(rows.column("table"), name)).sort_by(BUCKET)
                files.write((day.date, scope.value, name), own, ROWS_PER_GROUP)
            return files.end()

        files += runner.run(written, parts)
    _commit(table, before, day, days.fleets, files)


def entities_of(pieces: list[Piece], scope: Scope, fleets: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Rows as quotas count, with all arrays.

    Args:
        pieces: whole buckets of a day, in order.
        scope: whether brokers count together.
        fleets: the fleet of each gateway that counts with others.
    """
    return read_entities(
        pieces,
        ENTITY,
        arrays_of(ARRAYS),
        brokers_apart=scope is Scope.BROKER,
        fleets=fleets,
        most_elements=ELEMENTS_AT_ONCE,
    )


def _make_use(runner: Runner, days: CompactedDays, day: CompactedDay, table: Table) -> None:
    before = table.prepared()
    fleets = days.fleets
    folder, version = table.folder, before.version + 1

    def written(pieces: list[Piece]) -> list[DataFile]:
        files = PartitionedFiles(folder, version, ["date"], SUMMARY, compression="zstd")
        rows = pa.Table.from_batches(use_of(pieces, fleets), schema=SUMMARY).sort_by(BUCKET)
        if len(rows):
            files.write((day.date,), rows, ROWS_PER_GROUP)
        return files.end()

    _commit(table, before, day, fleets, runner.run(written, days.parts(runner.cores)))


def _commit(
    table: Table, before: Snapshot, day: CompactedDay, fleets: Mapping[str, str], files: Iterable[DataFile]
) -> None:
    made = {**before.state.get("days", {}), day.date: made_of(day, fleets)}
    table.commit(before, add=files, remove=before.of(date=day.date), state={"days": made})
