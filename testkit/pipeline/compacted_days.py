"""Compacted rows for tests: what is not said is filled in."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.storage.compacted_files import write_compacted_file
from pipeline.storage.layout import BUCKETS, EVENTS, MANIFEST, compacted_dir
from testkit.pipeline.compacted_rows import compacted_batch

DAY: Final = datetime.date(2026, 11, 14)


def compacted_rows(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Rows of the compacted table.

    Args:
        rows: columns by name. Arrays that are not given are as long as `t` (events: as `e_ms`): one request in each
            second, the largest all of it, nothing throttled, no quota.
    """
    return compacted_batch(*(_filled(row) for row in rows))


def write_compacted(
    out: Path,
    rows: Sequence[dict[str, Any]],
    *,
    completeness: float = 1.0,
    gateways: Mapping[str, float] | None = None,
    by_spark: bool = False,
) -> None:
    """Publish compacted days with these rows.

    Args:
        out: the pipeline's folder.
        rows: see `compacted_rows`.
        completeness: of all days.
        gateways: that of each gateway, if it is told.
        by_spark: as Spark writes them, which workers cannot read themselves.
    """
    by_date: dict[datetime.date, list[dict[str, Any]]] = {}
    for row in rows:
        by_date.setdefault(row.get("date", DAY), []).append(row)
    for date, of_date in by_date.items():
        folder = Path(compacted_dir(str(out), date.isoformat())) / "run=000001"
        folder.mkdir(parents=True)
        table = pa.Table.from_batches([compacted_rows(of_date)])
        if by_spark:
            pq.write_table(table, folder / "part-0.parquet")
        else:
            write_compacted_file(folder / "part-0.parquet", table)
        seconds = sum(len(row["t"]) for row in of_date)
        manifest = {"rows": seconds, "keys": len(of_date), "completeness": completeness, "batches": []}
        manifest |= {"gateways": dict(gateways or {})}
        if not by_spark:
            manifest["buckets"] = BUCKETS
        (folder / MANIFEST).write_text(json.dumps(manifest), encoding="ascii")


def _filled(row: dict[str, Any]) -> dict[str, Any]:
    seconds, events = len(row["t"]), len(row.get("e_ms", ()))
    offered = row.get("offered", [1.0] * seconds)
    return {
        "date": DAY,
        "node": -1,
        "requests": [1] * seconds,
        "offered": offered,
        "admitted": offered,
        "max_units": offered,
        **{name: [0] * events for name in EVENTS},
        "e_strict": [True] * events,
        "e_admitted": [True] * events,
        "e_attempt": [1] * events,
        **row,
    }
