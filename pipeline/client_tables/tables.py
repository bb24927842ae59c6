"""The location of the tables of clients, and reading them.

OUT/clients has the rows of `pipeline.client_tables.rows`, by date, scope and table (client_day, client_hour, total).
OUT/client_use has the rows of `timelines.SUMMARY`. The states of both record from which run of each compacted day,
and how, its rows were made.

With scope broker each broker counts by itself. These rows exist only if some client used several brokers; otherwise
they would be the same. With scope fleet the gateways of a fleet count together, under the fleet's name. These rows
exist only if some gateway was part of a fleet.

All rows of a client are in one bucket (`pipeline.storage.layout.bucket_of`), on all days, and files are ordered by
bucket. So a part of a job reads some clients on all days, by row groups, without a shuffle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.client_tables.rows import BURSTS_S, SCHEMA, TARGETS
from pipeline.client_tables.timelines import CLIENT_USE, SUMMARY
from pipeline.errors import NotYetCompleteError
from pipeline.spark.runner import Runner
from pipeline.storage.bucket_groups import FileGroups, look
from pipeline.storage.compacted_days import published_days
from pipeline.storage.counting import fleets_of, fleets_on
from pipeline.storage.entity_days import Scope
from pipeline.storage.files import parquet_reader
from pipeline.storage.layout import BUCKET, FINE_BUCKETS, CompactedDay
from pipeline.storage.partitioned_files import take_over_rows
from pipeline.storage.tables import DataFile, Snapshot, Table

ROWS_PER_PART: Final = 20_000
"""Rows that one part of a job reads, unless a bucket has more: about 4 kB each with intermediate results, 80 MB."""


def clients_table(out: str) -> Table:
    """The table of clients' days and hours."""
    return Table(f"{out}/clients", SCHEMA, ["date", "scope", "table"], take_over_rows)


def client_use_table(out: str) -> Table:
    """The table of clients' use, for the report."""
    return Table(f"{out}/{CLIENT_USE}", SUMMARY, ["date"], take_over_rows)


def scopes_of(day: CompactedDay, fleets: Mapping[str, str]) -> list[Scope]:
    """The scopes for which a day has rows of its own. For other scopes the gateway's rows apply."""
    brokers = [Scope.BROKER] if day.several_brokers else []
    return [Scope.GATEWAY, *brokers, *([Scope.FLEET] if fleets_on(day, fleets) else [])]


def made_of(day: CompactedDay, fleets: Mapping[str, str]) -> dict[str, Any]:
    """The entry of a day in the tables' states, as it would be if its rows were made now.

    Args:
        day: the day.
        fleets: see `pipeline.storage.counting.fleets_of`, from all compacted days.
    """
    made = {
        "run": day.run,
        "targets": list(TARGETS),
        "bursts_s": list(BURSTS_S),
        "buckets": FINE_BUCKETS,
    }
    shared = fleets_on(day, fleets)
    return {**made, "fleets": shared} if shared else made


def is_made(day: CompactedDay, fleets: Mapping[str, str], *found: Snapshot) -> bool:
    """Whether tables have a day as it would be made now."""
    return all(each.state.get("days", {}).get(day.date) == made_of(day, fleets) for each in found)


@dataclass(frozen=True, slots=True)
class ClientRows:
    """Rows of one of the tables, on some days.

    Attributes:
        files: each with its path, day by day.
    """

    files: tuple[tuple[str, DataFile], ...]

    def parts(self, runner: Runner) -> list[ClientPart]:
        """Divides the rows into parts of about the same size, each with all rows of some clients.

        Args:
            runner: will process the parts.
        """
        rows = sum(file.rows for _, file in self.files)
        wanted = min(FINE_BUCKETS, max(runner.cores, -(-rows // ROWS_PER_PART)))
        edges = [part * FINE_BUCKETS // wanted for part in range(wanted + 1)]
        return self.divided(runner, [range(begin, end) for begin, end in pairwise(edges)])

    def divided(self, runner: Runner, buckets: Sequence[range]) -> list[ClientPart]:
        """The rows of some buckets, one part for each range of them."""
        files = look(runner, [path for path, _ in self.files])
        return [
            ClientPart(mine, tuple(file for file in files if file.groups(mine.start, mine.stop)))
            for mine in buckets
        ]

    @property
    def dates(self) -> list[str]:
        """The days with any row."""
        return sorted({str(file.partition["date"]) for _, file in self.files if file.rows})

    def by_day(self) -> list[ClientRows]:
        """The rows of each day separately."""
        found: dict[str | None, list[tuple[str, DataFile]]] = {}
        for path, file in self.files:
            found.setdefault(file.partition["date"], []).append((path, file))
        return [ClientRows(tuple(files)) for files in found.values()]

    def read(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """All rows with some columns, file by file, in the order of days."""
        for path, _ in self.files:
            with parquet_reader(path) as reader:
                yield _selected(reader.read(columns=list(columns), use_threads=False), columns)


@dataclass(frozen=True, slots=True)
class ClientPart:
    """The rows of some buckets on all days.

    Attributes:
        buckets: the buckets.
        files: files that may have rows of them, day by day.
    """

    buckets: range
    files: tuple[FileGroups, ...]

    def read(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The rows with some columns, file by file, in the order of days."""
        first, end = self.buckets.start, self.buckets.stop
        for file in self.files:
            with parquet_reader(file.path) as reader:
                table = reader.read_row_groups(
                    file.groups(first, end), columns=[*columns, BUCKET], use_threads=False
                )
            own = table.column(BUCKET)
            mine = pc.and_(pc.greater_equal(own, first), pc.less(own, end))
            rows = _selected(table.filter(mine), columns)
            if len(rows):
                yield rows


def _selected(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Some columns; those that an older release did not write are null."""
    for name in columns:
        if name not in rows.column_names:
            kind = (SCHEMA if name in SCHEMA.names else SUMMARY).field(name).type
            rows = rows.append_column(name, pa.nulls(len(rows), kind))
    return rows.select(list(columns))


def find_clients(
    out: str, days: Sequence[CompactedDay], table: str, *, scope: Scope = Scope.GATEWAY
) -> ClientRows:
    """Finds the rows of some days.

    Args:
        out: the pipeline's folder.
        days: the days.
        table: client_day, client_hour, total or client_use.
        scope: whether brokers count together, and gateways of a fleet.

    Raises:
        NotYetCompleteError: a day has no rows.
    """
    of_clients = table != CLIENT_USE
    source = clients_table(out) if of_clients else client_use_table(out)
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
    return ClientRows(tuple(zip(source.paths(files), files, strict=True)))
