"""Delta tables with a state: rows in Parquet files, and a small document beside them, changed in one commit.

A table is a folder of Parquet files and a log that says which of them count (Delta Lake's protocol, by delta-rs): a
commit is one new file of the log, made only if nobody has made it. So whatever is killed, a commit is there or
not, on every storage that can make a file only where there is none: file systems, S3 and its kin, HDFS. Other engines
read the tables as they are.

The state is a row of the table, in the column `state` of a file without a partition, and each commit replaces it:
what must agree with the rows to the last one (which lines have been read, what is known of a day) can't fall behind.

Files are named by the version that is to make them part of the table. An attempt that loses against another writer,
or is killed, leaves files of a version that came without them: `sweep` knows these without a clock and without a
lock. What a commit removes stays in its place until then, so that jobs that read it meanwhile can go on.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
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

STATE: Final = "state"
_OURS: Final = re.compile(r"(?:.*/)?(\d{20})-[0-9a-f]{32}\.parquet")
_STATES_KEPT: Final = 20
"""Older ones are deleted with each commit: a reader that has just loaded the table still finds its own."""
_TRIES: Final = 3
_UNFIT_HERE: Final = "%\\"
_UNFIT_ELSEWHERE: Final = "%\\?#"


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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version of a table, as it stays whatever is committed later."""

    version: int
    """-1: the table is not there."""
    files: tuple[DataFile, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    """Empty before the first commit."""
    state_file: DataFile | None = None
    handle: Any = field(default=None, repr=False, compare=False)
    """delta-rs's, at this version."""

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


def file_name(version: int) -> str:
    """A new name for a file that is to become part of a table with this version."""
    return f"{version:020d}-{uuid.uuid4().hex}.parquet"


class Table:
    """One table of the pipeline's folder. Holds nothing open."""

    def __init__(self, folder: str, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Names a table, which need not be there.

        Args:
            folder: where it is.
            schema: of its files, without `state`. Files may lack some columns.
            partition_by: dates or text, which files may lack too.

        Raises:
            ArgumentError: a folder of such a name can't hold a table.
        """
        # delta-rs opens another one for such a name.
        unfit = sorted(set(_UNFIT_HERE if is_local(folder) else _UNFIT_ELSEWHERE) & set(folder))
        if unfit:
            raise ArgumentError(f"{folder}: a folder with {' '.join(unfit)} in its name can't hold tables")
        self.folder = folder
        self._partition_by = list(partition_by)
        named = [*(name for name in partition_by if name not in schema.names), STATE]
        self._schema = pa.schema([*schema, *(pa.field(name, pa.string()) for name in named)])

    def path(self, file: DataFile) -> str:
        """Where a file is."""
        return f"{self.folder}/{file.path}"

    def paths(self, files: Iterable[DataFile]) -> list[str]:
        """Where files are, as a worker opens them."""
        return [self.path(file) for file in files]

    def read(self) -> Snapshot:
        """The newest version.

        Raises:
            JobError: its log can't be read.
            RefusedError: another writer has rewritten files.
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
            state_file = next((file for file in files if file.path.startswith(f"{STATE}/")), None)
            if files and (state_file is None or not all(_OURS.fullmatch(file.path) for file in files)):
                raise RefusedError(
                    f"{self.folder}: another writer has rewritten files by version {handle.version()}, which "
                    "takes their order or the state: restore an earlier version (deltalake's DeltaTable.restore)"
                )
            try:
                state = {} if state_file is None else self._state(state_file)
            except FileNotFoundError as exc:
                # So many commits came meanwhile that it was deleted.
                if not left:
                    raise JobError(f"{self.folder}: the state of version {handle.version()} is gone") from exc
                continue
            rest = tuple(file for file in files if file is not state_file)
            return Snapshot(handle.version(), rest, state, state_file, handle)
        raise AssertionError("unreachable")

    def prepared(self) -> Snapshot:
        """The newest version, to write upon: the table is made where it is missing, and gets columns that it lacks.

        Raises:
            JobError: it can't be made.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        found = self.read()
        try:
            if found.version < 0:
                if is_local(self.folder):
                    local_path(self.folder).mkdir(parents=True, exist_ok=True)
                DeltaTable.create(self._uri, self._schema, mode="ignore", partition_by=self._partition_by)
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
                partition_by=self._partition_by,
                # Not made again by delta-rs upon a version that nobody has looked at.
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
        kept = {file.path for file in (*newest.files, *([newest.state_file] if newest.state_file else []))}
        return self._delete("", newest.version, kept)

    @property
    def _uri(self) -> str:
        return local_path(self.folder).absolute().as_uri() if is_local(self.folder) else self.folder

    def _files(self, handle: Any) -> Iterable[DataFile]:
        found = pa.table(handle.get_add_actions(flatten=True)).to_pylist()
        for each in found:
            partition = {name: each[f"partition.{name}"] for name in self._partition_by}
            yield DataFile(
                each["path"],
                {name: None if value is None else str(value) for name, value in partition.items()},
                each["num_records"] or 0,
                each["size_bytes"],
                each["modification_time"],
            )

    def _state(self, file: DataFile) -> Any:
        with parquet_reader(self.path(file)) as reader:
            return json.loads(reader.read(columns=[STATE]).column(STATE)[0].as_py())

    def _write_state(self, before: Snapshot, state: Mapping[str, Any]) -> DataFile:
        path = self.new_path(before, STATE)
        rows = pa.table({STATE: pa.array([json.dumps(state, separators=(",", ":"))], pa.string())})
        with parquet_writer(f"{self.folder}/{path}", rows.schema, compression="zstd") as writer:
            writer.write_table(rows)
        size = end_of(f"{self.folder}/{path}")
        return DataFile(path, dict.fromkeys(self._partition_by), 1, size)

    def _sync_folders(self, added: Iterable[DataFile]) -> None:
        if is_local(self.folder):
            root = local_path(self.folder)
            for folder in {root, *(root / above for file in added for above in Path(file.path).parents)}:
                sync(folder)

    def _sync_log(self, version: int) -> None:
        """Puts a commit on the disk, which delta-rs leaves to the operating system."""
        if is_local(self.folder):
            log = local_path(self.folder) / "_delta_log"
            sync(log / f"{version:020d}.json")
            sync(log)

    def _delete(self, below: str, version: int, kept: Iterable[str]) -> int:
        """Deletes files of versions up to this one; how many bytes."""
        kept = set(kept)
        files = files_below(self.folder)
        deleted = 0
        for info in files.get_file_info(fs.FileSelector(below, allow_not_found=True, recursive=True)):
            named = _OURS.fullmatch(info.path)
            if named and int(named[1]) <= version and info.path not in kept and info.type == fs.FileType.File:
                with suppress(FileNotFoundError):  # by another job that sweeps
                    files.delete_file(info.path)
                    deleted += int(info.size)
        return deleted


def _first_line(exc: BaseException) -> str:
    return str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
