"""Table files that workers write, one per partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import RefusedError
from pipeline.storage.files import end_of, parquet_writer
from pipeline.storage.foreign import Effect
from pipeline.storage.tables import DataFile, Snapshot, Table, TakenOver, file_name

_OPEN_AT_ONCE: Final = 8
"""Files open at once. A file of usage may have lines of very many days; then the one unused longest is closed."""


class PartitionedFiles:
    """The files that one task is writing."""

    def __init__(
        self, folder: str, version: int, partition_by: Sequence[str], schema: pa.Schema, **how: Any
    ) -> None:
        """Writes nothing yet.

        Args:
            folder: the table's folder.
            version: the version that will add the files; see `pipeline.storage.tables`.
            partition_by: columns whose values are the same in all rows of a file.
            schema: the schema of the files.
            how: options of Arrow's writer.
        """
        self._folder = folder
        self._version = version
        self._partition_by = partition_by
        self._schema = schema
        self._how = how
        self._open: dict[tuple[str | None, ...], tuple[str, pq.ParquetWriter, int]] = {}
        self._done: list[DataFile] = []

    def write(self, partition: tuple[str | None, ...], rows: pa.Table, rows_per_group: int) -> None:
        """Adds rows of a partition.

        Args:
            partition: a value for each of `partition_by`.
            rows: with the columns of the schema.
            rows_per_group: rows in a row group.
        """
        # Removed and inserted again, so that the first entry is the one unused longest.
        known = partition in self._open
        path, writer, count = self._open.pop(partition) if known else self._begin(partition)
        writer.write_table(rows, row_group_size=max(1, rows_per_group))
        self._open[partition] = path, writer, count + len(rows)
        if len(self._open) > _OPEN_AT_ONCE:
            self._end(next(iter(self._open)))

    def end(self) -> list[DataFile]:
        """Closes all files and flushes them to the disk."""
        for partition in list(self._open):
            self._end(partition)
        return self._done

    def _begin(self, partition: tuple[str | None, ...]) -> tuple[str, pq.ParquetWriter, int]:
        pairs = zip(self._partition_by, partition, strict=True)
        folders = "/".join(f"{name}={'none' if value is None else value}" for name, value in pairs)
        path = f"{folders}/{file_name(self._version)}"
        return path, parquet_writer(f"{self._folder}/{path}", self._schema, **self._how), 0

    def _end(self, partition: tuple[str | None, ...]) -> None:
        path, writer, count = self._open.pop(partition)
        writer.close()
        values = dict(zip(self._partition_by, partition, strict=True))
        self._done.append(DataFile(path, values, count, end_of(f"{self._folder}/{path}"), 0))


def take_over_rows(table: Table, found: Snapshot) -> TakenOver:
    """See `tables.TakeOver`. For tables whose rows have no order, and whose state does not count rows.

    Raises:
        RefusedError: it is not known what other writers have done.
    """
    assert found.foreign is not None
    if any(each.effect is Effect.UNKNOWN for each in found.foreign.commits):
        raise RefusedError(
            f"{table.folder}: its log does not reach back to the pipeline's last commit, so what another writer has "
            "done since is not known. Delete the folder, and let `sluice-pipeline compact` make it again"
        )
    files = PartitionedFiles(
        table.folder, found.version + 1, table.partition_by, table.schema, compression="zstd"
    )
    for file in found.files:
        if file.foreign:
            partition = tuple(file.partition[name] for name in table.partition_by)
            for batch in table.rows_of(file):
                files.write(partition, pa.Table.from_batches([batch]), batch.num_rows)
    return TakenOver(files.end(), found.state, notes_of(found))


def check_counts(
    table: Table, found: Snapshot, date: str, *, before: tuple[int, int], now: tuple[int, int]
) -> None:
    """Checks that other writers have at most deleted rows, as the log says.

    Args:
        table: the table.
        found: the version with the other writers' commits.
        date: the day.
        before: the two counts of this day in the state.
        now: the same counts in the files.

    Raises:
        RefusedError: there are more rows, or fewer although none were deleted.
    """
    deleted = bool(found.foreign and found.foreign.deletions)
    if not all(less == more or (deleted and less < more) for less, more in zip(now, before, strict=True)):
        raise RefusedError(
            f"{table.folder}: files of {date} that another writer has written hold {now[0]} and {now[1]} rows, where "
            f"{before[0]} and {before[1]} are known: restore the version of the pipeline's last commit, which is "
            f"{found.foreign.since if found.foreign else -1} (deltalake's DeltaTable.restore)"
        )


def notes_of(found: Snapshot, gone: str = "") -> list[str]:
    """Notes for the operator about rows that another writer has deleted.

    Args:
        found: the version with the deletions.
        gone: the missing rows as text, if they are known.
    """
    deletions = found.foreign.deletions if found.foreign else ()
    if not deletions:
        return []
    told = "; ".join(map(str, deletions))
    return [
        f"another writer has deleted rows ({told}){gone and f': {gone}'}. This table counts them as erased, the "
        "others do not. Run `sluice-pipeline erase` for the same client: it erases all tables, replaced files and "
        "the log too"
    ]
