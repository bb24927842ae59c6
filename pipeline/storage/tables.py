"""Delta tables with a state: rows in Parquet files and a small document, changed in one commit.

A table is a folder of Parquet files and a log that lists the current files (Delta Lake's protocol, by delta-rs). A
commit creates one new file of the log, and fails if another writer has created that file first. So a commit is either
complete or absent, even if a process is killed. This needs a storage that can create a file only if it does not
exist: file systems, S3 and compatible stores, HDFS. Other engines can read the tables.

The state is one row of the table, in the column `state` of a file without a partition. Each commit replaces it. So
facts that must agree exactly with the rows (which lines have been read, facts about a day) are never out of date.

A file's name contains the version that will add it to the table. An attempt that loses against another writer, or is
killed, leaves files that its version does not list. `sweep` recognizes such files without a clock and without a lock.
Files that a commit removes stay on the disk until `sweep`, so that jobs that are reading them can continue.

Other writers may move rows to other files, and may delete rows. `read` accepts that. `in_order` and `prepared` first
rewrite such files in the form and order that the pipeline's readers need, with a state that fits the rows. If another
writer has added or changed rows, the pipeline refuses the table.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from pipeline.errors import ArgumentError, JobError, RefusedError
from pipeline.storage.files import (
    end_of,
    files_below,
    is_local,
    local_path,
    parquet_reader,
    parquet_writer,
    sync,
)
from pipeline.storage.foreign import STATE, Foreign, Paths, foreign_since

_OURS: Final = re.compile(r"(?:.*/)?(\d{20})-[0-9a-f]{32}\.parquet")
_STATES_KEPT: Final = 20
"""Each commit deletes older state files. A reader that has just loaded the table still finds the state it needs."""
_LOG: Final = "_delta_log"
_LOGGED: Final = re.compile(r"(\d{20})\..*")
_LOG_KEPT: Final = "delta.logRetentionDuration"
_TRIES: Final = 3
_UNFIT_HERE: Final = "%\\"
_UNFIT_ELSEWHERE: Final = "%\\?#"
_DELETION_VECTORS: Final = "deletionVectors"
_ROWS_AT_ONCE: Final = 10_000


class Conflict(JobError):
    """Another job has changed the table since it was read. Nothing was committed."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table."""

    path: str
    """Relative to the table's folder."""
    partition: Mapping[str, str | None]
    rows: int
    bytes: int
    written_ms: int = field(default=0, compare=False)
    """When the commit added it to the table, ms since the epoch, by the clock of the job that committed."""

    @property
    def foreign(self) -> bool:
        """Whether another writer wrote it."""
        return file_version(self.path) < 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a table. Later commits do not change it."""

    version: int
    """-1: the table does not exist."""
    files: tuple[DataFile, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    """Empty before the first commit."""
    state_file: DataFile | None = None
    """Also None if another writer has moved the state to a file with other rows."""
    handle: Any = field(default=None, repr=False, compare=False)
    """The `DeltaTable` of delta-rs at this version."""
    foreign: Foreign | None = None
    """What other writers have done since the state was written. None: no commit that changes files."""

    @property
    def identifier(self) -> str:
        """The table's id, which changes if the table is deleted and created again. Empty if there is no table."""
        return "" if self.handle is None else str(self.handle.metadata().id)

    def of(self, **partition: str | None) -> list[DataFile]:
        """The files of some partitions."""
        return [
            file
            for file in self.files
            if all(file.partition[name] == value for name, value in partition.items())
        ]


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Replacement of the files that another writer has written.

    Attributes:
        add: new files with the same rows.
        state: the state that fits these rows.
        notes: what happened to the rows, as text for the operator.
    """

    add: Sequence[DataFile]
    state: Mapping[str, Any]
    notes: Sequence[str] = ()


TakeOver: TypeAlias = Callable[["Table", Snapshot], TakenOver]
"""Rewrites the foreign files of a version.

