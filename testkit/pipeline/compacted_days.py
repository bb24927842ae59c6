"""Compacted rows for tests, with defaults for missing values."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.storage.compacted_days import CompactedState, compacted_table
from pipeline.storage.compacted_files import FILE_ORDER, CompactedFileWriter
from pipeline.storage.files import end_of
from pipeline.storage.layout import BUCKET, EVENTS, FINE_BUCKETS, CompactedDay, bucket_of, buckets_for
from pipeline.storage.schemas import COMPACTED_SCHEMA
from pipeline.storage.tables import DataFile
from testkit.pipeline.compacted_rows import compacted_batch

DAY: Final = datetime.date(2026, 11, 14)


def compacted_rows(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Rows of the compacted table.

    Args:
        rows: columns by name. Missing arrays have the length of `t` (events: of `e_ms`): one request in each second,
            which is the largest one, nothing throttled, no quota.
    """
    return compacted_batch(*(_filled(row) for row in rows))


def compacted_table_of(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """The same rows as a table."""
    return pa.Table.from_batches([compacted_rows(rows)])


def write_compacted_file(path: str, table: pa.Table, buckets: int = 32) -> CompactedFileWriter:
    """Writes compacted rows, given in any order, as one file in `compact`'s order. Returns the writer."""
    names = (table.column(name).to_pylist() for name in ("user", "client_id", "api"))
    own = np.array(
        [bucket_of(*each) * buckets // FINE_BUCKETS for each in zip(*names, strict=True)], np.int32
    )
    table = table.append_column(BUCKET, pa.array(own))
    keys = [(name, "ascending") for name in (BUCKET, *FILE_ORDER)]
    table = table.take(pc.sort_indices(table.select([name for name, _ in keys]), keys))
    own = np.sort(own)
    with CompactedFileWriter(path) as writer:
        for bucket in np.unique(own).tolist():
            begin, end = np.searchsorted(own, (bucket, bucket + 1)).tolist()
            writer.write(
                bucket, table.slice(begin, end - begin).select(COMPACTED_SCHEMA.names[1:]).to_batches()
            )
    return writer


def publish_day(out: str, day: CompactedDay, write: Iterable[pa.Table]) -> CompactedDay:
    """Replaces a day by new files, one for each table of rows. Returns the day's new facts."""
    (done,) = publish_days(out, [(day, write)])
    return done


def publish_days(out: str, days: Iterable[tuple[CompactedDay, Iterable[pa.Table]]]) -> list[CompactedDay]:
    """Replaces days in one commit; see `publish_day`."""
    table = compacted_table(out)
    before = table.prepared()
    state = CompactedState.from_json(before.state)
    files: list[DataFile] = []
    removed: list[DataFile] = []
    published = []
    for day, write in days:
        buckets = day.buckets or buckets_for(0)
        writers = []
        for rows in write:
            path = table.new_path(before, f"date={day.date}")
            writers.append(write_compacted_file(f"{table.folder}/{path}", rows, buckets))
            size = end_of(f"{table.folder}/{path}")
            files.append(DataFile(path, {"date": day.date}, writers[-1].keys, size, 0))
        removed += before.of(date=day.date)
        done = replace(
            day,
            run=uuid.uuid4().hex,
            rows=sum(writer.elements for writer in writers),
            keys=sum(writer.keys for writer in writers),
            buckets=buckets,
            several_brokers=any(writer.several_brokers for writer in writers),
        )
        published.append(done)
    after = CompactedState({**state.days, **{day.date: day for day in published}}, state.pruned)
    table.commit(before, add=files, remove=removed, state=after.to_json())
    return published


def write_compacted(
    out: Path,
    rows: Sequence[dict[str, Any]],
    *,
    completeness: float = 1.0,
    gateways: Mapping[str, float] | None = None,
    scopes: Mapping[str, str] | None = None,
    set_back_ms: Mapping[str, int] | None = None,
) -> None:
    """Publishes compacted days with these rows.

    Args:
        out: the pipeline's folder.
        rows: see `compacted_rows`.
        completeness: of all days.
        gateways: the completeness of each gateway, if given.
        scopes: what one counter of each gateway covers, if records say it.
        set_back_ms: by how much each gateway's clock was set back.
    """
    by_date: dict[datetime.date, list[dict[str, Any]]] = {}
    for row in rows:
        by_date.setdefault(row.get("date", DAY), []).append(row)
    days = []
    for date, of_date in by_date.items():
        about = CompactedDay(
            date.isoformat(),
            completeness=completeness,
            gateways=dict(gateways or {}),
            scopes=dict(scopes or {}),
            set_back_ms=dict(set_back_ms or {}),
        )
        days.append((about, [compacted_table_of(of_date)]))
    publish_days(str(out), days)


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
