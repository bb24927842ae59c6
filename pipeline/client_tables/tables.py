"""The location of the tables of clients, and reading them.

OUT/clients has the rows of `pipeline.client_tables.rows`, by date, scope and table (client_day, client_hour, total),
and OUT/client_use those of `timelines.SUMMARY`. The states of both say of which run of each compacted day, and how,
its rows were made. With scope broker each broker counts by itself; that is there only where some client used several,
else it is the same. With scope fleet the gateways of a fleet count together, under its name; that is there only where
some gateway was of a fleet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.client_tables.rows import BURSTS_S, SCHEMA, TARGETS
from pipeline.client_tables.timelines import CLIENT_USE, SUMMARY
from pipeline.errors import NotYetCompleteError
from pipeline.storage.compacted_days import published_days
from pipeline.storage.counting import fleets_of, fleets_on
from pipeline.storage.entity_days import Scope
from pipeline.storage.files import parquet_reader
from pipeline.storage.layout import CompactedDay
from pipeline.storage.partitioned_files import take_over_rows
from pipeline.storage.tables import Snapshot, Table


def clients_table(out: str) -> Table:
    """The table of clients' days and hours."""
    return Table(f"{out}/clients", SCHEMA, ["date", "scope", "table"], take_over_rows)


def client_use_table(out: str) -> Table:
    """The table of what clients used, for the report."""
    return Table(f"{out}/{CLIENT_USE}", SUMMARY, ["date"], take_over_rows)


def scopes_of(day: CompactedDay, fleets: Mapping[str, str]) -> list[Scope]:
    """With which scopes a day has rows of its own; with any other they are those of the gateway."""
    brokers = [Scope.BROKER] if day.several_brokers else []
    return [Scope.GATEWAY, *brokers, *([Scope.FLEET] if fleets_on(day, fleets) else [])]


def made_of(day: CompactedDay, fleets: Mapping[str, str]) -> dict[str, Any]:
    """What the states say of a day whose rows are as they would be made now.

    Args:
        day: the day.
        fleets: see `pipeline.storage.counting.fleets_of`, by all compacted days.
    """
    made = {"run": day.run, "targets": list(TARGETS), "bursts_s": list(BURSTS_S)}
    shared = fleets_on(day, fleets)
    return {**made, "fleets": shared} if shared else made


def is_made(day: CompactedDay, fleets: Mapping[str, str], *found: Snapshot) -> bool:
    """Whether tables have a day, as it would be made now."""
    return all(each.state.get("days", {}).get(day.date) == made_of(day, fleets) for each in found)


def read_clients(
    out: str,
    days: Sequence[CompactedDay],
    table: str,
    columns: Sequence[str],
    *,
    scope: Scope = Scope.GATEWAY,
) -> pa.Table:
    """Rows of one of the tables.

    Args:
        out: the pipeline's folder.
        days: of which.
        table: client_day, client_hour, total or client_use.
        columns: which of the table's are wanted.
        scope: whether brokers count together, and gateways of a fleet.

    Raises:
        NotYetCompleteError: a day has none.
    """
    of_clients = table != CLIENT_USE
    source, schema = (clients_table(out), SCHEMA) if of_clients else (client_use_table(out), SUMMARY)
    found = source.in_order()
    fleets = fleets_of(published_days(out))
    missing = [day.date for day in days if not is_made(day, fleets, found)]
    if missing:
        raise NotYetCompleteError(
            f"{', '.join(missing)}: no tables of clients yet, run `sluice-pipeline compact` first"
        )
    files = []
    for day in days:
        own = scope if scope in scopes_of(day, fleets) else Scope.GATEWAY
        files += found.of(date=day.date, **({"scope": own.value, "table": table} if of_clients else {}))
    rows = [pa.schema([schema.field(name) for name in columns]).empty_table()]
    for path in source.paths(files):
        with parquet_reader(path) as reader:
            part = reader.read(columns=list(columns))
            for name in columns:
                if name not in part.column_names:  # an older release did not write it
                    part = part.append_column(name, pa.nulls(len(part), schema.field(name).type))
            rows.append(part.select(list(columns)))
    return pa.concat_tables(rows)
