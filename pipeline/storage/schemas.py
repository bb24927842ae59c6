"""Arrow's types, and the raw table's columns in them; `pipeline.storage.layout` says the same to Spark."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from pipeline.storage.layout import EVENTS, KEY, LINES, SERIES

ARROW_TYPES: Final = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "date": pa.date32(),
    "binary": pa.binary(),
}
"""Arrow's types by Spark's names of them."""
_SCALARS: Final = {
    "kind": "string", **KEY, "boot": "bigint", "first_seq": "bigint", "bucket": "int", "source": "string",
    "at": "bigint", "reason": "string", "text": "binary",
}  # fmt: skip
_ARRAYS: Final = {**LINES, **SERIES, **EVENTS}

RAW_SCHEMA: Final = pa.schema(
    [(name, ARROW_TYPES[kind]) for name, kind in _SCALARS.items()]
    + [(name, pa.list_(ARROW_TYPES[kind])) for name, kind in _ARRAYS.items()]
)
"""The raw table."""
