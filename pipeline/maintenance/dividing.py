"""Divides the rows of a bucket that has more than a task may hold: a client that many gateways share, above all.

A compacted row is of one gateway, so rows of different gateways never have to meet. They are divided by spans of the
order of compacted files, and not by a salt: so the files, and all that reads them, stay as they are. The rows of each
span wait in a file on this machine's disk, and are read back one span after the other.
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
"""Recorded seconds that a task holds at once: about 500 bytes each with what is made of them, 2 GB. It may hold more
by one client's day at one gateway, which is not divided: 86,400 for each of its brokers and listeners."""

_KEY: Final = ("user", "client_id", "api", "gw")
"""The first columns of `compacted_files.FILE_ORDER`."""

Read: TypeAlias = Callable[[Sequence[str] | None], Iterator[pa.Table]]
"""Reads the raw rows of a bucket, with some columns or all that a compacted row is made of."""
_Name: TypeAlias = tuple[str, ...]


def divided(read: Read, most: int) -> Iterator[pa.Table]:
    """The rows of a bucket in tables of at most so many recorded seconds, by spans of `_KEY`.

    Args:
        read: see there; it is called once, and twice more if the rows are too many.
        most: see `MOST_SECONDS`.

    Yields:
        Tables that have all rows of some clients and gateways, in the order of these; rows in each in any order.
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
    """How many recorded seconds each row has."""
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
    """As Arrow orders text."""
    return tuple(each.encode("utf-8", "surrogatepass") for each in name)


def _spill(read: Read, spans: Sequence[_Name], folder: Path) -> pa.Schema:
    """Writes the rows of each span into a file of its number."""
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
