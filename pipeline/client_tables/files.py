"""Where the tables of clients lie, making them of compacted days, and reading them.

    OUT/clients/date=2026-11-21/run=000003/scope=gateway/table=client_day/*.parquet

The run is that of the compacted day that they were made of. The tables of a day appear together, in one rename. With
scope broker each broker counts by itself; that is there only where some client used several, else it is the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.client_tables.rows import BURSTS_S, CLIENT_TABLES, SCHEMA, TARGETS, client_rows
from pipeline.client_tables.timelines import SUMMARY
from pipeline.client_tables.use import CLIENT_USE, use_of_day
from pipeline.errors import JobError
from pipeline.storage.compacted_days import CompactedDays
from pipeline.storage.entity_days import ARRAYS, Scope
from pipeline.storage.layout import MANIFEST, CompactedDay, clients_dir, published_days
from pipeline.storage.store import Store, is_local, local_path, store_of

MADE_SO: Final = {"targets": list(TARGETS), "bursts_s": list(BURSTS_S), "more": [CLIENT_USE]}
"""What a manifest says. Tables that were made otherwise are made again."""


def make_missing(spark: Any, out: str) -> list[str]:
    """Makes the tables of all compacted days that have none, or those of an earlier run.

    Args:
        spark: the session.
        out: the pipeline's folder.

    Returns:
        The days whose tables were made.
    """
    store = store_of(out, spark)
    due = [day for day in published_days(out, spark=spark) if not _is_made(store, out, day)]
    for day in due:
        _make(spark, store, out, day)
    return [day.date for day in due]


def _run(out: str, day: CompactedDay) -> str:
    return f"{clients_dir(out, day.date)}/run={day.run:06d}"


def _is_made(store: Store, out: str, day: CompactedDay) -> bool:
    manifest = store.read(f"{_run(out, day)}/{MANIFEST}")
    return manifest is not None and json.loads(manifest) == MADE_SO


def _make(spark: Any, store: Store, out: str, day: CompactedDay) -> None:
    folder, run = clients_dir(out, day.date), _run(out, day)
    partial = f"{folder}/.run={day.run:06d}.part"
    store.delete(partial)
    days = CompactedDays.of(spark, out, day.date, day.date)
    scopes = [Scope.GATEWAY, Scope.BROKER] if _several_brokers(days) else [Scope.GATEWAY]
    for scope in scopes:
        rows = days.map_entities(client_rows, CLIENT_TABLES, scope=scope, arrays=ARRAYS)
        rows.write.mode("overwrite").partitionBy("table").parquet(f"{partial}/scope={scope}")
    use_of_day(days).write.mode("overwrite").parquet(f"{partial}/scope={Scope.GATEWAY}/table={CLIENT_USE}")
    store.write(f"{partial}/{MANIFEST}", json.dumps(MADE_SO).encode() + b"\n")
    for name in store.names(folder):
        if name != f".run={day.run:06d}.part":
            store.delete(f"{folder}/{name}")
    store.rename(partial, run)


def _several_brokers(days: CompactedDays) -> bool:
    brokers = days.frame().select("gw", "user", "client_id", "api", "node").distinct()
    return not brokers.groupBy("gw", "user", "client_id", "api").count().where("count > 1").isEmpty()


def read_clients(
    out: str,
    days: Sequence[CompactedDay],
    table: str,
    columns: Sequence[str],
    *,
    scope: Scope = Scope.GATEWAY,
    spark: Any = None,
) -> pa.Table:
    """Rows of one of the tables.

    Args:
        out: the pipeline's folder.
        days: of which.
        table: client_day, client_hour, total or client_use.
        columns: which of the table's are wanted.
        scope: whether brokers count together.
        spark: a session; needed if `out` is not on this machine.

    Raises:
        JobError: a day has none.
    """
    store = store_of(out, spark)
    missing = [day.date for day in days if not _is_made(store, out, day)]
    if missing:
        raise JobError(f"{', '.join(missing)}: no tables of clients yet, run `sluice-pipeline compact` first")
    paths = []
    for day in days:
        told = [f"{_run(out, day)}/scope={each}/table={table}" for each in {scope, Scope.GATEWAY}]
        found = [path for path in told if store.names(path)]
        paths += [path for path in found if f"scope={scope}" in path] or found
    if not paths:
        schema = SUMMARY if table == CLIENT_USE else SCHEMA
        return pa.schema([schema.field(name) for name in columns]).empty_table()
    if not is_local(out):
        found_rows: pa.Table = spark.read.parquet(*paths).select(*columns).toArrow()
        return found_rows
    files = [file for path in paths for file in sorted(local_path(path).glob("*.parquet"))]
    # Not by the folder: names of columns would be made of those of folders.
    return pa.concat_tables([pq.ParquetFile(file).read(columns=list(columns)) for file in files])
