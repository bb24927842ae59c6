"""Delta tables with a state: rows in Parquet files and a small document, changed in one commit.

A table is a folder of Parquet files and a log that says which of them count (Delta Lake's protocol, by delta-rs): a
commit is one new file of the log, made only if no other writer has made it. So whatever is killed, a commit is there
or
not, on every storage that can make a file only where there is none: file systems, S3 and its kin, HDFS. Other engines
read the tables as they are.

The state is a row of the table, in the column `state` of a file without a partition, and each commit replaces it:
what must agree with the rows to the last one (which lines have been read, what is known of a day) can't fall behind.

Files are named by the version that is to make them part of the table. An attempt that loses against another writer,
or is killed, leaves files of a version that came without them: `sweep` knows these without a clock and without a
lock. What a commit removes stays in its place until then, so that jobs that read it meanwhile can continue.

Other writers may move rows to other files, and delete rows. `read` accepts that; `in_order` and `prepared` first
write such files anew, in the form and order that the pipeline's readers need, with a state that fits the rows. Rows
that another writer has added or changed are refused.
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
"""Older ones are deleted with each commit: a reader that has just loaded the table still finds its own."""
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
    """Below the table's folder."""
    partition: Mapping[str, str | None]
    rows: int
    bytes: int
    written_ms: int = field(default=0, compare=False)
    """When it became part of the table, by the clock of the job that did it; since the epoch."""

    @property
    def foreign(self) -> bool:
        """Whether another writer has written it."""
        return file_version(self.path) < 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version of a table, as it stays whatever is committed later."""

    version: int
    """-1: the table is not there."""
    files: tuple[DataFile, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    """Empty before the first commit."""
    state_file: DataFile | None = None
    """None also where another writer has moved the state to a file with other rows."""
    handle: Any = field(default=None, repr=False, compare=False)
    """delta-rs's, at this version."""
    foreign: Foreign | None = None
    """What other writers have done since the state was written; None: nothing that touches files."""

    @property
    def identifier(self) -> str:
        """The table's own: another one where it was deleted and made again. Empty where it is not there."""
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
    """What takes the place of files that another writer has written.

    Attributes:
        add: files with the same rows.
        state: what it is with these rows.
        notes: what became of the rows, for people.
    """

    add: Sequence[DataFile]
    state: Mapping[str, Any]
    notes: Sequence[str] = ()


TakeOver: TypeAlias = Callable[["Table", Snapshot], TakenOver]
"""Writes the foreign files of a version anew.

It raises `RefusedError` where the rows are not what the log says of them."""


def file_name(version: int) -> str:
    """A new name for a file that is to become part of a table with this version."""
    return f"{version:020d}-{uuid.uuid4().hex}.parquet"


def file_version(path: str) -> int:
    """The version that was to make a file of the pipeline part of its table; -1 for a file of another writer."""
    named = _OURS.fullmatch(path)
    return int(named[1]) if named else -1


