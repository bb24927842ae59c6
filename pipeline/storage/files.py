"""Files below the pipeline's folder, local or remote.

A path without a scheme (or with `file:`) is local. Other paths are opened through delta-rs's client, without a JVM:
`s3://`, `gs://`, `abfss://`, `hdfs://`, with settings from the environment (`AWS_ENDPOINT_URL`). Workers open the
same paths. So on a cluster the folder must be mounted by all machines, or remote.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from pipeline.errors import ArgumentError

_FOLDERS_KNOWN: Final = 256


def is_local(path: str) -> bool:
    """Whether a path is one of the operating system."""
    return path.startswith("file:") or "://" not in path


def local_path(path: str) -> Path:
    """A local path in the operating system's form."""
    return Path(path.removeprefix("file://").removeprefix("file:"))


def local_result(given: Path | str | None, option: str, path: str) -> Path:
    """Path for a job's result that people read, which is always on this machine.

    Args:
        given: the value of `option`, or None.
        option: the option's name.
        path: the path to use if `given` is None.

    Raises:
        ArgumentError: `given` is None and `path` is not on this machine.
    """
    if given is None and not is_local(path):
        raise ArgumentError(f"{path} is not on this machine: say with {option} where to write")
    return local_path(path) if given is None else Path(given)


@lru_cache(_FOLDERS_KNOWN)
def files_below(folder: str) -> fs.FileSystem:
    """A file system whose root is this folder, which need not exist."""
    if is_local(folder):
        return fs.SubTreeFileSystem(str(local_path(folder).absolute()), fs.LocalFileSystem())
    from deltalake.fs import DeltaStorageHandler

    return fs.PyFileSystem(DeltaStorageHandler(folder))


def parquet_reader(path: str) -> pq.ParquetFile:
    """Opens a file of a table."""
    folder, _, name = path.rpartition("/")
    return pq.ParquetFile(name, filesystem=files_below(folder))


def parquet_writer(path: str, schema: pa.Schema, **how: Any) -> pq.ParquetWriter:
    """Begins a Parquet file and creates its folder if necessary. `how` has options of Arrow's writer."""
    folder, _, name = path.rpartition("/")
    if is_local(folder):
        local_path(folder).mkdir(parents=True, exist_ok=True)
    return pq.ParquetWriter(name, schema, filesystem=files_below(folder), **how)


def end_of(path: str) -> int:
    """Flushes a finished file to the disk. Returns its size in bytes.

    Raises:
        FileNotFoundError: another job has deleted it.
    """
    if is_local(path):
        sync(local_path(path))
    folder, _, name = path.rpartition("/")
    size = files_below(folder).get_file_info(name).size
    if size is None:
        raise FileNotFoundError(path)
    return int(size)


def sync(path: Path) -> None:
    """Flushes a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_bytes(path: str) -> bytes | None:
    """Content of a small file; None if it does not exist."""
    folder, _, name = path.rpartition("/")
    files = files_below(folder)
    if files.get_file_info(name).type != fs.FileType.File:
        return None
    with files.open_input_file(name) as file:
        return bytes(file.read())


def replace_file(path: str, content: bytes) -> None:
    """Replaces a file's content atomically. A local file keeps its owner, permissions and time."""
    if not is_local(path):
        folder, _, name = path.rpartition("/")
        with files_below(folder).open_output_stream(name) as remote:
            remote.write(content)
        return
    old = local_path(path)
    new = old.with_name(f".{old.name}.new")
    there = old.stat()
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), there.st_mode & 0o7777)
        with suppress(PermissionError):  # then the file belongs to the user who runs this
            os.fchown(file.fileno(), there.st_uid, there.st_gid)
        os.utime(file.fileno(), ns=(there.st_atime_ns, there.st_mtime_ns))
        os.fsync(file.fileno())
    new.replace(old)
    sync(old.parent)
