"""Packed rows as quotas count, by Spark: one row for all listeners and brokers of a client, gateway and day.

`pipeline.packed_days` says when it is done so.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from pipeline.demand import ARRAYS, ENTITY


class Scope(StrEnum):
    """What one counter covers; as the gateway's own setting."""

    GATEWAY = "gateway"
    BROKER = "broker"


def entity_days(packed: Any, scope: Scope, arrays: Sequence[str] = ARRAYS) -> Any:
    """The packed table with the columns of `ENTITY` and some arrays, one row per series.

    Where each series has one row already nothing is moved between workers; that costs a look at the names alone.

    Args:
        packed: see `pipeline.layout.PACKED`.
        scope: whether brokers count together. Listeners always do.
        arrays: which are wanted.
    """
    from pyspark.sql import functions

    rows = packed.select(*ENTITY, *arrays)
    if scope is Scope.GATEWAY:
        rows = rows.withColumn("node", functions.lit(-1))
    names = rows.select(*ENTITY)
    if names.count() == names.distinct().count():
        return rows
    # One list of whole rows, so that the arrays of a row stay together whatever the order.
    grouped = rows.groupBy(*ENTITY).agg(functions.collect_list(functions.struct(*arrays)).alias("rows"))
    flat = [functions.flatten(functions.col(f"rows.{name}")).alias(name) for name in arrays]
    return grouped.select(*ENTITY, *flat)
