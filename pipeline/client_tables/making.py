"""Makes the tables of clients from compacted days; the files of a day appear in one commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.client_tables.rows import SCHEMA, client_rows
from pipeline.client_tables.tables import client_use_table, clients_table, is_made, made_of, scopes_of
from pipeline.client_tables.timelines import SUMMARY
from pipeline.client_tables.use import use_of
from pipeline.storage.compacted_days import CompactedDays, published_days
from pipeline.storage.compacted_files import Piece
from pipeline.storage.counting import fleets_of
from pipeline.storage.entity_days import ARRAYS, Scope
from pipeline.storage.layout import CompactedDay
from pipeline.storage.partitioned_files import FILES, PartitionedFiles, files_told, told
from pipeline.storage.tables import DataFile, Snapshot, Table

_ROWS_PER_GROUP: Final = 100_000


def make_missing(spark: Any, out: str) -> list[str]:
    """Makes the tables of all compacted days that have none, or those of an earlier run.

    Args:
        spark: the session.
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
            table.sweep()  # what the last one replaced
    for day in due:
        days = CompactedDays.of(spark, out, day.date, day.date)
        _make_clients(days, day, tables[0])
        _make_use(days, day, tables[1])
    return [day.date for day in due]


def _make_clients(days: CompactedDays, day: CompactedDay, table: Table) -> None:
    before = table.prepared()
    folder, version = table.folder, before.version + 1
    files: list[DataFile] = []
    for scope in scopes_of(day, days.fleets):

        def written(batches: Iterator[pa.RecordBatch], scope: Scope = scope) -> Iterator[pa.RecordBatch]:
            parts = PartitionedFiles(folder, version, ["date", "scope", "table"], SCHEMA, compression="zstd")
            rows = pa.Table.from_batches(client_rows(batches), schema=SCHEMA)
            for name in pc.unique(rows.column("table")).to_pylist():
                own = rows.filter(pc.equal(rows.column("table"), name))
                parts.write((day.date, scope.value, name), own, _ROWS_PER_GROUP)
            yield told(parts.end())

        files += files_told(days.map_entities(written, FILES, scope=scope, arrays=ARRAYS).toArrow())
    _commit(table, before, day, days.fleets, files)


def _make_use(days: CompactedDays, day: CompactedDay, table: Table) -> None:
    before = table.prepared()
    fleets = days.fleets
    folder, version = table.folder, before.version + 1

    def written(pieces: list[Piece]) -> Iterator[pa.RecordBatch]:
        parts = PartitionedFiles(folder, version, ["date"], SUMMARY, compression="zstd")
        rows = pa.Table.from_batches(use_of(pieces, fleets), schema=SUMMARY)
        if len(rows):
            parts.write((day.date,), rows, _ROWS_PER_GROUP)
        yield told(parts.end())

    _commit(table, before, day, fleets, files_told(days.deal(written, FILES).toArrow()))


def _commit(
    table: Table, before: Snapshot, day: CompactedDay, fleets: Mapping[str, str], files: Iterable[DataFile]
) -> None:
    made = {**before.state.get("days", {}), day.date: made_of(day, fleets)}
    table.commit(before, add=files, remove=before.of(date=day.date), state={"days": made})
