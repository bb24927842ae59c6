"""Compacted days as files that workers write and read with Arrow.

Two dozen columns of arrays cost more on their way through Spark's rows than all work on them. So workers write and
read the files directly. A file is sorted by bucket (`layout.bucket_of`), then by client, gateway and broker. Each row
group has one bucket and a bounded number of elements, so that a worker reads only the columns and row groups that it
needs. A client's rows are neighbours, and all its gateways and brokers are in the same bucket of the day. `bucket` is
the first column; other readers may ignore it.
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
"""Recorded seconds in a row group, unless one row has more. A reader has one row group per file in memory."""

FILE_ORDER: Final = ("user", "client_id", "api", "gw", "node", "listener")
"""The order of rows in a bucket. Rows that count together are neighbours, also if each broker counts by itself."""

_OF_A_CLIENT: Final = ["user", "client_id", "api", "gw", "node"]
_HARDLY_REPEATED: Final = ("t", "bytes_in", "bytes_out", "offered", "admitted", "max_units", "level_end")


class CompactedFileWriter:
    """Writes one compacted file, bucket by bucket. Without rows no file is created.

    Attributes:
        keys, elements: rows and recorded seconds written so far.
        several_brokers: whether any client has used several at one gateway.
    """

    def __init__(self, path: str) -> None:
        """Args: path: of the file, which must not exist yet."""
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
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()

    def write(self, bucket: int, batches: Iterable[pa.RecordBatch]) -> None:
        """Adds the rows of a bucket.

        Args:
            bucket: its number, above that of the bucket before.
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
        """Updates `several_brokers`. Rows of a client and gateway are neighbours, also across row groups."""
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
    """Regroups rows into as few batches as possible, each of at most `most` recorded seconds or of one row.

    Args:
        batches: rows with an array `t`.
        most: elements of `t` per batch.
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
    """Options of Arrow's writer: files become a fifth smaller than with its defaults (level 1, dictionaries)."""
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
    """Each day's files are in their own folder. So pieces of the same bucket and day are neighbours when sorted."""
    group: int
    elements: int
    """Recorded seconds in the row group."""


def pieces_of(paths: Iterable[str]) -> list[Piece]:
    """The row groups of compacted files, in no particular order."""
    found = []
    for path in paths:
        with parquet_reader(path) as file:
            metadata = file.metadata
        columns = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
        seconds = columns.index("t.list.element")
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            # The bucket is the first column, and all rows of a group have the same one.
            found.append(
                Piece(row_group.column(0).statistics.min, path, group, row_group.column(seconds).num_values)
            )
    return found


def dealt(pieces: Collection[Piece], least: int, most_elements: int) -> list[list[Piece]]:
    """Divides pieces into about equal parts.

    Args:
        pieces: in any order.
        least: the least number of parts, if there are enough pieces.
        most_elements: recorded seconds in a part; more parts are made if they would be larger.

    Returns:
        Parts in order. A bucket of a day is never divided between two parts.
    """

    def together(piece: Piece) -> tuple[int, str]:
        return piece.bucket, piece.path.rpartition("/")[0]

    total = sum(piece.elements for piece in pieces)
    wanted = max(least, -(-total // most_elements))
    parts: list[list[Piece]] = []
    done = 0
    for _, group in groupby(sorted(pieces), together):
        whole = list(group)
        # A bucket belongs to the part in which its middle lies. So parts differ by at most one bucket.
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
    """Reads pieces in the given order, one at a time.

    Args:
        pieces: the row groups to read.
        columns: columns of the compacted table.
        apis: rows of other APIs are left out.
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
    """Reads a row group. If all elements of an array are equal, only its statistics are read.

    Most clients are never throttled or refused, and reading zeros costs nearly as much as reading numbers.
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
            same[name] = ARROW_TYPES[SERIES[name]].to_pandas_dtype()(0)  # an older release did not write it
            continue
        if chunk.statistics is None:
            continue
        statistics = chunk.statistics
        if statistics.null_count == chunk.num_values:
            same[name] = None
        # A row without seconds counts as a null in each column. Statistics ignore NaN, but JSON has no NaN either.
        elif (
            statistics.null_count == seconds.statistics.null_count
            and statistics.has_min_max
            and statistics.min == statistics.max
        ):
            # For zeros the statistics give -0.0 as the minimum, and 0.0 as the maximum.
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
    """Reads the rows that count together as one row for each counter.

    Args:
        pieces: row groups of whole buckets and days.
        key: columns that name a counter. `node` among them is -1 if brokers count together.
        arrays: see `joining.join_chunks`.
        brokers_apart: whether each broker counts by itself.
        fleets: the fleet of each gateway that counts with others. Other gateways count by themselves.
        apis: rows of other APIs are left out.
        most_elements: recorded seconds in a batch, unless one row has more.
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
    """Reads a day bucket by bucket.

    Args:
        pieces: row groups of one day, in order.
        columns: columns of the compacted table.
    """
    for bucket, own in groupby(pieces, lambda piece: piece.bucket):
        yield bucket, read_pieces(own, columns)
