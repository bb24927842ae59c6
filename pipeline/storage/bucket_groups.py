"""Finds the row groups of files that may have rows of some buckets, by the statistics in the Parquet files.

The log of a table does not have them: delta-rs would take statistics of some columns for statistics of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.spark.runner import InProcess, Runner
from pipeline.storage.files import parquet_reader
from pipeline.storage.layout import BUCKET, FINE_BUCKETS

_AT_ONCE: Final = 200


@dataclass(frozen=True, slots=True)
class FileGroups:
    """A file, and the least and the greatest bucket in each of its row groups."""

    path: str
    spans: tuple[tuple[int, int], ...]

    def groups(self, first: int, end: int) -> list[int]:
        """The row groups that may have rows of these buckets."""
        return [group for group, (least, most) in enumerate(self.spans) if least < end and most >= first]

    @property
    def one_group(self) -> bool:
        """Whether all rows of clients are in a single row group."""
        return len(self.groups(0, FINE_BUCKETS)) == 1


def look(runner: Runner, paths: Sequence[str]) -> list[FileGroups]:
    """Opens each file once, many files at a time.

    Args:
        runner: opens the files.
        paths: of files in which the column of buckets stands before the arrays.
    """
    chunks = [paths[at : at + _AT_ONCE] for at in range(0, len(paths), _AT_ONCE)]
    return list((runner if len(chunks) > 1 else InProcess()).run(groups_of, chunks))


def groups_of(paths: Iterable[str]) -> Iterator[FileGroups]:
    """As `look`, in this process."""
    for path in paths:
        with parquet_reader(path) as file:
            at = file.schema_arrow.get_field_index(BUCKET)
            groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
            statistics = [group.column(at).statistics for group in groups]
        yield FileGroups(
            path,
            tuple(
                (-1, FINE_BUCKETS) if each is None or not each.has_min_max else (each.min, each.max)
                for each in statistics
            ),
        )
