"""Joins neighbouring rows of arrays: raw rows into compacted ones, compacted ones into counters' rows.

The values of a client lie one after the other in each column already, over the borders of rows: joining them is a
matter of new offsets, and no value is touched. Arrow and numpy only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.storage.layout import EVENTS, KEY, SERIES
from quotas.usage_record import UsageApi

ORDER: Final = ("boot", "first_seq")
"""Columns by which the raw rows of a key are ordered."""

_BY_COUNTER: Final = ["user", "client_id", "api", "gw", "node"]
_COMPACTED_ARRAYS: Final = {"t": tuple(SERIES), "e_ms": tuple(EVENTS)}


def join_chunks(
    batches: Iterable[pa.RecordBatch],
    key: Iterable[str] = tuple(KEY),
    arrays: Mapping[str, Collection[str]] = _COMPACTED_ARRAYS,
) -> Iterator[pa.RecordBatch]:
    """Joins neighbouring rows of the same key; runs in Spark's Python workers.

    Args:
        batches: columns of the key and arrays, rows of a key one after the other.
        key: columns that must be equal.
        arrays: columns of arrays that belong together, by the one of them that has their times.

    Yields:
        The same columns; arrays in the order of their times, equal ones as they came.
    """
    key = tuple(key)
    for table, begins in _whole_keys(batches, key):
        yield _joined(table, begins, key, arrays)


def counted_together(
    batches: Iterable[pa.RecordBatch], fleets: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """The same rows with the names of fleets in place of those of their gateways; see `pipeline.storage.counting`.

    Args:
        batches: columns of clients, gateways and brokers, in the order of `compacted_files.FILE_ORDER`.
        fleets: by gateway.

    Yields:
        Rows of a client with the same counter one after the other. Connections keep their gateway, which counts them.
    """
    for table, _ in _whole_keys(batches, ("user", "client_id", "api")):
        names = table.column("gw").to_pylist()
        apis = table.column("api").to_pylist()
        counters = pa.array(
            [
                gw if api == UsageApi.CONNECT else fleets.get(gw, gw)
                for gw, api in zip(names, apis, strict=True)
            ],
            pa.string(),
        )
        table = table.set_column(table.column_names.index("gw"), "gw", counters)
        by_counter = [(name, "ascending") for name in _BY_COUNTER]
        order = pc.sort_indices(table.select(_BY_COUNTER), by_counter)
        # In order already where all gateways are of one fleet: arrays are not copied for nothing.
        if not np.array_equal(order.to_numpy(), np.arange(len(order))):
            table = table.take(order)
        yield from table.to_batches()


def _whole_keys(
    batches: Iterable[pa.RecordBatch], key: tuple[str, ...]
) -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
    """Rows in tables that no key continues beyond, and where in each its keys begin."""
    rest: pa.Table | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        table = pa.Table.from_batches([batch])
        if rest is not None:
            table = pa.concat_tables([rest, table]).combine_chunks()
        begins = _begins(table, key)
        # The last key may continue in the next batch.
        last = int(begins[-1])
        rest = table.slice(last)
        if last:
            yield table.slice(0, last), begins[:-1]
    if rest is not None:
        yield rest.combine_chunks(), np.zeros(1, np.int64)


def _begins(table: pa.Table, key: tuple[str, ...]) -> NDArray[np.int64]:
    """Index of the first row of each key."""
    differs = np.zeros(table.num_rows, bool)
    differs[0] = True
    for name in key:
        column = table.column(name).combine_chunks()
        changed = pc.not_equal(column[1:], column[:-1])
        differs[1:] |= np.asarray(changed.to_numpy(zero_copy_only=False), bool)
    return np.flatnonzero(differs)


def _joined(
    table: pa.Table, begins: NDArray[np.int64], key: tuple[str, ...], arrays: Mapping[str, Collection[str]]
) -> pa.RecordBatch:
    ends = np.append(begins[1:], table.num_rows)
    columns = {name: table.column(name).combine_chunks().take(pa.array(begins)) for name in key}
    for by, names in arrays.items():
        lists = {name: table.column(name).combine_chunks() for name in names}
        lengths = pc.fill_null(pc.list_value_length(lists[by]), 0).to_numpy()
        edges = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        offsets = np.append(edges[begins], edges[ends[-1]]).astype(np.int32)
        values = {
            name: column.flatten() if column.null_count == lists[by].null_count else _filled(column, lengths)
            for name, column in lists.items()
        }
        order = _order(values[by].to_numpy(), offsets)
        for name, flat in values.items():
            flat = flat if order is None else flat.take(pa.array(order))
            columns[name] = pa.ListArray.from_arrays(pa.array(offsets), flat)
    return pa.RecordBatch.from_pydict(columns)


def _filled(column: pa.Array, lengths: NDArray[np.int64]) -> pa.Array:
    """The values of a column that some rows lack, since an older release wrote them: false or 0 there."""
    there = np.repeat(column.is_valid().to_numpy(zero_copy_only=False), lengths)
    values = np.zeros(len(there), column.type.value_type.to_pandas_dtype())
    values[there] = column.flatten().to_numpy(zero_copy_only=False)
    return pa.array(values)


def _order(times: NDArray[np.int32], offsets: NDArray[np.int32]) -> NDArray[np.int64] | None:
    """The stable order by time within each key, None where it is in order: the rule, but for restarts."""
    falls = np.flatnonzero(times[1:] < times[:-1]) + 1
    if np.isin(falls, offsets).all():
        return None
    key = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return np.lexsort((times, key))
