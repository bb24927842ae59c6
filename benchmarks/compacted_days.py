"""Compacted days made directly from `testkit.pipeline.traces`, as `ingest` and `compact` would write them.

They contain demand, and no quota is in force.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.storage.layout import EVENTS, KEY, SERIES, CompactedDay
from pipeline.storage.schemas import ARROW_TYPES
from testkit.pipeline.compacted_days import publish_day
from testkit.pipeline.traces import Day, day_of, entities_of

FIRST_DAY: Final = datetime.date(2026, 9, 28)  # a Monday, as day 0 of the traces


def write_compacted_days(
    out: Path,
    *,
    seed: int,
    entities: int,
    days: int,
    first_day: int = 0,
) -> int:
    """Write days of made-up demand in the format of the compacted table.

    Args:
        out: the pipeline's folder.
        seed, entities: see `testkit.pipeline.traces.demand`.
        days: number of days.
        first_day: date of the first day.

    Returns:
        Recorded seconds in all days.
    """
    total = 0
    for index in range(first_day, first_day + days):
        day = day_of(seed, entities, index)
        date = (FIRST_DAY + datetime.timedelta(days=index)).isoformat()
        publish_day(str(out), CompactedDay(date), [compacted_table(seed, entities, day)])
        total += day.rows
    return total


def compacted_table(seed: int, entities: int, day: Day) -> pa.Table:
    """One day's compacted rows, in the order of the entities."""
    entities_of_day = entities_of(seed, entities)
    date = FIRST_DAY + datetime.timedelta(days=day.index)
    names: dict[str, list[Any]] = {
        "date": [date] * entities,
        "gw": ["gw-0"] * entities,
        "listener": ["clients"] * entities,
        "user": [entity.user for entity in entities_of_day],
        "client_id": [entity.client_id for entity in entities_of_day],
        "api": [entity.api for entity in entities_of_day],
        "node": [-1] * entities,
    }
    nothing = np.zeros(day.rows)
    produced = (
        np.repeat([entity.api == "produce" for entity in entities_of_day], np.diff(day.starts)) * day.units
    )
    series: dict[str, Any] = dict.fromkeys(SERIES, nothing) | {
        "t": day.t,
        "requests": day.requests,
        "bytes_in": produced,
        "bytes_out": day.units - produced,
        "offered": day.units,
        "admitted": day.units,
        "max_units": day.max_units,
        "quota": pa.nulls(day.rows, pa.float64()),
        "level_end": pa.nulls(day.rows, pa.float64()),
    }
    count = len(day.event_ms)
    events: dict[str, Any] = dict.fromkeys(EVENTS, np.zeros(count)) | {
        "e_ms": day.event_ms,
        "e_units": day.event_units,
        "e_strict": np.ones(count),
        "e_admitted": np.ones(count),
        "e_attempt": np.ones(count),
    }
    columns = {name: pa.array(values, ARROW_TYPES[KEY[name]]) for name, values in names.items()}
    for arrays, kinds, starts in ((series, SERIES, day.starts), (events, EVENTS, day.event_starts)):
        for name, values in arrays.items():
            columns[name] = _lists(values, kinds[name], starts)
    return pa.table(columns)


def _lists(values: Any, kind: str, starts: Any) -> pa.Array:
    if not isinstance(values, pa.Array):
        values = pa.array(np.asarray(values).astype(ARROW_TYPES[kind].to_pandas_dtype()), ARROW_TYPES[kind])
    return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), values)
