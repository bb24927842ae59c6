"""Compacted days as files that workers write and read with Arrow.

Two dozen columns of arrays cost more on their way through Spark's rows than all that is done with them. So a file
has its rows by bucket (`layout.bucket_of`), then by client, gateway and broker, and row groups of one bucket and a
bounded number of elements each: a worker reads the columns it needs of the row groups it needs, a client's rows lie
one after the other, and all gateways and brokers of a client are in the same bucket of the day. `bucket` is the first
column; other readers may ignore it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import TracebackType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.storage.files import parquet_reader, parquet_writer
from pipeline.storage.joining import counted_together, join_chunks
from pipeline.storage.layout import SERIES
from pipeline.storage.schemas import ARROW_TYPES, COMPACTED_SCHEMA

ELEMENTS_PER_GROUP: Final = 1_000_000
"""Recorded seconds in a row group, unless a single row has more: what a reader holds of a file at once."""

FILE_ORDER: Final = ("user", "client_id", "api", "gw", "node", "listener")
"""By which the rows of a bucket are ordered: rows that count together are neighbours, whether brokers do or not."""

_OF_A_CLIENT: Final = ["user", "client_id", "api", "gw", "node"]
_HARDLY_REPEATED: Final = ("t", "bytes_in", "bytes_out", "offered", "admitted", "max_units", "level_end")


class CompactedFileWriter:
    """Writes one compacted file, bucket by bucket; no file without rows.

    Attributes:
        keys, elements: rows and recorded seconds written so far.
        several_brokers: whether any client has used several at one gateway.
    """

    def __init__(self, path: str) -> None:
        """Args: path: of the file, which is not there yet."""
        self.keys = 0
        self.elements = 0
        self.several_brokers = False
        self._path = path
        self._last: pa.Table | None = None
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> CompactedFileWriter:
        """The writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, at: TracebackType | None
    ) -> None:
        """Ends the file."""
        if self._writer is not None:
            self._writer.close()

    def write(self, bucket: int, batches: Iterable[pa.RecordBatch]) -> None:
        """Adds the rows of a bucket.

        Args:
            bucket: the next one; buckets rise.
            batches: compacted rows in the order of `FILE_ORDER`.
        """
        for group in gathered(batches, ELEMENTS_PER_GROUP):
            if self._writer is None:
                self._writer = parquet_writer(self._path, COMPACTED_SCHEMA, **_writing())
            numbers = pa.array(np.full(group.num_rows, bucket, np.int32))
            columns = [numbers, *(group.column(name) for name in COMPACTED_SCHEMA.names[1:])]
            self._writer.write_table(
                pa.Table.from_arrays(columns, schema=COMPACTED_SCHEMA), row_group_size=max(1, group.num_rows)
            )
            self.keys += group.num_rows
            self.elements += _elements(group)
            self._look_for_brokers(group)

    def _look_for_brokers(self, group: pa.RecordBatch) -> None:
        """Rows of a client and gateway are neighbours, by broker; also over the borders of row groups."""
        names = pa.Table.from_batches([group]).select(_OF_A_CLIENT)
        rows = names if self._last is None else pa.concat_tables([self._last, names])
        same = np.ones(len(rows) - 1, bool)
        for name in _OF_A_CLIENT[:-1]:
            column = rows.column(name).combine_chunks()
            same &= np.asarray(pc.equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False), bool)
        nodes = rows.column("node").to_numpy()
        self.several_brokers |= bool((same & (nodes[1:] != nodes[:-1])).any())
        self._last = names.slice(len(names) - 1)


