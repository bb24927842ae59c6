"""Deletes remains of a client below a table's folder when no row names it any more.

Replaced files are swept. Other writers leave more: files of failed attempts, change data (`_change_data`), and in the
log the least and largest values of each file and the condition of a DELETE. Files that name the client are deleted. A
log that names it is replaced by a checkpoint of the newest version. So earlier versions can't be read afterwards.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from pipeline.erase.client import Client
from pipeline.erase.tables import Found
from pipeline.storage.files import files_below, is_local, local_path, parquet_reader, read_bytes, sync
from pipeline.storage.tables import Snapshot, Table, file_version

FILES: Final = "replaced files"
LOG: Final = "files of the log"

_LOG: Final = "_delta_log"
_OF_A_VERSION: Final = re.compile(r"\.?(\d{20})\..*")
_NAMES: Final = ("user", "client_id", "api")


def found_in_folder(table: Table, client: Client) -> Found:
    """Remains of a client below a table's folder, other than rows of the table."""
    newest = table.read()
    if newest.version < 0:
        return Counter()
    named, _ = _not_of_table(table, newest, client)
    where = table.folder.rpartition("/")[2]
    return +Counter({(where, FILES): len(named), (where, LOG): len(_log_with(table, client))})


def clean_folder(table: Table, client: Client) -> list[str]:
    """Deletes remains of a client below a table's folder.

    Returns:
        Paths of files that can't be read. It is not known whether they name the client.

    Raises:
        JobError: the table can't be read.
    """
    newest = table.read()
    if newest.version < 0:
        return []
    table.sweep()
    named, unread = _not_of_table(table, newest, client)
    _delete_files(table, named)
    if _log_with(table, client):
        _shorten_log(table, newest)
    return unread


def _not_of_table(table: Table, newest: Snapshot, client: Client) -> tuple[list[str], list[str]]:
    """Files that are not part of a table and name the client; and files that can't be read."""
    files = files_below(table.folder)
    kept = {file.path for file in (*newest.files, *([newest.state_file] if newest.state_file else []))}
    named, unread = [], []
    for info in files.get_file_info(fs.FileSelector("", allow_not_found=True, recursive=True)):
        # Another job is writing files of a later version; `tables.erase_rows` reports it.
        if (
            not info.path.endswith(".parquet")
            or info.path.startswith(f"{_LOG}/")
            or info.path in kept
            or file_version(info.path) > newest.version
        ):
            continue
        try:
            if _names(f"{table.folder}/{info.path}", client):
                named.append(info.path)
        except FileNotFoundError:
            continue  # another job has swept it
        except (OSError, pa.ArrowException):
            unread.append(f"{table.folder}/{info.path}")
    return named, unread


def _delete_files(table: Table, paths: Iterable[str]) -> None:
    files = files_below(table.folder)
    for path in paths:
        folder, _, name = path.rpartition("/")
        # Spark's checksum first: after the file itself it would not be found again.
        for each in (f"{folder}/.{name}.crc", path):
            with suppress(FileNotFoundError):
                files.delete_file(each)


def _names(path: str, client: Client) -> bool:
    with parquet_reader(path) as reader:
        if not set(_NAMES) <= set(reader.schema_arrow.names):
            return False
        return any(pc.any(client.rows(each)).as_py() for each in reader.iter_batches(columns=list(_NAMES)))


def _log_of(table: Table) -> Iterator[str]:
    found = files_below(table.folder).get_file_info(fs.FileSelector(_LOG, recursive=True))
    return (info.path.removeprefix(f"{_LOG}/") for info in found if info.type == fs.FileType.File)


def _log_with(table: Table, client: Client) -> list[str]:
    """Files of the log that name the client."""
    return [name for name in _log_of(table) if _mentions(f"{table.folder}/{_LOG}/{name}", client)]


def _mentions(path: str, client: Client) -> bool:
    try:
        if not path.endswith(".parquet"):
            return client.is_in(read_bytes(path) or b"")
        with parquet_reader(path) as reader:
            batches = (batch.to_pylist() for batch in reader.iter_batches())
            return any(client.is_in("\n".join(_texts(each)).encode()) for each in batches)
    except FileNotFoundError:
        return False  # another writer has deleted it


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        yield from _texts(list(value.items()))


def _shorten_log(table: Table, newest: Snapshot) -> None:
    newest.handle.create_checkpoint()
    if is_local(table.folder):
        folder = local_path(table.folder) / _LOG
        for path in (*folder.glob("*.checkpoint*.parquet"), folder / "_last_checkpoint", folder):
            sync(path)
    files = files_below(table.folder)
    for name in sorted(_log_of(table)):
        version = _OF_A_VERSION.fullmatch(name.rpartition("/")[2])
        # Parts of older checkpoints have no version in their names.
        if int(version[1]) < newest.version if version else name.startswith("_sidecars/"):
            with suppress(FileNotFoundError):
                files.delete_file(f"{_LOG}/{name}")
