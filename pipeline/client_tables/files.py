"""Where the tables of clients lie, and reading them.

    OUT/clients/date=2026-11-21/run=000003/scope=gateway/table=client_day/*.parquet

The run is that of the compacted day that they were made of (`pipeline.client_tables.making`). With scope broker each
broker counts by itself; that is there only where some client used several, else it is the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.client_tables.rows import BURSTS_S, SCHEMA, TARGETS
from pipeline.client_tables.timelines import CLIENT_USE, SUMMARY
from pipeline.errors import JobError
from pipeline.storage.entity_days import Scope
from pipeline.storage.layout import CompactedDay, clients_dir
from pipeline.storage.store import MANIFEST, Store, is_local, local_path, store_of

MADE_SO: Final = {"targets": list(TARGETS), "bursts_s": list(BURSTS_S), "more": [CLIENT_USE]}
"""What a manifest says. Tables that were made otherwise are made again."""


def run_of(out: str, day: CompactedDay) -> str:
    """The folder of a day's tables."""
    return f"{clients_dir(out, day.date)}/run={day.run:06d}"


def is_made(store: Store, out: str, day: CompactedDay) -> bool:
    """Whether a day has its tables, as they are made now."""
    manifest = store.read(f"{run_of(out, day)}/{MANIFEST}")
    return manifest is not None and json.loads(manifest) == MADE_SO


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
    missing = [day.date for day in days if not is_made(store, out, day)]
    if missing:
        raise JobError(f"{', '.join(missing)}: no tables of clients yet, run `sluice-pipeline compact` first")
    paths = []
    for day in days:
        told = [f"{run_of(out, day)}/scope={each}/table={table}" for each in {scope, Scope.GATEWAY}]
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