class Table:
    """One table of the pipeline's folder. Holds nothing open."""

    def __init__(
        self, folder: str, schema: pa.Schema, partition_by: Sequence[str], take_over: TakeOver
    ) -> None:
        """Names a table, which need not be there.

        Args:
            folder: where it is.
            schema: of its files, without `state`. Files may lack some columns.
            partition_by: dates or text, which files may lack too.
            take_over: writes files of other writers anew.

        Raises:
            ArgumentError: a folder of such a name can't hold a table.
        """
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
        """Where a file is."""
        return f"{self.folder}/{file.path}"

    def paths(self, files: Iterable[DataFile]) -> list[str]:
        """Where files are, as a worker opens them."""
        return [self.path(file) for file in files]

    def read(self) -> Snapshot:
        """The newest version. Its files may be of another writer; its state then is of before.

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
                # So many commits came meanwhile that it was deleted.
                if not left:
                    raise JobError(f"{self.folder}: the state of version {version} is gone") from exc
                continue
            rest = tuple(file for file in files if file is not state_file)
            return Snapshot(version, rest, state, state_file, handle, foreign)
        raise AssertionError("unreachable")

    def in_order(self) -> Snapshot:
        """The newest version, with its files as the pipeline writes them; those of others are written anew first.

        Raises:
            JobError: as `read`, or they can't be written.
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
        """The newest version, to write upon: the table is made where it is missing, and gets columns that it lacks.

        Raises:
            JobError: it can't be made.
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
        """A name for a file that is to be committed upon a version.

        Args:
            before: the version.
            folder: below the table's.
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
        """Makes a new version.

        Args:
            before: the version that it is made upon, of `prepared`.
            add: files that were written, under names of `new_path` with `before`.
            remove: files of `before`.
            state: what it is now.

        Returns:
            The new version.

        Raises:
            Conflict: the table is another by now. Files that were to be added have to be written anew.
            JobError: it can't be written.
        """
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import AddAction, CommitProperties, RemoveAction

        now_ms = int(time.time() * 1_000)
        removed = [*remove, *([before.state_file] if before.state_file else [])]
        try:
            # Written first, so that nothing is named that is not there.
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
                # Not made again by delta-rs upon a version that no one has looked at.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except (DeltaError, OSError) as exc:
            after = self.read()
            # A commit whose answer was lost is there all the same.
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
        with suppress(OSError):  # what is left is swept later
            self._delete(STATE, before.version - _STATES_KEPT, kept={state_file.path})
        return after

    def _lost(self, before: Snapshot, after: Snapshot, exc: Exception) -> JobError:
        """What a failed commit is: files that it was to add may also have been swept after another's."""
        if after.version > before.version:
            return Conflict(f"{self.folder} was changed by another job meanwhile: run this again")
        return JobError(f"{self.folder}: {_first_line(exc)}")

    def sweep(self) -> int:
        """Deletes files that are not part of the table any more, or were never made part of it.

        Returns:
            How many bytes.
        """
        newest = self.read()
        if newest.version < 0:
            return 0
        kept = {file.path for file in (*newest.files, *([newest.state_file] if newest.state_file else []))}
        removed = newest.handle.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True)
        return self._delete("", newest.version, kept, others=removed)

    def old_log(self, days: int) -> int:
        """How many files of the log `trim_log` would delete."""
        newest = self.read()
        return self._old_log(newest, days)[1] if newest.version >= 0 else 0

    def trim_log(self, days: int) -> int:
        """Deletes the log of versions from more than so many days ago, by this machine's clock.

        The time is noted in the table, so delta-rs does the same from then on with each hundredth commit. Older
        versions can't be restored then; `sweep` has deleted their files anyway.

        Args:
            days: at least 1.

        Returns:
            How many files.

        Raises:
            JobError: it can't be written.
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
                # Else no version that is left might have a state of its own: it would look like another writer's.
                before = self.prepared()
                before = self.commit(before, state=before.state)
            # delta-rs deletes what no version needs that is left: those that follow upon a checkpoint.
            DeltaTable(self._uri, version=first).create_checkpoint()
            before.handle.create_checkpoint()
            before.handle.cleanup_metadata()
        except (DeltaError, OSError) as exc:
            raise JobError(f"{self.folder}: {_first_line(exc)}") from exc
        return old

    def _old_log(self, newest: Snapshot, days: int) -> tuple[int, int]:
        """The first version that was written since then, or the newest; and how many files are of earlier ones."""
        begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)
        infos = files_below(self.folder).get_file_info(fs.FileSelector(_LOG, allow_not_found=True))
        logged = [(int(found[1]), info) for info in infos if (found := _LOGGED.fullmatch(info.base_name))]
        young = [version for version, info in logged if info.mtime >= begin]
        first = min([*young, newest.version])
        return first, sum(version < first for version, _ in logged)

    def rows_of(self, file: DataFile, columns: Iterable[str] = ()) -> Iterator[pa.RecordBatch]:
        """The rows of a file of any writer, without the state.

        Args:
            file: of this table.
            columns: of the schema; else all.

        Yields:
            Batches with these columns; where the file lacks one it is null, or what the partition says.
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
            # Others write text as views, which Arrow can't filter.
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
        """What others have done; None where the rows are in the files that the pipeline has written.

        Raises:
            RefusedError: rows were added or changed, or there are rows that count as deleted and are in their files.
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
        """Puts a commit on the disk, which delta-rs leaves to the operating system."""
        if is_local(self.folder):
            log = local_path(self.folder) / _LOG
            sync(log / f"{version:020d}.json")
            sync(log)

    def _delete(self, below: str, version: int, kept: Iterable[str], others: Iterable[str] = ()) -> int:
        """Deletes files of versions up to this one, and some of other writers; how many bytes."""
        kept, others = set(kept), set(others)
        files = files_below(self.folder)
        deleted = 0
        for info in files.get_file_info(fs.FileSelector(below, allow_not_found=True, recursive=True)):
            made = file_version(info.path)
            left = made <= version if made >= 0 else info.path in others
            if left and info.path not in kept and info.type == fs.FileType.File:
                with suppress(FileNotFoundError):  # by another job that sweeps
                    files.delete_file(info.path)
                    deleted += int(info.size)
        return deleted


def _first_line(exc: BaseException) -> str:
    return str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
