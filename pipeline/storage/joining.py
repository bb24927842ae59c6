"""Joins neighbouring rows of arrays: raw rows into compacted rows, and compacted rows into one row per counter.

In each column the values of a client already follow one another across the borders of rows. So joining rows only
needs new offsets; the values stay as they are. Uses Arrow and numpy only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.storage.entity_days import EITHER, LARGEST, LAST, LEAST
from pipeline.storage.layout import EVENTS, KEY, SERIES
from quotas.usage_record import UsageApi

ORDER: Final = ("boot", "first_seq")
"""Columns by which the raw rows of a key are ordered."""

_CLIENT: Final = ("user", "client_id", "api")
_BY_COUNTER: Final = ["user", "client_id", "api", "gw", "node"]
_NEVER_MS: Final = 1_000
_COMPACTED_ARRAYS: Final = {"t": tuple(SERIES), "e_ms": tuple(EVENTS)}


def join_chunks(
    batches: Iterable[pa.RecordBatch],
    key: Iterable[str] = tuple(KEY),
    arrays: Mapping[str, Collection[str]] = _COMPACTED_ARRAYS,
) -> Iterator[pa.RecordBatch]:
    """Joins neighbouring rows of the same key; runs in Spark's Python workers.

    Args:
        batches: columns of the key, and arrays. Rows of a key follow one another.
        key: columns that must be equal.
        arrays: groups of array columns of equal length, by the column with their times.

    Yields:
        The same columns. Arrays are ordered by time; elements of equal time keep their order.
    """
    key = tuple(key)
    for table, begins in _whole_keys(batches, key):
        yield _joined(table, begins, key, arrays)


MOST_TOGETHER: Final = 4_000_000
"""The most recorded seconds of a client in memory, beside one batch, if its gateways count together."""

_TOGETHER: Final = MappingProxyType(
    {
        **dict.fromkeys(LARGEST, np.maximum),
        **dict.fromkeys(LEAST, np.minimum),
        **dict.fromkeys(EITHER, np.logical_or),
    }
)
"""How values of the same second are combined, unless they are added or the last one counts."""


def counted_together(
    batches: Iterable[pa.RecordBatch], fleets: Mapping[str, str], most: int = MOST_TOGETHER
) -> Iterator[pa.RecordBatch]:
    """Replaces the names of gateways by those of their fleets; see `pipeline.storage.counting`.

    Args:
        batches: columns of clients, gateways and brokers, in the order of `compacted_files.FILE_ORDER`.
        fleets: the fleet of each gateway.
        most: recorded seconds of a client in memory. If a client has more, the rows of its gateways so far are first
            combined to one element per second, by the rules of `pipeline.replay.demand`. Only then can sums differ in
            the last digit.

    Yields:
        Rows in which those of a client with the same counter are neighbours. Rows of connections keep their gateway,
        because each gateway counts connections by itself.
    """
    waiting: list[pa.Table] = []  # rows of the last client, which may continue in the next batch
    for batch in batches:
        if not batch.num_rows:
            continue
        table = pa.Table.from_batches([batch])
        begins = _begins(table, _CLIENT).tolist()
        start = 0
        if waiting and all(waiting[0].column(name)[0] == table.column(name)[0] for name in _CLIENT):
            start = begins[1] if len(begins) > 1 else len(table)
            waiting.append(table.slice(0, start))
            if sum(map(_elements, waiting)) > most:
                alone, shared = _apart(pa.concat_tables(waiting), fleets)
                yield from alone.to_batches()
                waiting = [_once_per_second(shared, fleets)]
        if start == len(table):
            continue
        last = begins[-1]
        yield from _by_counter(waiting, fleets)
        yield from _by_counter([table.slice(start, last - start)], fleets)
        waiting = [table.slice(last)]
    yield from _by_counter(waiting, fleets)


def _by_counter(tables: Collection[pa.Table], fleets: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """All rows of some clients, ordered so that rows of the same counter are neighbours."""
    if not any(map(len, tables)):
        return
    table = _of_counters(pa.concat_tables(tables), fleets)
    by_counter = [(name, "ascending") for name in _BY_COUNTER]
    order = pc.sort_indices(table.select(_BY_COUNTER), by_counter)
    # If all gateways are of one fleet, rows are already in order and arrays need no copy.
    if not np.array_equal(order.to_numpy(), np.arange(len(order))):
        table = table.take(order)
    yield from table.to_batches()


def _of_counters(table: pa.Table, fleets: Mapping[str, str]) -> pa.Table:
    """Replaces the names of gateways by those of their fleets."""
    names = zip(table.column("gw").to_pylist(), table.column("api").to_pylist(), strict=True)
    counters = [gw if api == UsageApi.CONNECT else fleets.get(gw, gw) for gw, api in names]
    return table.set_column(table.column_names.index("gw"), "gw", pa.array(counters, pa.string()))


def _apart(table: pa.Table, fleets: Mapping[str, str]) -> tuple[pa.Table, pa.Table]:
    """Divides a client's rows: those that count alone, and those that count together or may continue."""
    last = table.column("gw")[-1].as_py()
    # Rows that were combined before have the name of their fleet.
    together = {*fleets, *fleets.values()}
    names = zip(table.column("gw").to_pylist(), table.column("api").to_pylist(), strict=True)
    alone = pa.array(
        [gw != last and (gw not in together or api == UsageApi.CONNECT) for gw, api in names], pa.bool_()
    )
    return table.filter(alone), table.filter(pc.invert(alone))


