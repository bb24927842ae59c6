"""Days of clients as recommend and backtest read them, straight from compacted rows: no Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.client_tables.files import MADE_SO
from pipeline.client_tables.profile import PARTIAL, merge_profiles, profile_rows
from pipeline.client_tables.rows import SCHEMA, client_rows
from pipeline.client_tables.timelines import CLIENT_USE, SUMMARY, summarise
from pipeline.recommend.required_rates import Windows, days_of
from pipeline.storage.layout import MANIFEST, clients_dir
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
    """Puts the tables of these rows' days where `compact` does; their brokers have to count together already."""
    for date in {row.get("date", DAY) for row in rows}:
        of_date = [row for row in rows if row.get("date", DAY) == date]
        run = Path(clients_dir(str(out), date.isoformat())) / "run=000001"
        for table in ("client_day", "client_hour", "total"):
            folder = run / "scope=gateway" / f"table={table}"
            folder.mkdir(parents=True)
            pq.write_table(client_table(of_date, table).drop_columns(["table"]), folder / "part-0.parquet")
        folder = run / "scope=gateway" / f"table={CLIENT_USE}"
        folder.mkdir()
        pq.write_table(client_use(of_date), folder / "part-0.parquet")
        (run / MANIFEST).write_text(json.dumps(MADE_SO), encoding="ascii")
