"""Merges small raw files as they arrive, so that a day has few files even if `ingest` commits often.

`TOGETHER` files of about the same size are merged into one of the next size. So a day has fewer than `TOGETHER` files
of each size, and a row is rewritten once for each size, at most three times. Neither rows nor the state change.
Replaced files stay on the disk until `Table.sweep`, as after every commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import pyarrow as pa

from pipeline.spark.runner import Runner
from pipeline.storage.bucket_groups import groups_of
from pipeline.storage.layout import FINE_BUCKETS
from pipeline.storage.raw_table import DayReader, raw_files
from pipeline.storage.schemas import RAW_SCHEMA
from pipeline.storage.tables import Conflict, DataFile, Snapshot, Table

TOGETHER: Final = 16
SMALLEST_BYTES: Final = 1_000_000
"""Files up to this size are of the first size. Each further size is `TOGETHER` times as large."""
_SIZES: Final = 3
"""The number of sizes that are merged: files of up to 256 MB."""
_BYTES_AT_ONCE: Final = 16_000_000
"""Bytes on the disk of files whose rows are in memory at once: 100 to 200 MB there."""


def merge_small(runner: Runner, table: Table, before: Snapshot) -> Snapshot:
    """Merges the groups of `due`. Returns the version after it.

    Args:
        runner: processes the groups of files.
        table: the raw table.
        before: its newest version. If another job commits meanwhile, this call merges nothing.

    Raises:
        JobError: a file can't be read or written.
    """
    groups = due(before)
    if not groups:
        return before
    folder, version = table.folder, before.version + 1

    def merged(group: list[DataFile]) -> Iterator[DataFile]:
        return _merge(table.paths(group), group, folder, version)

    add = list(runner.run(merged, groups))
    try:
        return table.commit(
            before, add=add, remove=[file for group in groups for file in group], state=before.state
        )
    except Conflict:
        return before


def due(found: Snapshot) -> list[list[DataFile]]:
    """The groups of files that are to be merged, each of one day and size."""
    by_size: dict[tuple[str, int], list[DataFile]] = {}
    for file in found.files:
        date, size = file.partition["date"], _size(file)
        # Lines that could not be read stay in their files, because they are deleted by the age of their file.
        if date is not None and size < _SIZES and not file.foreign:
            by_size.setdefault((date, size), []).append(file)
    groups = []
    for _, files in sorted(by_size.items()):
        full = len(files) // TOGETHER * TOGETHER
        groups += [files[at : at + TOGETHER] for at in range(0, full, TOGETHER)]
    return groups


def _size(file: DataFile) -> int:
    size, most = 0, SMALLEST_BYTES
    while file.bytes > most:
        size, most = size + 1, most * TOGETHER
    return size


def _merge(paths: list[str], group: list[DataFile], folder: str, version: int) -> Iterator[DataFile]:
    """Merges several files into one, with some buckets in memory at a time."""
    files = raw_files(folder, version)
    partition = (group[0].partition["date"],)
    names = RAW_SCHEMA.names
    reader = DayReader(groups_of(paths), range(-1, FINE_BUCKETS), columns=names)
    steps = min(FINE_BUCKETS, 1 + sum(file.bytes for file in group) // _BYTES_AT_ONCE)
    edges = [-1, *(step * FINE_BUCKETS // steps for step in range(steps + 1))]
    for first, end in pairwise(edges):
        if pieces := list(reader.read(first, end)):
            rows = pa.concat_tables(pieces).sort_by("bucket").cast(RAW_SCHEMA)
            files.write(partition, rows, max(_LEAST_GROUP, len(rows) // _MOST_GROUPS + 1))
    yield from files.end()


_LEAST_GROUP: Final = 1_000
_MOST_GROUPS: Final = 32