def _elements(table: pa.Table) -> int:
    return int(pc.sum(pc.list_value_length(table.column("t"))).as_py() or 0)


def _once_per_second(table: pa.Table, fleets: Mapping[str, str]) -> pa.Table:
    """Combines a client's rows to one for each counter, with one element per second. Events are not combined."""
    (batch,) = pa.Table.from_batches(_by_counter([table], fleets)).combine_chunks().to_batches()
    table = pa.Table.from_batches([batch])
    arrays = {
        by: tuple(name for name in names if name in table.column_names)
        for by, names in _COMPACTED_ARRAYS.items()
        if by in table.column_names
    }
    lists = {name for names in arrays.values() for name in names}
    key = tuple(name for name in table.column_names if name not in lists)
    joined = _joined(table, _begins(table, key), key, arrays)
    times = joined.column("t")
    offsets = times.offsets.to_numpy().astype(np.int64)
    seconds = times.flatten().to_numpy()
    first = np.ones(len(seconds), bool)
    first[1:] = seconds[1:] != seconds[:-1]
    first[offsets[:-1][offsets[:-1] < len(seconds)]] = True
    starts = np.flatnonzero(first)
    edges = pa.array(np.concatenate(([0], np.cumsum(first)))[offsets], pa.int32())
    columns = {name: joined.column(name) for name in joined.schema.names}
    for name in arrays["t"]:
        column = joined.column(name)
        values = column.flatten().to_numpy(zero_copy_only=False)
        if name in LEAST:
            # A gateway without a request in that second has no first request.
            values = np.where(joined.column("connections").flatten().to_numpy() > 0, values, _NEVER_MS)
        found = _brought_together(name, values, starts)
        columns[name] = pa.ListArray.from_arrays(
            edges, pa.array(found, from_pandas=True).cast(column.type.value_type)
        )
    return pa.Table.from_pydict(columns).select(table.column_names)


def _brought_together(name: str, values: Any, starts: NDArray[np.int64]) -> Any:
    if not len(starts):
        return values
    if name == "t" or name in LAST:
        return values[np.append(starts[1:], len(values)) - 1]
    return _TOGETHER.get(name, np.add).reduceat(values, starts)


def _whole_keys(
    batches: Iterable[pa.RecordBatch], key: tuple[str, ...]
) -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
    """Tables in which each key is complete, and the indices at which its keys begin."""
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
    """The values of a column that an older release did not write in some rows: false or 0 there."""
    there = np.repeat(column.is_valid().to_numpy(zero_copy_only=False), lengths)
    values = np.zeros(len(there), column.type.value_type.to_pandas_dtype())
    values[there] = column.flatten().to_numpy(zero_copy_only=False)
    return pa.array(values)


def _order(times: NDArray[np.int32], offsets: NDArray[np.int32]) -> NDArray[np.int64] | None:
    """The stable order by time within each key. None if times are in order already, as usual without restarts."""
    falls = np.flatnonzero(times[1:] < times[:-1]) + 1
    if np.isin(falls, offsets).all():
        return None
    key = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return np.lexsort((times, key))
