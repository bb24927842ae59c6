"""Finds what changed in the tables of clients, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from pipeline.changes.weeks import READ_DAYS, READ_HOURS, Calendar, Found, compare
from pipeline.client_tables.rows import SCHEMA
from pipeline.client_tables.tables import ClientPart, find_clients
from pipeline.spark.runner import Runner
from pipeline.storage.entity_days import Scope
from pipeline.storage.layout import CompactedDay


def find(
    runner: Runner, out: str, days: Sequence[CompactedDay], calendar: Calendar, least: float, scope: Scope
) -> Found:
    """Compares both weeks of all clients.

    Args:
        runner: processes the parts.
        out: the pipeline's folder.
        days: the existing days of all weeks of the calendar.
        calendar: the weeks.
        least: see `pipeline.changes.weeks.LEAST`.
        scope: what one counter covers; required rates and quotas are those of counters.

    Raises:
        NotYetCompleteError: a day has no tables.
    """
    both = set(calendar.compared)
    hours = find_clients(out, days, "client_hour").parts(runner)
    limits = find_clients(out, [day for day in days if day.date in both], "client_day", scope=scope)
    parts = list(zip(hours, limits.divided(runner, [part.buckets for part in hours]), strict=True))

    def of_part(part: tuple[ClientPart, ClientPart]) -> Iterator[Found]:
        yield compare(_read(part[0], READ_HOURS), _read(part[1], READ_DAYS), calendar, least)

    found = Found()
    for of_some in runner.run(of_part, parts):
        found.add(of_some)
    return found


def _read(part: ClientPart, columns: Sequence[str]) -> pa.Table:
    empty = pa.schema([SCHEMA.field(name) for name in columns]).empty_table()
    return pa.concat_tables([empty, *part.read(columns)])
