"""The small files beside the tables, and what must happen to folders at once: here or where Hadoop writes.

Tables are Spark's to read and write. Offset indexes, manifests and the publishing of a batch or a day need whole
small files, and folders that count from one moment on; paths without a scheme (or `file:`) are the operating
system's, others go through the JVM's Hadoop client. Object stores copy where file systems rename, one file after
the other: so a folder counts once its manifest is there, which comes last.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from pipeline.errors import JobError

MANIFEST: Final = "_manifest.json"
"""In each published folder: readers leave out those without."""

_REPLACING: Final = frozenset({"file", "hdfs", "viewfs", "webhdfs", "swebhdfs"})
"""Schemes of file systems whose renames replace at once, and on which a file is seen while it is being written."""


class Store(Protocol):
    """What both kinds of storage can do. Paths are whole paths, as Spark gets them."""

    def read(self, path: str) -> bytes | None:
        """A file, None when there is none."""

    def write(self, path: str, content: bytes) -> None:
        """Puts a whole file in place at once, also over an older one."""

    def names(self, path: str) -> list[str]:
        """Names in a folder, sorted; none for a folder that is not there."""

    def move(self, path: str, to: str) -> None:
        """Moves a folder to a name that is free: killed at any moment, it is there whole or without `MANIFEST`."""

    def delete(self, path: str) -> None:
        """Removes a file or folder with all that is in it, if it is there."""


class LocalStore:
    """The file system of this machine, or one mounted by all of them."""

    def read(self, path: str) -> bytes | None:
        """See `Store`."""
        try:
            return local_path(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, path: str, content: bytes) -> None:
        """See `Store`."""
        target = local_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(target)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)

    def names(self, path: str) -> list[str]:
        """See `Store`."""
        try:
            return sorted(os.listdir(local_path(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def move(self, path: str, to: str) -> None:
        """See `Store`; all at once."""
        local_path(to).parent.mkdir(parents=True, exist_ok=True)
        local_path(path).rename(local_path(to))
        _sync_folder(local_path(to).parent)

    def delete(self, path: str) -> None:
        """See `Store`."""
        target = local_path(path)
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)


class HadoopStore:
    """A file system of Hadoop's client: HDFS, object stores with their connectors."""

    def __init__(self, spark: Any) -> None:
        """Args: spark: the session whose JVM and Hadoop settings are used."""
        self._jvm = spark._jvm
        self._gateway = spark.sparkContext._gateway
        self._settings = spark._jsc.hadoopConfiguration()

    def read(self, path: str) -> bytes | None:
        """See `Store`."""
        files, target = self._at(path)
        if not files.exists(target):
            return None
        stream = files.open(target)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, path: str, content: bytes) -> None:
        """See `Store`."""
        files, target = self._at(path)
        if files.getScheme() not in _REPLACING:
            self._create(files, target, content)  # an object is there once it is whole
            return
        hadoop = self._jvm.org.apache.hadoop.fs
        partial = hadoop.Path(f"{target.getParent()}/.{target.getName()}.{uuid.uuid4().hex}")
        self._create(files, partial, content)
        options = self._gateway.new_array(hadoop.Options.Rename, 1)
        options[0] = hadoop.Options.Rename.OVERWRITE
        hadoop.FileContext.getFileContext(files.getUri(), self._settings).rename(partial, target, options)

    @staticmethod
    def _create(files: Any, target: Any, content: bytes) -> None:
        stream = files.create(target, True)
        # Not closed where this fails: an object store would take the part for the whole.
        stream.write(bytearray(content))
        stream.close()

    def names(self, path: str) -> list[str]:
        """See `Store`."""
        files, target = self._at(path)
        if not files.exists(target):
            return []
        return sorted(status.getPath().getName() for status in files.listStatus(target))

    def move(self, path: str, to: str) -> None:
        """See `Store`; file by file."""
        files, target = self._at(to)
        if files.exists(target):
            raise JobError(f"{to} is there already: {path} was not moved")
        source = self._at(path)[1]
        found = files.listFiles(source, True)
        moves = []
        while found.hasNext():
            file = found.next().getPath()
            relative = file.toUri().getPath().removeprefix(source.toUri().getPath() + "/")
            moves.append((relative == MANIFEST, relative, file))
        for _, relative, file in sorted(moves, key=lambda move: move[:2]):
            moved = self._jvm.org.apache.hadoop.fs.Path(target, relative)
            files.mkdirs(moved.getParent())
            if not files.rename(file, moved):
                raise JobError(f"{file.toString()} could not be moved to {moved.toString()}")
        files.delete(source, True)

    def delete(self, path: str) -> None:
        """See `Store`."""
        files, target = self._at(path)
        files.delete(target, True)

    def _at(self, path: str) -> tuple[Any, Any]:
        target = self._jvm.org.apache.hadoop.fs.Path(path)
        return target.getFileSystem(self._settings), target


def is_local(path: str) -> bool:
    """Whether the operating system knows this path."""
    return path.startswith("file:") or "://" not in path


def local_result(given: Path | str | None, option: str, path: str) -> Path:
    """Where a job writes what is for people, which is always on this machine.

    Args:
        given: what `option` said.
        option: its name.
        path: where else.

    Raises:
        JobError: nothing was said, and the other path is not on this machine.
    """
    if given is None and not is_local(path):
        raise JobError(f"{path} is not on this machine: say with {option} where to write")
    return local_path(path) if given is None else Path(given)


def store_of(path: str, spark: Any = None) -> Store:
    """The storage that a path is on.

    Args:
        path: the pipeline's folder.
        spark: a session, needed for paths that are not on this machine.

    Raises:
        JobError: the path is not on this machine and there is no session.
    """
    if is_local(path):
        return LocalStore()
    if spark is None:
        raise JobError(f"{path} is not on this machine, and this job does not start Spark")
    return HadoopStore(spark)


@contextmanager
def held(path: str) -> Iterator[None]:
    """Holds a lock file as long as the process lives or the block lasts; does nothing where there are no locks.

    Raises:
        JobError: another process holds it.
    """
    if not is_local(path):
        yield
        return
    target = local_path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise JobError(f"{path} is held by another process that writes here: wait for its end") from exc
        yield


def local_path(path: str) -> Path:
    """The path as the operating system writes it; for paths that are local."""
    return Path(path.removeprefix("file://").removeprefix("file:"))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