Raises `RefusedError` if the rows are not those that the log describes."""


def file_name(version: int) -> str:
    """A new name for a file that the commit of this version will add."""
    return f"{version:020d}-{uuid.uuid4().hex}.parquet"


def file_version(path: str) -> int:
    """The version in the name of a file of the pipeline; -1 for a file of another writer."""
    named = _OURS.fullmatch(path)
    return int(named[1]) if named else -1


class Table:
    """One table of the pipeline's folder. Keeps nothing open."""

    def __init__(
        self, folder: str, schema: pa.Schema, partition_by: Sequence[str], take_over: TakeOver
    ) -> None:
        """Refers to a table, which need not exist.

        Args:
            folder: the table's folder.
            schema: the columns of its files, without `state`. Files may lack some columns.
            partition_by: columns of dates or text. Files may lack these too.
            take_over: rewrites files of other writers.

        Raises:
            ArgumentError: a folder of such a name can't hold a table.
        """
        # With such a name delta-rs would open a different folder.
        # delta-rs opens another one for such a name.
        unfit = sorted(set(_UNFIT_HERE if is_local(folder) else _UNFIT_ELSEWHERE) & set(folder))
        if unfit:
            raise ArgumentError(f"{folder}: a folder with {' '.join(unfit)} in its name can't hold tables")
        self.folder = folder
        self.schema = schema
        self.partition_by = list(partition_by)
        self._take_over = take_over
        named = [*(name for name in partition_by if name not in schema.names), STATE]
        self._schema = pa.schema([*schema, *(pa.field(name, pa.string()) for name in named)])

    def path(self, file: DataFile) -> str:
        """Path of a file."""
        return f"{self.folder}/{file.path}"

    def paths(self, files: Iterable[DataFile]) -> list[str]:
        """Paths of files, as a worker opens them."""
        return [self.path(file) for file in files]

    def read(self) -> Snapshot:
        """Reads the newest version. It may have files of another writer; then its state is older than its rows.

        Raises:
            JobError: its log can't be read.
            RefusedError: another writer has added or changed rows.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        for left in reversed(range(_TRIES)):
            try:
                handle = DeltaTable(self._uri)
            except TableNotFoundError:
                return Snapshot(-1)
            except (DeltaError, OSError) as exc:
                raise JobError(f"{self.folder}: {_first_line(exc)}") from exc
            files = tuple(self._files(handle))
            version = handle.version()
            state_file = next((file for file in files if file.path.startswith(f"{STATE}/")), None)
            foreign = self._foreign(handle, files, state_file)
            try:
                state = self._state(files, state_file, version) if files else {}
            except FileNotFoundError as exc:
                # Enough other commits were made meanwhile that one of them deleted this state file.
                if not left:
                    raise JobError(f"{self.folder}: the state of version {version} is gone") from exc
                continue
            rest = tuple(file for file in files if file is not state_file)
            return Snapshot(version, rest, state, state_file, handle, foreign)
        raise AssertionError("unreachable")

    def in_order(self) -> Snapshot:
        """Reads the newest version, after rewriting files of other writers in the pipeline's form.

        Raises:
            JobError: as `read`, or the files can't be written.
        """
        for left in reversed(range(_TRIES)):
            found = self.read()
            if found.foreign is None:
                return found
            try:
                done = self._take_over(self, found)
                gone = [file for file in found.files if file.foreign]
                after = self.commit(found, add=done.add, remove=gone, state=done.state)
            except Conflict:
                if not left:
                    raise
                continue
            for note in done.notes:
                print(f"{self.folder}: {note}", file=sys.stderr)
            return after
        raise AssertionError("unreachable")

    def prepared(self) -> Snapshot:
        """The newest version, ready for a commit: creates the table if necessary, and adds missing columns.

        Raises:
            JobError: the table can't be created or changed.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        found = self.in_order()
        try:
            if found.version < 0:
                if is_local(self.folder):
                    local_path(self.folder).mkdir(parents=True, exist_ok=True)
                DeltaTable.create(self._uri, self._schema, mode="ignore", partition_by=self.partition_by)
                self._sync_log(0)
                return self.read()
            known = {column.name for column in found.handle.schema().fields}
            missing = [column for column in self._schema if column.name not in known]
            if missing:
                from deltalake import Schema

                found.handle.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields)
                return self.read()
        except (DeltaError, OSError) as exc:
            raise JobError(f"{self.folder}: {_first_line(exc)}") from exc
        return found

    def new_path(self, before: Snapshot, folder: str) -> str:
        """A name for a new file that a commit on top of a version will add.

        Args:
            before: the version.
            folder: relative to the table's folder.
        """
        return f"{folder}/{file_name(before.version + 1)}"

    def commit(
        self,
        before: Snapshot,
        *,
        add: Iterable[DataFile] = (),
        remove: Iterable[DataFile] = (),
        state: Mapping[str, Any],
    ) -> Snapshot:
        """Creates the next version.

        Args:
            before: the previous version, from `prepared`.
            add: new files, already written under names from `new_path(before, ...)`.
            remove: files of `before`.
            state: the new state.

        Returns:
            The new version.

        Raises:
            Conflict: another job has changed the table. The new files have to be written again.
            JobError: the commit can't be written.
        """
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import AddAction, CommitProperties, RemoveAction

        now_ms = int(time.time() * 1_000)
        removed = [*remove, *([before.state_file] if before.state_file else [])]
        try:
            # Written before the commit, so that the commit names only files that exist.
            state_file = self._write_state(before, state)
            added = [*add, state_file]
            self._sync_folders(added)
        except OSError as exc:
            raise self._lost(before, self.read(), exc) from exc
        actions: list[Any] = [
            AddAction(
                file.path,
                file.bytes,
                dict(file.partition),
                now_ms,
                True,
                json.dumps({"numRecords": file.rows}),
            )
            for file in added
        ]
        actions += [RemoveAction(file.path, True, now_ms, None, dict(file.partition)) for file in removed]
        try:
            before.handle.create_write_transaction(
                actions,
                "append",
                before.handle.schema(),
                partition_by=self.partition_by,
                # delta-rs must not retry on top of a version that this job has not read.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except (DeltaError, OSError) as exc:
            after = self.read()
            # The commit may have succeeded although its response was lost.
            if after.state_file != state_file:
                raise self._lost(before, after, exc) from exc
        else:
            after = self.read()
            if after.version == before.version + 1 and after.state_file != state_file:
                raise JobError(
                    f"{self.folder}: this storage lets two make the same file, so it can't hold tables"
                )
        try:
            self._sync_log(before.version + 1)
        except OSError as exc:
            raise JobError(f"{self.folder}: {_first_line(exc)}") from exc
        with suppress(OSError):  # `sweep` deletes the rest later
            self._delete(STATE, before.version - _STATES_KEPT, kept={state_file.path})
        return after

    def _lost(self, before: Snapshot, after: Snapshot, exc: Exception) -> JobError:
        """The error of a failed commit. Its new files may also have been swept after another job's commit."""
        if after.version > before.version:
            return Conflict(f"{self.folder} was changed by another job meanwhile: run this again")
        return JobError(f"{self.folder}: {_first_line(exc)}")

    def sweep(self) -> int:
        """Deletes files that are no longer part of the table, or never were.

        Returns:
            The number of deleted bytes.
        """
        newest = self.read()
        if newest.version < 0:
            return 0
        kept = {file.path for file in (*newest.files, *([newest.state_file] if newest.state_file else []))}
        removed = newest.handle.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True)
        return self._delete("", newest.version, kept, others=removed)

    def old_log(self, days: int) -> int:
        """The number of log files that `trim_log` would delete."""
        newest = self.read()
        return self._old_log(newest, days)[1] if newest.version >= 0 else 0

    def trim_log(self, days: int) -> int:
        """Deletes the log of versions that are more than `days` days old, by this machine's clock.

        The number of days is stored as a property of the table. From then on delta-rs trims the log itself at each
        hundredth commit. Trimmed versions can't be restored, but `sweep` has deleted their files anyway.

        Args:
            days: at least 1.

        Returns:
            The number of log files deleted.

        Raises:
            JobError: the log or a property can't be written.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        before = self.in_order()
        if before.version < 0:
            return 0
        first, old = self._old_log(before, days)
        if not old:
            return 0
        kept = f"interval {days} days"
        try:
            if before.handle.metadata().configuration.get(_LOG_KEPT) != kept:
                before.handle.alter.set_table_properties({_LOG_KEPT: kept})
                # Without this commit the newest version would have no state of its own, as if another writer made it.
                before = self.prepared()
                before = self.commit(before, state=before.state)
            # delta-rs deletes log files that no remaining version needs. Remaining versions start at a checkpoint.
            DeltaTable(self._uri, version=first).create_checkpoint()
            before.handle.create_checkpoint()
            before.handle.cleanup_metadata()
        except (DeltaError, OSError) as exc:
            raise JobError(f"{self.folder}: {_first_line(exc)}") from exc
        return old

    def _old_log(self, newest: Snapshot, days: int) -> tuple[int, int]:
        """The first version of the last `days` days (or the newest), and the number of log files before it."""
        begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)
        infos = files_below(self.folder).get_file_info(fs.FileSelector(_LOG, allow_not_found=True))
        logged = [(int(found[1]), info) for info in infos if (found := _LOGGED.fullmatch(info.base_name))]
        young = [version for version, info in logged if info.mtime >= begin]
        first = min([*young, newest.version])
        return first, sum(version < first for version, _ in logged)

    def rows_of(self, file: DataFile, columns: Iterable[str] = ()) -> Iterator[pa.RecordBatch]:
        """Reads the rows of a file of any writer, without the state.

        Args:
            file: of this table.
            columns: columns of the schema; empty: all.

        Yields:
            Batches with these columns. A column that the file lacks has the partition's value, or null.
        """
        schema = pa.schema([self.schema.field(name) for name in columns or self.schema.names])
        with parquet_reader(self.path(file)) as reader:
            there = reader.schema_arrow.names
            known = [name for name in (*schema.names, STATE) if name in there]
            for batch in reader.iter_batches(_ROWS_AT_ONCE, columns=known):
                arrays = [self._column(batch, column, file.partition) for column in schema]
                rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
                yield rows.filter(pc.is_null(batch.column(STATE))) if STATE in known else rows

    @staticmethod
    def _column(rows: pa.RecordBatch, column: pa.Field, partition: Mapping[str, str | None]) -> pa.Array:
        if column.name in rows.schema.names:
            # Other writers store text as views, which Arrow can't filter.
            return rows.column(column.name).cast(column.type)
        return pa.repeat(pa.scalar(partition.get(column.name)).cast(column.type), rows.num_rows)

    @property
    def _uri(self) -> str:
        return local_path(self.folder).absolute().as_uri() if is_local(self.folder) else self.folder

    def _files(self, handle: Any) -> Iterable[DataFile]:
        found = pa.table(handle.get_add_actions(flatten=True)).to_pylist()
        for each in found:
            partition = {name: each[f"partition.{name}"] for name in self.partition_by}
            yield DataFile(
                each["path"],
                {name: None if value is None else str(value) for name, value in partition.items()},
                each["num_records"] or 0,
                each["size_bytes"],
                each["modification_time"],
            )

    def _foreign(self, handle: Any, files: Sequence[DataFile], state_file: DataFile | None) -> Foreign | None:
        """What others have done; None if all rows are in files that the pipeline has written.

        Raises:
            RefusedError: another writer has added or changed rows, or has only marked rows as deleted.
        """
        version = handle.version()
        if state_file is not None and file_version(state_file.path) == version:
            return None
        features = handle.protocol().reader_features or ()
        if _DELETION_VECTORS in features and pa.table(handle.deletion_vectors()).num_rows:
            raise RefusedError(
                f"{self.folder}: another writer has marked rows as deleted in deletion vectors, so they are still in "
                "their files. Write the files without them (Spark: REORG TABLE ... APPLY (PURGE)), and run this again"
            )
        found = foreign_since(self.folder, version, self._paths_at)
        changed = found.changed
        if changed is not None:
            raise RefusedError(
                f"{self.folder}: another writer has added or changed rows ({changed}), which only the pipeline may: "
                f"restore version {changed.version - 1} (deltalake's DeltaTable.restore). What was erased after that "
                "version is back then: erase it again (sluice-pipeline erase)"
            )
        return found if found.commits and files else None

    def _paths_at(self, version: int) -> Paths | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            return frozenset(file.path for file in self._files(DeltaTable(self._uri, version=version)))
        except (DeltaError, OSError):
            return None

    def _state(self, files: Iterable[DataFile], state_file: DataFile | None, version: int) -> Any:
        moved = [file for file in files if file.foreign and not any(file.partition.values())]
        for file in [state_file] if state_file else moved:
            with parquet_reader(self.path(file)) as reader:
                if STATE in reader.schema_arrow.names:
                    for text in reader.read(columns=[STATE]).column(STATE).drop_null().to_pylist():
                        return json.loads(text)
        raise RefusedError(
            f"{self.folder}: by version {version} another writer has deleted the row with the column state, without "
            "which the pipeline does not know what was read: restore the version before (deltalake's "
            "DeltaTable.restore). What was erased after that is back then: erase it again (sluice-pipeline erase)"
        )

    def _write_state(self, before: Snapshot, state: Mapping[str, Any]) -> DataFile:
        path = self.new_path(before, STATE)
        rows = pa.table({STATE: pa.array([json.dumps(state, separators=(",", ":"))], pa.string())})
        with parquet_writer(f"{self.folder}/{path}", rows.schema, compression="zstd") as writer:
            writer.write_table(rows)
        size = end_of(f"{self.folder}/{path}")
        return DataFile(path, dict.fromkeys(self.partition_by), 1, size)

    def _sync_folders(self, added: Iterable[DataFile]) -> None:
        if is_local(self.folder):
            root = local_path(self.folder)
            for folder in {root, *(root / above for file in added for above in Path(file.path).parents)}:
                sync(folder)

    def _sync_log(self, version: int) -> None:
        """Flushes a commit to the disk; delta-rs leaves that to the operating system."""
        if is_local(self.folder):
            log = local_path(self.folder) / _LOG
            sync(log / f"{version:020d}.json")
            sync(log)

    def _delete(self, below: str, version: int, kept: Iterable[str], others: Iterable[str] = ()) -> int:
        """Deletes files of versions up to `version`, and the files `others`. Returns the number of bytes."""
        kept, others = set(kept), set(others)
        files = files_below(self.folder)
        deleted = 0
        for info in files.get_file_info(fs.FileSelector(below, allow_not_found=True, recursive=True)):
            made = file_version(info.path)
            left = made <= version if made >= 0 else info.path in others
            if left and info.path not in kept and info.type == fs.FileType.File:
                with suppress(FileNotFoundError):  # another job that sweeps was faster
                    files.delete_file(info.path)
                    deleted += int(info.size)
        return deleted


def _first_line(exc: BaseException) -> str:
    return str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
