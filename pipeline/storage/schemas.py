"""The columns of `pipeline.storage.layout` in Arrow's types."""

from __future__ import annotations

from collections.abc import Mapping
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
"""Arrow's types by Spark's names."""


def _schema(scalars: Mapping[str, str], arrays: Mapping[str, str]) -> pa.Schema:
    return pa.schema(
        [(name, ARROW_TYPES[kind]) for name, kind in scalars.items()]
        + [(name, pa.list_(ARROW_TYPES[kind])) for name, kind in arrays.items()]
    )


RAW_SCHEMA: Final = _schema(
    {
        "kind": "string",  # rows, events, lines or torn
        **KEY,
        "boot": "bigint",
        "first_seq": "bigint",
        "bucket": "int",  # `bucket_of` the client, -1 for kinds lines and torn; files are ordered by it
        "source": "string",  # kinds lines and torn: file, or topic and partition
        "at": "bigint",  # kind torn: position in it
        "reason": "string",  # kind torn: what is wrong with it
        "text": "binary",  # kind torn: the line itself, cut at 1 MiB
    },
    {**LINES, **SERIES, **EVENTS},
)
"""The raw table."""

COMPACTED_SCHEMA: Final = _schema({"bucket": "int", **KEY}, {**SERIES, **EVENTS})
"""The compacted table; `bucket` is one of those of the day."""
