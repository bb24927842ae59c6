"""Reads lines in quarantine again: a newer release may read what an older one could not.

Lines that can be read now move to their days in one commit, so a run that is killed changes nothing. Lines that have
been read from another source meanwhile are dropped. Lines that were cut (`lines.KEPT_BYTES`), or had no valid
signature, stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import JobError
from pipeline.ingest.collector import Collector, Skip
from pipeline.ingest.lines import UNSIGNED, Torn
from pipeline.ingest.writer import Answer, Written, read_lines
from pipeline.storage.offset_index import OffsetIndex
from pipeline.storage.raw_table import RawState, raw_table
from pipeline.storage.tables import Conflict, DataFile, Table

_TRIES: Final = 5
_OF_TORN: Final = ("source", "at", "reason", "text")


@dataclass(frozen=True, slots=True)
class Reprocessed:
    """The result of reading the quarantine again.

    Attributes:
        lines, rows: numbers of those that can be read now.
        repeated: the number of lines that had been read from another source.
        left: the number of lines that still can't be read, by reason.
        days: the days of the lines that can be read now.
    """

    lines: int = 0
    rows: int = 0
    repeated: int = 0
    left: Mapping[str, int] = field(default_factory=dict)
    days: tuple[str, ...] = ()


def reprocess(out: str) -> Reprocessed:
    """Reads all lines in quarantine again.

    Args:
        out: the pipeline's folder.

    Raises:
        JobError: other jobs commit each time before this one can.
    """
    for left in reversed(range(_TRIES)):
        try:
            return _reprocess(out)
        except Conflict:
            if not left:
                raise
    raise AssertionError("unreachable")


def _reprocess(out: str) -> Reprocessed:
    table = raw_table(out)
    if not table.in_order().of(date=None):
        return Reprocessed()
    before = table.prepared()
    state = RawState.from_json(before.state)
    torn = before.of(date=None)

    def run(written: Written) -> Iterable[Answer]:
        return written(batch for file in torn for batch in table.rows_of(file, _OF_TORN))

    read = read_lines(table, before, state, _again, run)
    if read is None:
        raise JobError("two copies of a line are in quarantine, and a third one has the place of one of them")
    done = Reprocessed(
        read.new.lines,
        read.new.rows,
        read.new.duplicates,
        _reasons(table, [file for file in read.files if file.partition["date"] is None]),
        tuple(read.new.days),
    )
    if not done.lines and not done.repeated:
        return done
    after = read.added_to(state)
    # Lines of the quarantine may have been pruned; the count of torn lines still includes them.
    was = sum(file.rows for file in torn)
    after = replace(after, torn=max(0, after.torn - was))
    table.commit(before, add=read.files, remove=torn, state=after.to_json())
    return done


def _again(batches: Iterable[pa.RecordBatch], skip: Skip, known: OffsetIndex) -> Iterator[pa.RecordBatch]:
    """Raw rows of lines in quarantine."""
    rows = (
        row
        for batch in batches
        for row in zip(*(batch.column(name).to_pylist() for name in _OF_TORN), strict=True)
    )
    for source, lines in groupby(rows, key=lambda row: row[0]):
        texts = (
            (at, Torn(at, reason, text) if reason == UNSIGNED else text) for _, at, reason, text in lines
        )
        yield from Collector(skip, known).messages(source, texts)


def _reasons(table: Table, files: Iterable[DataFile]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for file in files:
        for batch in table.rows_of(file, ["reason"]):
            counts = pc.value_counts(batch.column("reason")).to_pylist()
            found.update({each["values"]: each["counts"] for each in counts})
    return dict(found.most_common())