def gathered(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at most so many recorded seconds, or one row; as few batches as that allows.

    Args:
        batches: with an array `t`.
        most: elements of `t`.
    """
    waiting: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        ends = np.cumsum(pc.list_value_length(batch.column("t")).to_numpy())
        begin = done = 0
        while begin < batch.num_rows:
            end = int(np.searchsorted(ends, done + most - held, side="right"))
            if end == begin and not waiting:
                end = begin + 1
            if end > begin:
                waiting.append(batch.slice(begin, end - begin))
                held += int(ends[end - 1]) - done
                begin, done = end, int(ends[end - 1])
            if begin < batch.num_rows:
                yield _as_one(waiting)
                waiting, held = [], 0
    if waiting:
        yield _as_one(waiting)


def _as_one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch


def _elements(batch: pa.RecordBatch) -> int:
    return len(batch.column("t").flatten())


def _writing() -> dict[str, Any]:
    """How compacted files are written: a fifth smaller than with Arrow's own choices (level 1, dictionaries)."""
    names = [
        f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name
        for field in COMPACTED_SCHEMA
    ]
    varied = {f"{name}.list.element" for name in _HARDLY_REPEATED}
    return {"compression": "zstd", "compression_level": 3, "use_dictionary": sorted(set(names) - varied)}


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """A row group: rows of one bucket."""

    bucket: int
    path: str
    """A day's files are in a folder of its own, so pieces of a bucket and day are neighbours in this order."""
    group: int
    elements: int
    """Recorded seconds in it."""


def pieces_of(paths: Iterable[str]) -> list[Piece]:
    """What files hold, in no order; `paths` are of files of compacted days."""
    found = []
    for path in paths:
        with parquet_reader(path) as file:
            metadata = file.metadata
        columns = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
        seconds = columns.index("t.list.element")
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            # The bucket is the first column, and a group has only one.
            found.append(
                Piece(row_group.column(0).statistics.min, path, group, row_group.column(seconds).num_values)
            )
    return found


def dealt(pieces: Collection[Piece], least: int, most_elements: int) -> list[list[Piece]]:
    """Pieces in about equal parts.

    Args:
        pieces: in any order.
        least: how many parts, if that many can be made.
        most_elements: more parts if each were larger than this.

    Returns:
        Parts of whole buckets of a day, each in order.
    """

    def together(piece: Piece) -> tuple[int, str]:
        return piece.bucket, piece.path.rpartition("/")[0]

    total = sum(piece.elements for piece in pieces)
    wanted = max(least, -(-total // most_elements))
    parts: list[list[Piece]] = []
    done = 0
    for _, group in groupby(sorted(pieces), together):
        whole = list(group)
        # By where its middle lies, so that parts differ by no more than a group.
        number = min(
            (done + sum(piece.elements for piece in whole) // 2) * wanted // max(1, total), wanted - 1
        )
        while len(parts) <= number:
            parts.append([])
        parts[number] += whole
        done += sum(piece.elements for piece in whole)
    return [part for part in parts if part]


def read_pieces(
    pieces: Iterable[Piece], columns: Sequence[str], apis: Collection[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows of pieces in their order, a piece at a time.

    Args:
        pieces: which.
        columns: of the compacted table.
        apis: leave out others.
    """
    for path, of_file in groupby(pieces, lambda piece: piece.path):
        with parquet_reader(path) as file:
            for piece in of_file:
                table = _read_group(file, piece.group, columns)
                if apis is not None:
                    table = table.filter(pc.is_in(table.column("api"), pa.array(list(apis))))
                if table.num_rows:
                    yield from table.select(list(columns)).combine_chunks().to_batches()


def _read_group(file: pq.ParquetFile, group: int, columns: Sequence[str]) -> pa.Table:
    """A row group; of arrays in which all elements are the same only the statistics are read.

    Most clients are never throttled nor refused, and reading zeros costs nearly as much as reading numbers.
    """
    row_group = file.metadata.row_group(group)
    chunks = {chunk.path_in_schema: chunk for chunk in map(row_group.column, range(row_group.num_columns))}
    seconds = chunks["t.list.element"]
    same: dict[str, Any] = {}
    for name in columns if "t" in columns else ():
        chunk = chunks.get(f"{name}.list.element")
        if name not in SERIES or name == "t":
            continue
        if chunk is None:
            same[name] = ARROW_TYPES[SERIES[name]].to_pandas_dtype()(0)  # what an older release did not write
            continue
        if chunk.statistics is None:
            continue
        statistics = chunk.statistics
        if statistics.null_count == chunk.num_values:
            same[name] = None
        # Rows without any second count as a null in each column. NaN is not in statistics, but nor in JSON.
        elif (
            statistics.null_count == seconds.statistics.null_count
            and statistics.has_min_max
            and statistics.min == statistics.max
        ):
            # Of zeros the statistics give -0.0 as the least, and 0.0 as the largest.
            same[name] = statistics.max
    table = file.read_row_group(
        group, columns=[name for name in columns if name not in same], use_threads=False
    )
    if same:
        times = table.column("t").combine_chunks()
        for name, value in same.items():
            kind = ARROW_TYPES[SERIES[name]]
            values = pa.repeat(pa.scalar(value, kind), len(times.values))
            table = table.append_column(name, pa.ListArray.from_arrays(times.offsets, values))
    return table


def read_entities(
    pieces: Iterable[Piece],
    key: Sequence[str],
    arrays: Mapping[str, Sequence[str]],
    *,
    brokers_apart: bool,
    fleets: Mapping[str, str] = {},
    apis: Collection[str] | None = None,
    most_elements: int,
) -> Iterator[pa.RecordBatch]:
    """Rows of what counts together.

    Args:
        pieces: of whole buckets and days.
        key: columns that name what counts together; `node` among them is -1 where brokers count together.
        arrays: see `joining.join_chunks`.
        brokers_apart: whether they do not.
        fleets: by gateway, the fleet that counts in its place; others count by themselves.
        apis: leave out others.
        most_elements: recorded seconds in a batch, unless a single row has more.
    """
    columns = [*key, *(name for names in arrays.values() for name in names)]
    rows = read_pieces(pieces, columns, apis)
    if not brokers_apart:
        at = columns.index("node")
        rows = (
            batch.set_column(at, "node", pa.array(np.full(batch.num_rows, -1, np.int32))) for batch in rows
        )
    if fleets:
        rows = counted_together(rows, fleets)
    return gathered(join_chunks(rows, key, arrays), most_elements)


def buckets_of(
    pieces: Iterable[Piece], columns: Sequence[str]
) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """Rows bucket by bucket.

    Args:
        pieces: of a day, in order.
        columns: of the compacted table.
    """
    for bucket, own in groupby(pieces, lambda piece: piece.bucket):
        yield bucket, read_pieces(own, columns)
