"""Usage lines as columns: the Python side of `ingest`.

A `Collector` takes lines one after the other and yields Arrow batches of the raw table. The rows of many lines are
converted to columns together and then grouped by client, so that each client becomes one raw row with arrays. So
later steps move sixty times fewer rows than there are seconds. This module does not use Spark.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.ingest.lines import KEPT_BYTES, MOST_STORED, Line, Torn, read_line, texts_of
from pipeline.storage.layout import EVENTS, LINES, MUTATION_KINDS, SERIES, bucket_of
from pipeline.storage.offset_index import OffsetIndex, Run
from pipeline.storage.raw_table import REPEATED
from pipeline.storage.schemas import ARROW_TYPES, RAW_SCHEMA
from quotas.usage_record import STORED, Beside, Event, Row, RowFlags, StoredRow, UsageApi

DAY_S: Final = 86_400
_ROWS_AT_ONCE: Final = 65_536
_LINES_AT_ONCE: Final = 20_000

_POSITIONS: Final = {
    "requests": Row.REQUESTS,
    "bytes_in": Row.BYTES_IN,
    "bytes_out": Row.BYTES_OUT,
    "offered": Row.OFFERED,
    "admitted": Row.ADMITTED,
    "max_units": Row.MAX_UNITS,
    "rejected": Row.REJECTED,
    "rejected_units": Row.REJECTED_UNITS,
    "delayed": Row.DELAYED,
    "throttle_ms": Row.THROTTLE_MS,
    "muted_ms": Row.MUTED_MS,
    "quota": Row.QUOTA,
    "level_end": Row.LEVEL_END,
    "connections": Row.CONNECTIONS,
    "first_ms": Row.FIRST_MS,
    "in_force": Row.IN_FORCE,
}
_KEY_POSITIONS: Final = (Row.LISTENER, Row.USER, Row.CLIENT_ID, Row.API, Row.NODE)
_NULLABLE: Final = frozenset({"quota", "level_end"})
_SIGNED: Final = frozenset({"admitted", "level_end", "offset_ms", "e_correlation_id"})
"""Columns in which a gateway may write numbers below 0."""
_NUMPY: Final = {"int": np.int32, "bigint": np.int64, "double": np.float64}
_MOST: Final = {"int": 2**31 - 1, "bigint": MOST_STORED, "double": MOST_STORED}
_EVENT_POSITIONS: Final = {
    "e_units": Event.UNITS,
    "e_strict": Event.STRICT,
    "e_admitted": Event.ADMITTED,
    "e_throttle_ms": Event.THROTTLE_MS,
    "e_correlation_id": Event.CORRELATION_ID,
    "e_attempt": Event.ATTEMPT,
}
_MUTATION_KIND: Final = {kind: index for index, kind in enumerate(MUTATION_KINDS)}

NOTHING_READ: Final = OffsetIndex()
Skip: TypeAlias = frozenset[tuple[str, int]]
"""Lines to leave out: (source, position)."""

_Segment: TypeAlias = tuple[str, int, int]
"""Gateway, boot, day since the epoch."""
_Names: TypeAlias = tuple[str, str, str, str, int]
_Columns: TypeAlias = dict[str, Any]


class _Codes(dict[_Names, int]):
    """Numbers its keys in the order in which they are first requested."""

    def __missing__(self, key: _Names) -> int:
        self[key] = code = len(self)
        return code


class Collector:
    """Collects lines of one source after the other; see the module's docstring."""

    def __init__(self, skip: Skip = frozenset(), known: OffsetIndex = NOTHING_READ) -> None:
        """Contains no lines yet.

        Args:
            skip: lines that are left out and not reported.
            known: lines that have been read before. Only their positions are yielded.
        """
        self._skip = skip
        self._known = known
        self._repeated: list[int] = []
        self._source = ""
        self._lines: list[Line] = []
        self._rows = 0

    def file(self, source: str, content: bytes) -> Iterator[pa.RecordBatch]:
        """Raw rows of a whole file.

        Args:
            source: the file's name in the raw table.
            content: its bytes.
        """
        self._source = source
        torn: list[Torn] = []
        for position, text in enumerate(texts_of(content)):
            if isinstance(text, Torn):
                torn.append(text)
            else:
                yield from self._take(text, position, torn)
        yield from self._end(torn)

    def messages(self, source: str, texts: Iterable[tuple[int, bytes | Torn]]) -> Iterator[pa.RecordBatch]:
        """Raw rows of messages of one partition of a topic.

        Args:
            source: topic and partition.
            texts: offset and value of each message, or the reason why it is not read.
        """
        self._source = source
        torn: list[Torn] = []
        for offset, text in texts:
            if isinstance(text, Torn):
                torn.append(text)
            else:
                yield from self._take(text, offset, torn)
        yield from self._end(torn)

    def _take(self, text: bytes, position: int, torn: list[Torn]) -> Iterator[pa.RecordBatch]:
        if (self._source, position) in self._skip:
            return
        line = read_line(text, position)
        if isinstance(line, Torn):
            torn.append(line)
            return
        if self._known.holds(Run(line.gw, line.boot), line.seq, line.ts):
            self._repeated.append(position)
            return
        self._lines.append(line)
        # In memory 256 bytes of a line take about as much as a row, whatever they contain.
        self._rows += max(len(line.rows) + len(line.events) + _stored_rows(line), len(text) // 256)
        if self._rows >= _ROWS_AT_ONCE or len(self._lines) >= _LINES_AT_ONCE:
            yield from self._flush()

    def _end(self, torn: list[Torn]) -> Iterator[pa.RecordBatch]:
        yield from self._flush()
        yield from _torn(self._source, torn)
        if self._repeated:
            columns: _Columns = _same(1, kind=REPEATED, source=self._source)
            columns["position"] = pa.array([self._repeated], RAW_SCHEMA.field("position").type)
            yield _batch(1, columns)

    def _flush(self) -> Iterator[pa.RecordBatch]:
        lines, self._lines, self._rows = self._lines, [], 0
        if not lines:
            return
        try:
            yield from _batches(self._source, lines)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as exc:
            # One value of a wrong type spoils the columns of all lines. Tries the lines one by one to find it.
            if len(lines) == 1:
                reason = f"a value that no gateway writes: {exc}"
                yield from _torn(self._source, [Torn(lines[0].position, reason, lines[0].text[:KEPT_BYTES])])
                return
            for line in lines:
                self._lines = [line]
                yield from self._flush()


def _batches(source: str, lines: list[Line]) -> list[pa.RecordBatch]:
    segments: dict[_Segment, list[Line]] = {}
    for line in lines:
        segments.setdefault((line.gw, line.boot, line.ts // DAY_S), []).append(line)
    batches = []
    for segment, own in segments.items():
        batches += [_heads(source, segment, own)]
        if any(line.rows for line in own):
            batches.append(_rows(segment, own))
        if samples := list(_samples(segment, own)):
            batches.append(_rows(segment, samples))
        if any(line.events for line in own):
            batches.append(_events(segment, own))
    return batches


def _heads(source: str, segment: _Segment, lines: list[Line]) -> pa.RecordBatch:
    columns: _Columns = _same(1, kind="lines", source=source) | _of_segment(1, segment)
    columns["first_seq"] = pa.array([lines[0].seq], pa.int64())
    columns["bucket"] = pa.array([-1], pa.int32())
    values = {
        "seq": [line.seq for line in lines],
        "position": [line.position for line in lines],
        "ts": [line.ts for line in lines],
        "dur_ms": [line.dur_ms for line in lines],
        "row_count": [len(line.rows) + _stored_rows(line) for line in lines],
        "dropped_rows": [line.dropped_rows for line in lines],
        "dropped_events": [line.dropped_events for line in lines],
        "scope": [line.scope for line in lines],
        "algo": [line.algo for line in lines],
        "jump_ms": [line.jump_ms for line in lines],
    }
    offsets = pa.array([0, len(lines)], pa.int32())
    for name, kind in LINES.items():
        columns[name] = pa.ListArray.from_arrays(offsets, pa.array(values[name], ARROW_TYPES[kind]))
    return _batch(1, columns)


def _stored_rows(line: Line) -> int:
    """The number of rows that `_samples` makes of a line."""
    return sum(len(part[StoredRow.TOPICS]) + (part[StoredRow.TOTAL] is not None) for part in line.stored)


def _samples(segment: _Segment, lines: list[Line]) -> Iterator[Line]:
    """Lines with bytes stored on brokers, as rows of API `STORED` at the second of the sample; see `layout`."""
    midnight = segment[2] * DAY_S
    for line in lines:
        for cluster, node, at_s, total, topics, *_ in line.stored:
            # A sample stays in the day of its line.
            ts = min(max(at_s, midnight), midnight + DAY_S - 1)
            sizes = topics if total is None else [*topics, ("", total)]
            rows = [_stored_row(f"{cluster}/{node}", topic, size) for topic, size in sizes]
            if rows:
                yield line._replace(ts=ts, rows=rows)


def _stored_row(broker: str, topic: str, size: int) -> list[Any]:
    row: list[Any] = [0] * len(Row)
    row[Row.LISTENER], row[Row.USER], row[Row.CLIENT_ID], row[Row.API] = broker, "", topic, STORED
    row[Row.NODE] = -1
    row[Row.ADMITTED] = size
    row[Row.QUOTA] = row[Row.LEVEL_END] = row[Row.BESIDE] = None
    return row


def _rows(segment: _Segment, lines: list[Line]) -> pa.RecordBatch:
    # zip over all rows at once is the fastest way from lists of lists to columns.
    cells = list(zip(*chain.from_iterable(line.rows for line in lines), strict=True))
    keys = _Codes()
    names = zip(*(cells[position] for position in _KEY_POSITIONS), strict=True)
    codes = np.fromiter(map(keys.__getitem__, names), np.int32, len(cells[0]))
    for listener, user, client_id, api, node in keys:
        if not (type(listener) is type(user) is type(client_id) is type(api) is str and type(node) is int):
            raise ValueError(f"a name or api {api!r} is not text, or node {node!r} is no number")
    counts = np.array([len(line.rows) for line in lines])
    order, offsets = _grouped(codes, len(keys))
    seconds = np.array([line.ts % DAY_S for line in lines], np.int32)
    sequence = np.array([line.seq for line in lines], np.int64)
    columns: _Columns = _same(len(keys), kind="rows") | _of_segment(len(keys), segment)
    columns |= _of_keys(segment, list(keys))
    ordered_seq = np.repeat(sequence, counts)[order]
    columns["first_seq"] = pa.array(ordered_seq[offsets[:-1]], pa.int64())
    columns["seq"] = _lists(offsets, pa.array(ordered_seq))
    columns["t"] = _lists(offsets, pa.array(np.repeat(seconds, counts)[order]))
    for name, position in _POSITIONS.items():
        columns[name] = _lists(offsets, _series(name, cells[position], order))
    columns["beside_ms"] = _lists(
        offsets, _series("beside_ms", tuple(map(_beside_ms, cells[Row.BESIDE])), order)
    )
    flags = _whole("flags", cells[Row.FLAGS], "int")[order]
    columns["censored"] = _lists(offsets, pa.array((flags & RowFlags.CENSORED) != 0))
    columns["observed"] = _lists(offsets, pa.array((flags & RowFlags.OBSERVED) != 0))
    return _batch(len(keys), columns)


def _beside_ms(waits: Any) -> int:
    """The part of a row's throttle times that other limits caused; 0 if an older gateway does not record it."""
    if not waits:
        return 0
    try:
        return sum(each[Beside.THROTTLE_MS] for each in waits)
    except (LookupError, TypeError) as exc:
        raise ValueError(f"beside is not a list of waits: {exc}") from exc


def _series(name: str, values: tuple[Any, ...], order: NDArray[np.int64]) -> pa.Array:
    if name in _NULLABLE:
        column = pa.array(values, pa.float64())
        if name not in _SIGNED and (pc.min(column).as_py() or 0) < 0:
            raise ValueError(f"{name} is below 0")
        return column.take(pa.array(order))
    kind = SERIES[name]
    array = _numbers(name, values, kind)
    if kind != "double" and array.dtype.kind == "f":
        array = np.rint(array)
    return pa.array(array.astype(_NUMPY[kind])[order])


def _numbers(name: str, values: tuple[Any, ...], kind: str) -> NDArray[Any]:
    """The numbers of a column, if a gateway may have written all of them."""
    array = np.array(values)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{name} holds something else than numbers")
    # A limit may be as large as the operator wishes.
    most = np.inf if name == "in_force" else _MOST[kind]
    least = -most - 1 if name in _SIGNED else 0
    if len(array) and not least <= array.min() <= array.max() <= most:
        raise ValueError(f"{name} is not from {least} to {most}")
    return array


def _whole(name: str, values: tuple[Any, ...], kind: str) -> NDArray[Any]:
    """As `_numbers`, without fractions."""
    array = _numbers(name, values, kind)
    if array.dtype.kind == "f" and (array != np.rint(array)).any():
        raise ValueError(f"{name} holds something else than whole numbers")
    return array.astype(_NUMPY[kind])


def _facts(name: str, values: tuple[Any, ...]) -> NDArray[np.bool_]:
    array = np.array(values)
    if array.dtype.kind not in "biu":
        raise ValueError(f"{name} holds something else than true and false")
    return array.astype(np.bool_)


def _events(segment: _Segment, lines: list[Line]) -> pa.RecordBatch:
    base = [(line.ts % DAY_S) * 1000 for line in lines for _ in line.events]
    cells = list(zip(*chain.from_iterable(line.events for line in lines), strict=True))
    keys = _Codes()
    names = zip(cells[Event.LISTENER], cells[Event.USER], cells[Event.CLIENT_ID], strict=True)
    codes = np.fromiter((keys[(*name, str(UsageApi.MUTATION), -1)] for name in names), np.int32, len(base))
    if not all(type(name) is str for key in keys for name in key[:3]):
        raise ValueError("a name in an event is not text")
    order, offsets = _grouped(codes, len(keys))
    ms = np.array(base, np.int64) + _whole("offset_ms", cells[Event.OFFSET_MS], "bigint")
    columns: _Columns = _same(len(keys), kind="events") | _of_segment(len(keys), segment)
    columns |= _of_keys(segment, list(keys))
    columns["first_seq"] = pa.array([lines[0].seq] * len(keys), pa.int64())
    # The clock may be slightly off within a second; the event stays in the day of its line.
    columns["e_ms"] = _lists(offsets, pa.array(np.clip(ms, 0, DAY_S * 1000 - 1)[order].astype(np.int32)))
    kinds = np.array([_MUTATION_KIND.get(kind, -1) for kind in cells[Event.API]], np.int32)
    columns["e_kind"] = _lists(offsets, pa.array(kinds[order]))
    for name, position in _EVENT_POSITIONS.items():
        kind, values = EVENTS[name], cells[position]
        array = _facts(name, values) if kind == "boolean" else _whole(name, values, kind)
        columns[name] = _lists(offsets, pa.array(array[order]))
    return _batch(len(keys), columns)


def _torn(source: str, torn: list[Torn]) -> Iterator[pa.RecordBatch]:
    if not torn:
        return
    columns = _same(len(torn), kind="torn", source=source)
    columns["bucket"] = pa.array([-1] * len(torn), pa.int32())
    columns["at"] = pa.array([one.position for one in torn], pa.int64())
    columns["reason"] = pa.array([one.reason for one in torn], pa.string())
    columns["text"] = pa.array([one.text for one in torn], pa.binary())
    yield _batch(len(torn), columns)


def _grouped(codes: NDArray[np.int32], groups: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The stable order that makes equal codes neighbours, and the borders of their groups."""
    narrow = (
        codes.astype(np.int16) if groups < 2**15 else codes
    )  # numpy sorts 16 bits by radix: twice as fast
    order = np.argsort(narrow, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=groups))])
    return order, offsets


def _lists(offsets: NDArray[np.int64], values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _same(count: int, **texts: str) -> _Columns:
    return {name: pa.array([text] * count, pa.string()) for name, text in texts.items()}


def _of_segment(count: int, segment: _Segment) -> _Columns:
    gw, boot, day = segment
    date = datetime.date(1970, 1, 1) + datetime.timedelta(days=day)
    return {
        "gw": pa.array([gw] * count, pa.string()),
        "boot": pa.array([boot] * count, pa.int64()),
        "date": pa.array([date] * count, pa.date32()),
    }


def _of_keys(segment: _Segment, keys: list[_Names]) -> _Columns:
    listener, user, client_id, api, node = zip(*keys, strict=True)
    return {
        "listener": pa.array(listener, pa.string()),
        "user": pa.array(user, pa.string()),
        "client_id": pa.array(client_id, pa.string()),
        "api": pa.array(api, pa.string()),
        "node": pa.array(node, pa.int32()),
        "bucket": pa.array([bucket_of(*key[1:4]) for key in keys], pa.int32()),
    }


def _batch(count: int, columns: _Columns) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            columns[field.name] if field.name in columns else pa.nulls(count, field.type)
            for field in RAW_SCHEMA
        ],
        schema=RAW_SCHEMA,
    )
