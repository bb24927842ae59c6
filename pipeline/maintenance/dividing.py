"""Divides the rows of a bucket that are too many for a task, usually because of one client on many gateways.

A compacted row is of one gateway, so rows of different gateways need not be in memory together. The rows are divided
by spans of the order of compacted files, and not by a salt, so that the files and their readers need no change. The
rows of each span are written to a file on this machine's disk, and are read back one span after the other.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.storage.layout import BUCKET

MOST_SECONDS: Final = 4_000_000
"""Recorded seconds that a task has in memory: about 500 bytes each with intermediate results, 2 GB. A client's day at
one gateway is not divided, so there may be 86,400 more for each of its brokers and listeners."""

_KEY: Final = ("user", "client_id", "api", "gw")
"""The first columns of `compacted_files.FILE_ORDER`."""

Read: TypeAlias = Callable[[Sequence[str] | None], Iterator[pa.Table]]
"""Reads the raw rows of a bucket, with some columns or all that a compacted row needs."""
_Name: TypeAlias = tuple[str, ...]


def divided(read: Read, most: int) -> Iterator[pa.Table]:
    """Divides the rows of a bucket by spans of `_KEY`, into tables of at most `most` recorded seconds.

    Args:
        read: reads the rows; it is called once, and twice more if there are too many rows.
        most: see `MOST_SECONDS`.

    Yields:
        Tables with all rows of some clients and gateways, in the order of these. Rows in a table have no order.
    """
    pieces: list[pa.Table] = []
    seconds = 0
    for table in read(None):
        pieces.append(table)
        seconds += int(_seconds(table).sum())
        if seconds > most:
            pieces.clear()
            break
    if seconds <= most:
        if pieces:
            yield pa.concat_tables(pieces)
        return
    spans = _spans(read, most)
    with tempfile.TemporaryDirectory(prefix="sluice-compact-") as folder:
        schema = _spill(read, spans, Path(folder))
        for at in range(len(spans)):
            path = Path(folder, str(at))
            with pa.OSFile(str(path)) as source:
                yield pa.ipc.open_file(source).read_all().cast(schema)
            path.unlink()


def _seconds(table: pa.Table) -> NDArray[np.int64]:
    """The number of recorded seconds of each row."""
    return np.asarray(pc.fill_null(pc.list_value_length(table.column("t")), 0).to_numpy(), np.int64)


def _names(table: pa.Table) -> list[_Name]:
    return list(zip(*(table.column(name).to_pylist() for name in _KEY), strict=True))


def _spans(read: Read, most: int) -> list[_Name]:
    """The first name of each span."""
    sizes: dict[_Name, int] = {}
    for table in read([*_KEY, BUCKET, "t"]):
        for name, seconds in zip(_names(table), _seconds(table).tolist(), strict=True):
            sizes[name] = sizes.get(name, 0) + seconds
    names = sorted(sizes, key=_in_order)
    begins = [names[0]]
    held = 0
    for name in names:
        if held and held + sizes[name] > most:
            begins.append(name)
            held = 0
        held += sizes[name]
    return begins


def _in_order(name: _Name) -> tuple[bytes, ...]:
    """A sort key with Arrow's order of text."""
    return tuple(each.encode("utf-8", "surrogatepass") for each in name)


def _spill(read: Read, spans: Sequence[_Name], folder: Path) -> pa.Schema:
    """Writes the rows of each span to a file that is named by the span's number."""
    begins = [_in_order(name) for name in spans]
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    schema: pa.Schema | None = None
    with ExitStack() as files:
        writers: list[pa.RecordBatchFileWriter] = []
        for table in read(None):
            if schema is None:
                schema = table.schema
                writers = [
                    files.enter_context(pa.ipc.new_file(str(folder / str(at)), schema, options=options))
                    for at in range(len(spans))
                ]
            own = np.array([bisect_right(begins, _in_order(name)) - 1 for name in _names(table)])
            for at in np.unique(own).tolist():
                writers[at].write_table(table.filter(pa.array(own == at)))
    assert schema is not None
    return schema
