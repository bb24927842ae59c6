"""Makes the tables of clients of compacted days. Those of a day appear together, in one rename."""

from __future__ import annotations

import json
from typing import Any

from pipeline.client_tables.files import MADE_SO, is_made, run_of
from pipeline.client_tables.rows import CLIENT_TABLES, client_rows
from pipeline.client_tables.timelines import CLIENT_USE
from pipeline.client_tables.use import use_of_day
from pipeline.storage.compacted_days import CompactedDays
from pipeline.storage.entity_days import ARRAYS, Scope
from pipeline.storage.layout import CompactedDay, clients_dir, published_days
from pipeline.storage.store import MANIFEST, Store, store_of


def make_missing(spark: Any, out: str) -> list[str]:
    """Makes the tables of all compacted days that have none, or those of an earlier run.

    Args:
        spark: the session.
        out: the pipeline's folder.

    Returns:
        The days whose tables were made.
    """
    store = store_of(out, spark)
    due = [day for day in published_days(out, spark=spark) if not is_made(store, out, day)]
    for day in due:
        _make(spark, store, out, day)
    return [day.date for day in due]


def _make(spark: Any, store: Store, out: str, day: CompactedDay) -> None:
    folder, run = clients_dir(out, day.date), run_of(out, day)
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
    store.move(partial, run)


def _several_brokers(days: CompactedDays) -> bool:
    brokers = days.frame().select("gw", "user", "client_id", "api", "node").distinct()
    return not brokers.groupBy("gw", "user", "client_id", "api").count().where("count > 1").isEmpty()
