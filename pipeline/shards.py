"""Tables written and read by the Python workers themselves, in folders that every machine of the job has mounted.

Handing arrays to the JVM for writing, or for a shuffle, costs more than making them. So a worker writes raw rows
where they are, with Arrow, and Spark gets only what the driver must know: the heads of the lines and the names of the
files. What a task wrote counts when the driver has its answer, so files of tasks that were given up are nobody's;
see `pipeline.batches`. Raw files are ordered by bucket (`layout.bucket_of`), with row groups to find one by, so
packing a day needs no shuffle either: each task reads its own buckets of every file.
"""

from __future__ import annotations

import datetime
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.columns import SCHEMA
from pipeline.joining import ORDER, join_chunks
from pipeline.layout import BUCKETS, EVENTS, KEY, SERIES
from pipeline.packed_files import FILE_ORDER, PackedWriter
from pipeline.store import local_path

ROWS_PER_GROUP: Final = 60_000
"""Raw rows (not seconds) that are ordered together."""
_LEAST_ROWS_PER_GROUP: Final = 1_000
_PACK_ROWS_AT_ONCE: Final = 60_000
_REPEATED: Final = [field.name for field in SCHEMA if not pa.types.is_list(field.type)]
_ROW_ORDER: Final = ["bucket", *FILE_ORDER, *ORDER]


def write_shard(batches: Iterable[pa.RecordBatch], folder: str) -> Iterator[pa.RecordBatch]:
    """Writes raw rows into one file of a folder that is there.

    Args:
        batches: of the raw table.
        folder: where to.

    Yields:
        The rows of kinds lines and torn, the latter without their text, and one of kind file with its name as source.
    """
    name = f"part-{uuid.uuid4().hex}.parquet"
    waiting: list[pa.RecordBatch] = []
    writer: pq.ParquetWriter | None = None
    try:
        for batch in batches:
            waiting.append(batch)
            yield from _for_the_driver(batch)
            if sum(one.num_rows for one in waiting) >= ROWS_PER_GROUP:
                writer = writer or _open(Path(folder, name))
                _write(writer, waiting)
                waiting = []
        if waiting:
            writer = writer or _open(Path(folder, name))
            _write(writer, waiting)
    finally:
        if writer is not None:
            writer.close()
    if writer is not None:
        _sync(Path(folder, name))
        told = {"kind": pa.array(["file"]), "source": pa.array([name])}
        yield pa.RecordBatch.from_arrays(
            [told.get(field.name, pa.nulls(1, field.type)) for field in SCHEMA], schema=SCHEMA
        )


def _open(path: Path) -> pq.ParquetWriter:
    # A dictionary of numbers that are nearly all different makes a file larger, and 1.6 times as slow to write.
    return pq.ParquetWriter(
        path,
        SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=_REPEATED,
        write_statistics=["bucket"],
    )


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _write(writer: pq.ParquetWriter, batches: list[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(batches).combine_chunks().sort_by("bucket")
    groups = min(BUCKETS, len(table) // _LEAST_ROWS_PER_GROUP + 1)
    writer.write_table(table, row_group_size=len(table) // groups + 1)


def _for_the_driver(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    told = batch.filter(pc.is_in(batch.column("kind"), pa.array(["lines", "torn"])))
    if told.num_rows:
        text = SCHEMA.get_field_index("text")
        yield told.set_column(text, SCHEMA.field(text), pa.nulls(told.num_rows, pa.binary()))


def pack_shard(
    paths: list[str], date: datetime.date, buckets: tuple[int, int], folder: str
) -> tuple[str, int, int]:
    """Packs some buckets of a day into one file of a folder that is there.

    Args:
        paths: folders of the raw batches.
        date: the day.
        buckets: from this one on, and up to but without that.
        folder: where to.

    Returns:
        The file's name, empty if there was nothing to write; how many keys and how many recorded seconds are in it.
    """
    pieces = [piece for path in paths for file in _raw_files(path) for piece in _read(file, date, buckets)]
    if not pieces:
        return "", 0, 0
    table = pa.concat_tables(pieces)
    order = pc.sort_indices(table.select(_ROW_ORDER), [(name, "ascending") for name in _ROW_ORDER])
    ordered = table.column("bucket").take(order).to_numpy()
    path = Path(folder, f"part-{buckets[0]:05d}-{uuid.uuid4().hex}.parquet")
    with PackedWriter(path) as writer:
        for bucket in range(*buckets):
            begin, end = np.searchsorted(ordered, (bucket, bucket + 1)).tolist()
            writer.write(bucket, join_chunks(_taken(table, order[begin:end])))
    _sync(path)
    return path.name, writer.keys, writer.elements


def _taken(table: pa.Table, order: pa.Array) -> Iterator[pa.RecordBatch]:
    for begin in range(0, len(order), _PACK_ROWS_AT_ONCE):
        yield from table.take(order[begin : begin + _PACK_ROWS_AT_ONCE]).combine_chunks().to_batches()


def _raw_files(path: str) -> list[Path]:
    return sorted(file for file in local_path(path).glob("*.parquet") if not file.name.startswith((".", "_")))


def _read(path: Path, date: datetime.date, buckets: tuple[int, int]) -> Iterator[pa.Table]:
    first, end = buckets
    with pq.ParquetFile(path) as file:
        at = file.schema_arrow.get_field_index("bucket")
        groups = []
        for group in range(file.metadata.num_row_groups):
            # Scalars stand before the arrays, so their place in the schema is that of their column.
            statistics = file.metadata.row_group(group).column(at).statistics
            if statistics is None or (statistics.min < end and statistics.max >= first):
                groups.append(group)
        if not groups:
            return
        table = file.read_row_groups(
            groups, columns=[*KEY, *ORDER, "bucket", *SERIES, *EVENTS], use_threads=False
        )
    bucket = table.column("bucket")
    mine = pc.and_(pc.greater_equal(bucket, first), pc.less(bucket, end))
    mine = pc.and_(mine, pc.equal(table.column("date"), pa.scalar(date, pa.date32())))
    table = table.filter(mine)
    if len(table):
        yield table
