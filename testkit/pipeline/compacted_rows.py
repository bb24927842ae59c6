"""Compacted rows as Arrow, from the few columns that a test needs."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from pipeline.storage.layout import EVENTS, KEY, SERIES
from pipeline.storage.schemas import ARROW_TYPES

_KEY: Final = {"gw": "gw", "listener": "default", "user": "u", "client_id": "c", "api": "produce", "node": 1}
_ZERO: Final = {"double": 0.0, "boolean": False}
_NO_VALUE: Final = ("quota", "level_end")


def schema() -> pa.Schema:
    """The compacted table's columns."""
    fields = [(name, ARROW_TYPES[kind]) for name, kind in KEY.items()]
    fields += [(name, pa.list_(ARROW_TYPES[kind])) for name, kind in {**SERIES, **EVENTS}.items()]
    return pa.schema(fields)


def compacted_batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    """Rows of the compacted table. Missing arrays have the length of `t` and contain zeros (quotas: nulls)."""
    columns: dict[str, list[Any]] = {name: [] for name in (*KEY, *SERIES, *EVENTS)}
    for row in rows:
        for name in KEY:
            columns[name].append(row.get(name, _KEY.get(name)))
        for name, kind in SERIES.items():
            zero = None if name in _NO_VALUE else _ZERO.get(kind, 0)
            columns[name].append(row.get(name, [zero] * len(row["t"])))
        for name in EVENTS:
            columns[name].append(row.get(name, []))
    arrays = [pa.array(columns[field.name], field.type) for field in schema()]
    return pa.RecordBatch.from_arrays(arrays, schema=schema())
