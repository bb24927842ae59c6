"""Runs the pipeline's jobs in this process: the used parts of a Spark session, over Arrow batches without a JVM."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pipeline.client_tables.making import make_missing
from pipeline.client_tables.tables import client_use_table, clients_table
from pipeline.errors import JobError
from pipeline.ingest.writer import Writer, files_to_rows
from pipeline.maintenance.compaction import compact
from pipeline.spark.runner import InProcess
from pipeline.storage.compacted_days import compacted_table, published_days
from pipeline.storage.layout import CompactedDay
from pipeline.storage.raw_table import RawState, raw_table, read_raw_state
from pipeline.storage.schemas import ARROW_TYPES
from pipeline.storage.tables import Table
from testkit.pipeline.usage_lines import LONG_AFTER

_COLUMN: Final = re.compile(r"`?(\w+)`? (array<(\w+)>|\w+)")

Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _schema(ddl: str) -> pa.Schema:
    columns = ((each[1], each[2], each[3]) for each in _COLUMN.finditer(ddl))
    return pa.schema(
        [
            (name, pa.list_(ARROW_TYPES[element]) if element else ARROW_TYPES[kind])
            for name, kind, element in columns
        ]
    )


def _made(work: Work, rows: Callable[[], list[pa.RecordBatch]]) -> list[pa.RecordBatch]:
    return list(work(iter(rows())))


class LocalFrame:
    """Rows in partitions."""

    def __init__(self, schema: pa.Schema, partitions: Sequence[Callable[[], list[pa.RecordBatch]]]) -> None:
        """Args: schema: of the rows. partitions: each returns its rows, again at each call."""
        self._schema = schema
        self._partitions = partitions

    def mapInArrow(self, work: Work, ddl: str) -> LocalFrame:  # noqa: N802
        """Applies a function to each partition."""
        return LocalFrame(_schema(ddl), [partial(_made, work, each) for each in self._partitions])

    def collect(self) -> list[tuple[Any, ...]]:
        """All rows as tuples of their columns."""
        return [tuple(row.values()) for row in self.toArrow().to_pylist()]

    def toArrow(self) -> pa.Table:  # noqa: N802
        """All rows."""
        names = self._schema.names
        found = [batch.select(names) for each in self._partitions for batch in each()]
        return pa.concat_tables(
            [
                self._schema.empty_table(),
                *(pa.Table.from_batches([each]).cast(self._schema) for each in found),
            ]
        )


class LocalSession(InProcess):
    """A session with a number of cores, which also runs the parts of jobs without Spark."""

    def range(self, begin: int, end: int | None = None, step: int = 1, parts: int = 0) -> LocalFrame:
        """Numbers in about equal parts."""
        parts = parts or self.cores
        ids = list(range(begin)) if end is None else list(range(begin, end, step))
        split = [ids[at * len(ids) // parts : (at + 1) * len(ids) // parts] for at in range(parts)]
        schema = pa.schema([("id", pa.int64())])
        rows = [pa.RecordBatch.from_pydict({"id": each}, schema) for each in split]
        return LocalFrame(schema, [partial(list, [each]) for each in rows])

    def stop(self) -> None:
        """Does nothing."""


def ingest_files(out: str, checkpoint: Path, *files: Path) -> Writer:
    """Ingests files as the next batch of a checkpoint. Returns the writer. A batch that fails is tried again."""
    writer = Writer(out, str(checkpoint), files_to_rows, InProcess())
    write_batch(writer, checkpoint, files)
    return writer


def write_batch(writer: Writer, checkpoint: Path, files: Sequence[Path]) -> None:
    """Passes files to a writer as the next batch of its checkpoint, like a stream of Spark."""
    offsets = checkpoint / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": checkpoint.name}))
    batch = len(list(offsets.iterdir()))
    (offsets / str(batch)).write_text("\n".join(map(str, files)))
    schema = pa.schema([("path", pa.string()), ("content", pa.binary())])

    def read() -> list[pa.RecordBatch]:
        content = {"path": [file.name for file in files], "content": [file.read_bytes() for file in files]}
        return [pa.RecordBatch.from_pydict(content, schema)]

    try:
        writer(LocalFrame(schema, [read]), batch)
    except JobError:
        (offsets / str(batch)).unlink()
        raise


def compact_all(out: str, cores: int = 1) -> None:
    """Compacts all due days, and makes the tables of clients."""
    session = LocalSession(cores)
    compact(session, out, LONG_AFTER)
    make_missing(session, out)


def tables_of(out: str) -> dict[str, Table]:
    """The tables of a folder by name."""
    return {
        "raw": raw_table(out),
        "compacted": compacted_table(out),
        "clients": clients_table(out),
        "client_use": client_use_table(out),
    }


def contents(out: str, *names: str) -> dict[str, list[str]]:
    """The rows of these tables, or of all, in sorted order and with only the columns that have a value."""
    found = {}
    tables = tables_of(out)
    for name in names or tables:
        table = tables[name]
        rows = [
            row for file in table.read().files for batch in table.rows_of(file) for row in batch.to_pylist()
        ]
        found[name] = sorted(
            repr({key: value for key, value in row.items() if value is not None}) for row in rows
        )
    return found


def known(out: str) -> tuple[RawState, list[CompactedDay]]:
    """The contents of the states, without names of runs and numbers of erased rows."""
    state = read_raw_state(out)
    days: Mapping[str, Any] = {date: replace(day, erased=0) for date, day in state.days.items()}
    compacted = [replace(day, run="", raw="", erased=0) for day in published_days(out)]
    return replace(state, days=days, checkpoints={}), compacted
