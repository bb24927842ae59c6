"""Days of clients as input of `recommend` and `backtest`, made from compacted rows without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.client_tables.making import ROWS_PER_GROUP, entities_of
from pipeline.client_tables.rows import SCHEMA, client_rows
from pipeline.client_tables.tables import client_use_table, clients_table, made_of, scopes_of
from pipeline.client_tables.timelines import SUMMARY
from pipeline.client_tables.use import use_of
from pipeline.recommend.doubt import Doubt, LeftDays, clients_at, left_days, place_of
from pipeline.recommend.required_rates import Windows, days_of
from pipeline.storage.compacted_days import compacted_table, published_days
from pipeline.storage.compacted_files import pieces_of
from pipeline.storage.counting import fleets_of
from pipeline.storage.entity_days import Scope
from pipeline.storage.layout import BUCKET, CompactedDay
from pipeline.storage.partitioned_files import PartitionedFiles
from pipeline.storage.tables import DataFile, Table
from testkit.pipeline.compacted_days import compacted_rows

BY_DEFAULT: Final = Windows()

Made: TypeAlias = tuple[CompactedDay, Mapping[tuple[str, ...], pa.Table]]
"""Rows of a day by the values of the other partition columns."""


def client_table(rows: Sequence[dict[str, Any]], table: str = "client_day") -> pa.Table:
    """One of the tables of clients; see `compacted_rows` for the rows."""
    (found,) = client_tables_of(rows, table)
    return found


def client_tables_of(rows: Sequence[dict[str, Any]], *tables: str) -> list[pa.Table]:
    """Several of the tables of clients."""
    found = pa.Table.from_batches(client_rows(iter([compacted_rows(rows)])), schema=SCHEMA)
    return [found.filter(pc.equal(found.column("table"), table)) for table in tables]


def client_days_of(
    rows: Sequence[dict[str, Any]], target: float = 0.01, windows: Windows = BY_DEFAULT
) -> list[dict[str, Any]]:
    """See `pipeline.recommend.required_rates.ClientDays.read`."""
    return list(days_of(client_table(rows).to_batches(), target, windows))


def left_of(rows: Sequence[Mapping[str, Any]], *doubts: Doubt) -> LeftDays:
    """The days of clients that are left out, from rows with their gateways."""
    return left_days(clients_at(rows, {place_of(doubt) for doubt in doubts}), doubts)


def write_client_tables(out: Path, *, use: bool = True) -> None:
    """Publishes the tables of all compacted days like `compact`; with `use` also the report's table."""
    table = compacted_table(str(out))
    found = table.read()
    days = published_days(str(out))
    fleets = fleets_of(days)
    made: list[Made] = []
    made_use: list[Made] = []
    for day in days:
        pieces = sorted(pieces_of(table.paths(found.of(date=day.date))))
        of_clients: dict[tuple[str, ...], pa.Table] = {}
        for scope in scopes_of(day, fleets):
            batches = entities_of(pieces, scope, fleets if scope is Scope.FLEET else {})
            rows = pa.Table.from_batches(client_rows(batches), schema=SCHEMA).sort_by(BUCKET)
            for name in pc.unique(rows.column("table")).to_pylist():
                of_clients[scope.value, name] = rows.filter(pc.equal(rows.column("table"), name))
        made.append((day, of_clients))
        if use:
            made_use.append((day, {(): pa.Table.from_batches(use_of(pieces, fleets), schema=SUMMARY)}))
    publish_all_made(clients_table(str(out)), made, fleets)
    if use:
        publish_all_made(client_use_table(str(out)), made_use, fleets)


def publish_made(
    table: Table, day: CompactedDay, rows: Mapping[tuple[str, ...], pa.Table], fleets: Mapping[str, str] = {}
) -> None:
    """Puts rows of a day into a table of clients; `rows` are by the values of the other partition columns."""
    publish_all_made(table, [(day, rows)], fleets)


def publish_all_made(table: Table, made: Sequence[Made], fleets: Mapping[str, str] = {}) -> None:
    """Puts rows of days into a table of clients in one commit; see `publish_made`."""
    before = table.prepared()
    files: list[DataFile] = []
    removed: list[DataFile] = []
    states = dict(before.state.get("days", {}))
    for day, rows in made:
        names = ["date", "scope", "table"] if any(rows) else ["date"]
        for values, found in rows.items():
            parts = PartitionedFiles(table.folder, before.version + 1, names, found.schema)
            parts.write((day.date, *values), found, ROWS_PER_GROUP)
            files += parts.end()
        removed += before.of(date=day.date)
        states[day.date] = made_of(day, fleets)
    table.commit(before, add=files, remove=removed, state={"days": states})
