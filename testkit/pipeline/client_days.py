"""Days of clients as recommend and backtest read them, straight from compacted rows: no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.client_tables.profile import PARTIAL, merge_profiles, profile_rows
from pipeline.client_tables.rows import SCHEMA, client_rows
from pipeline.client_tables.tables import client_use_table, clients_table, made_of
from pipeline.client_tables.timelines import SUMMARY, summarise
from pipeline.recommend.required_rates import Windows, days_of
from pipeline.storage.compacted_days import published_days
from pipeline.storage.layout import CompactedDay
from pipeline.storage.partitioned_files import PartitionedFiles
from pipeline.storage.tables import Table
from testkit.pipeline.compacted_days import DAY, compacted_rows

BY_DEFAULT: Final = Windows()


def client_table(rows: Sequence[dict[str, Any]], table: str = "client_day") -> pa.Table:
    """One of the tables of clients; see `compacted_rows` for the rows."""
    found = pa.Table.from_batches(client_rows(iter([compacted_rows(rows)])), schema=SCHEMA)
    return found.filter(pc.equal(found.column("table"), table))


def client_days_of(
    rows: Sequence[dict[str, Any]], target: float = 0.01, windows: Windows = BY_DEFAULT
) -> list[dict[str, Any]]:
    """See `pipeline.recommend.required_rates.client_days`."""
    return list(days_of(client_table(rows).to_batches(), target, windows))


def client_use(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """The table `client_use` of compacted rows of a day."""
    partial = pa.Table.from_batches(profile_rows(iter([compacted_rows(rows)])), schema=PARTIAL)
    return pa.Table.from_batches(summarise([merge_profiles(partial)]), schema=SUMMARY)


def write_client_tables(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Publishes the tables of these rows' days as `compact` does; brokers have to count together."""
    for day in published_days(str(out)):
        of_date = [row for row in rows if row.get("date", DAY).isoformat() == day.date]
        tables = {name: client_table(of_date, name) for name in ("client_day", "client_hour", "total")}
        publish_made(
            clients_table(str(out)), day, {("gateway", name): found for name, found in tables.items()}
        )
        publish_made(client_use_table(str(out)), day, {(): client_use(of_date)})


def publish_made(table: Table, day: CompactedDay, rows: Mapping[tuple[str, ...], pa.Table]) -> None:
    """Puts rows of a day into a table of clients, by the values of the partition beside the day's."""
    before = table.prepared()
    names = ["date", "scope", "table"] if any(rows) else ["date"]
    files = []
    for values, found in rows.items():
        parts = PartitionedFiles(table.folder, before.version + 1, names, found.schema)
        parts.write((day.date, *values), found, max(1, len(found)))
        files += parts.end()
    made = {**before.state.get("days", {}), day.date: made_of(day)}
    table.commit(before, add=files, remove=before.of(date=day.date), state={"days": made})
