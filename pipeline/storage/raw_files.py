"""Raw rows as files that workers write and read themselves, with Arrow: in folders that all machines have mounted.

Handing arrays to the JVM for writing, or for a shuffle, costs more than making them. So a worker writes raw rows
where they are, and Spark gets only what the driver must know: the heads of the lines and the names of the files.
What a task wrote counts when the driver has its answer; files of tasks that were given up are deleted. Files are
ordered by bucket (`layout.bucket_of`), with row groups to find one by, so compacting a day needs no shuffle either:
each task reads its own buckets of every file.
"""

from __future__ import annotations

import datetime
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.storage.joining import ORDER
from pipeline.storage.layout import BUCKETS, EVENTS, KEY, SERIES
from pipeline.storage.schemas import RAW_SCHEMA
from pipeline.storage.store import local_path

ROWS_PER_GROUP: Final = 60_000
"""Raw rows (not seconds) that are ordered together."""
_LEAST_ROWS_PER_GROUP: Final = 1_000
_REPEATED: Final = [field.name for field in RAW_SCHEMA if not pa.types.is_list(field.type)]


def write_raw_file(batches: Iterable[pa.RecordBatch], folder: str) -> Iterator[pa.RecordBatch]:
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
        synced(Path(folder, name))
        columns = {"kind": pa.array(["file"]), "source": pa.array([name])}
        yield pa.RecordBatch.from_arrays(
            [columns.get(field.name, pa.nulls(1, field.type)) for field in RAW_SCHEMA], schema=RAW_SCHEMA
        )


def _open(path: Path) -> pq.ParquetWriter:
    # A dictionary of numbers that are nearly all different makes a file larger, and 1.6 times as slow to write.
    return pq.ParquetWriter(
        path,
        RAW_SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=_REPEATED,
        write_statistics=["bucket"],
    )


def synced(path: Path) -> None:
    """Puts a file on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _write(writer: pq.ParquetWriter, batches: list[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(batches).combine_chunks().sort_by("bucket")
    groups = min(BUCKETS, len(table) // _LEAST_ROWS_PER_GROUP + 1)
    writer.write_table(table, row_group_size=len(table) // groups + 1)


def _for_the_driver(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    heads = batch.filter(pc.is_in(batch.column("kind"), pa.array(["lines", "torn"])))
    if heads.num_rows:
        text = RAW_SCHEMA.get_field_index("text")
        yield heads.set_column(text, RAW_SCHEMA.field(text), pa.nulls(heads.num_rows, pa.binary()))


def raw_files(path: str) -> list[Path]:
    """The files of a batch's folder."""
    return sorted(file for file in local_path(path).glob("*.parquet") if not file.name.startswith((".", "_")))


def read_buckets(path: Path, date: datetime.date, buckets: tuple[int, int]) -> Iterator[pa.Table]:
    """A day's rows of some buckets, out of one file; nothing if there are none.

    Args:
        path: of the file.
        date: the day.
        buckets: from this one on, and up to but without that.
    """
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
        columns = [*KEY, *ORDER, "bucket", *SERIES, *EVENTS]
        table = file.read_row_groups(groups, columns=columns, use_threads=False)
    for name in columns:
        # A column that an older release did not have.
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(len(table), RAW_SCHEMA.field(name).type))
    table = table.select(columns)
    bucket = table.column("bucket")
    mine = pc.and_(pc.greater_equal(bucket, first), pc.less(bucket, end))
    mine = pc.and_(mine, pc.equal(table.column("date"), pa.scalar(date, pa.date32())))
    table = table.filter(mine)
    if len(table):
        yield table
