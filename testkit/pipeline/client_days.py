"""Days of clients as recommend and backtest read them, straight from compacted rows: no Spark, no files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.client_tables.rows import SCHEMA, client_rows
from pipeline.recommend.required_rates import Windows, days_of
from testkit.pipeline.compacted_days import compacted_rows

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
