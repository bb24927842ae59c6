"""Where the pipeline keeps what, and the columns of each table: the seam between its jobs.

    OUT/raw/batch=000000000007/*.parquet     a micro-batch of `ingest`; it counts once `_manifest.json` is there
    OUT/quarantine/batch=000000000007/       lines that could not be read, as they were
    OUT/ledger/v=000000000007.json           which lines have been read; see `pipeline.storage.offset_index`
    OUT/packed/date=2026-11-21/run=000003/   a day: one row per client, API, broker and gateway; see `COMPACTED`
    OUT/clients/date=2026-11-21/run=000003/  the same day in numbers per client; see `pipeline.client_tables`
    OUT/results/{report,sim,plan}/run=.../   what the other jobs found

A **compacted** row is a day of one key (`KEY`): the columns of `KEY`, then arrays. The arrays of `SERIES` have one
element for each second with a record, all of the same length and ordered by `t`, the second
of the day (UTC, 0 to 86399). `t` never falls; the same second may stand twice, when a gateway was restarted or its
clock was set back. Quotas hold for each gateway by itself, so the gateway is part of the key. The arrays of
`EVENTS` are the controller mutations of that client one by one (KIP-599), ordered by `e_ms`, the millisecond of the
day; they stand in the row with API `mutation` and node -1, and are empty elsewhere. No array is null and no element
is, but in `quota` (null: unlimited) and `level_end` (null: not counted). Units are those of `quotas.usage_record`.

A **raw** row is the same over the lines of one file or Arrow batch, with the numbers of the lines besides, or is
about the lines themselves: `kind` says which.

"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pipeline.storage.store import MANIFEST, store_of

KEY: Final = {
    "date": "date",  # UTC
    "gw": "string",
    "listener": "string",
    "user": "string",
    "client_id": "string",  # the address where api is connect
    "api": "string",  # `quotas.usage_record.UsageApi`
    "node": "int",  # upstream broker, -1: not known or does not matter
}
"""What a compacted row is about: columns and their Spark types."""

SERIES: Final = {
    "t": "int",  # second of the day
    "requests": "int",
    "bytes_in": "bigint",
    "bytes_out": "bigint",
    "offered": "double",
    "admitted": "double",
    "max_units": "double",
    "rejected": "int",
    "rejected_units": "double",
    "delayed": "int",
    "throttle_ms": "bigint",
    "muted_ms": "int",
    "quota": "double",
    "level_end": "double",
    "censored": "boolean",
    "observed": "boolean",  # the quota is only watched; all false in files of an older release
}
"""Arrays with one element per recorded second: columns and the Spark types of their elements."""

EVENTS: Final = {
    "e_ms": "int",  # millisecond of the day
    "e_kind": "int",  # index into MUTATION_KINDS, -1: another
    "e_units": "int",
    "e_strict": "boolean",
    "e_admitted": "boolean",
    "e_throttle_ms": "int",
    "e_correlation_id": "int",
    "e_attempt": "int",
}
"""Arrays with one element per controller mutation: columns and the Spark types of their elements."""

MUTATION_KINDS: Final = ("create_topics", "create_partitions", "delete_topics")

LINES: Final = {
    "seq": "bigint",  # kind rows: of the line each element of the series came from; kind lines: of each line
    "position": "bigint",  # number of the line in its file from 0, or its offset in the topic
    "ts": "bigint",  # s since the epoch
    "dur_ms": "int",
    "row_count": "int",
    "dropped_rows": "int",  # too many for the gateway's cap: not in the record
    "dropped_events": "int",
    "algo": "string",  # of the controller mutation quota
    "jump_ms": "bigint",  # by how much the clock was set meanwhile
}
"""Arrays with one element per line (raw only); kind `rows` fills `seq` only."""


def _ddl(*parts: str) -> str:
    return ", ".join(parts)


def _columns(columns: dict[str, str]) -> str:
    return _ddl(*(f"`{name}` {kind}" for name, kind in columns.items()))


def _arrays(columns: dict[str, str]) -> str:
    return _ddl(*(f"`{name}` array<{kind}>" for name, kind in columns.items()))


COMPACTED: Final = _ddl(_columns(KEY), _arrays(SERIES), _arrays(EVENTS))
"""The compacted table as Spark DDL."""

RAW: Final = _ddl(
    "kind string",  # rows, events, lines or torn
    _columns(KEY),
    "boot bigint",
    "first_seq bigint",
    "bucket int",  # `bucket_of` the client, -1 for kinds lines and torn; files are ordered by it
    "source string",  # kind lines and torn: file, or topic and partition
    "at bigint",  # kind torn: position in it
    "reason string",  # kind torn: what is wrong with it
    "text binary",  # kind torn: the line itself, cut at 1 MiB
    _arrays(LINES),
    _arrays(SERIES),
    _arrays(EVENTS),
)
"""The raw table as Spark DDL."""

COMPACTED_FOLDER: Final = "packed"
COMPACTION_LOCK: Final = ".pack.lock"
"""Both have kept the names of the first release: there are folders with such days, and jobs of it may be running."""
_BATCH: Final = re.compile(r"batch=\d{12}")
_RUN: Final = re.compile(r"run=\d{6}")


BUCKETS: Final = 32


def bucket_of(user: str, client_id: str, api: str) -> int:
    """Which of BUCKETS parts a client belongs to, on every day, gateway, listener and broker; in every process.

    Batches and days say in their manifests by how many buckets they are ordered. With another way to make buckets
    that number must change, or old files are searched by the new way.
    """
    text = "\0".join((user, client_id, api))
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) % BUCKETS


def raw_dir(out: str, batch: int) -> str:
    """Where a batch's rows are written."""
    return f"{out}/raw/batch={batch:012d}"


def quarantine_dir(out: str, batch: int) -> str:
    """Where a batch's unreadable lines are kept."""
    return f"{out}/quarantine/batch={batch:012d}"


def compacted_dir(out: str, date: str) -> str:
    """The folder of a day's compacted runs; `date` is written 2026-11-21."""
    return f"{out}/{COMPACTED_FOLDER}/date={date}"


def clients_dir(out: str, date: str) -> str:
    """The folder of a day's tables of clients."""
    return f"{out}/clients/date={date}"


def results_dir(out: str, kind: str, run: str) -> str:
    """Where a job leaves what it found; kind is report, sim or plan."""
    return f"{out}/results/{kind}/run={run}"


@dataclass(frozen=True, slots=True)
class CompactedDay:
    """A published day."""

    date: str
    path: str
    run: int
    rows: int
    """Recorded seconds over all keys: the elements of `t`."""
    keys: int
    completeness: float
    """Time that lines cover by time that was expected of its gateways, 0 to 1; see `pipeline.storage.coverage`."""
    batches: list[int]
    """The raw batches that are in it."""
    buckets: int = 0
    """By how many buckets its files are ordered (`pipeline.storage.compacted_files`); 0 where Spark wrote them."""
    gateways: Mapping[str, float] = field(default_factory=dict)
    """Completeness of each gateway; empty where an older release compacted the day."""
    clashes: tuple[str, ...] = ()
    """Gateways that shared an id, for people."""
    open: bool = False
    """Whether it was compacted before it was closed."""
    algorithms: Mapping[str, list[str]] = field(default_factory=dict)
    """By gateway, those of its controller mutation quota on this day; empty where its lines do not tell."""
    set_back_ms: Mapping[str, int] = field(default_factory=dict)
    """By gateway, how far its clock was set back on this day; those whose clock was not are not in it."""


def published_days(
    out: str, first: str | None = None, last: str | None = None, *, spark: Any = None
) -> list[CompactedDay]:
    """The newest published run of each compacted day, by date; of a day that is being rewritten the one before.

    Args:
        out: the pipeline's folder.
        first: leave out earlier days; 2026-11-21.
        last: leave out later days.
        spark: a session; needed if `out` is not on this machine.
    """
    store = store_of(out, spark)
    days = []
    for name in store.names(f"{out}/{COMPACTED_FOLDER}"):
        date = name.removeprefix("date=")
        if date == name or (first is not None and date < first) or (last is not None and date > last):
            continue
        for run in reversed(store.names(compacted_dir(out, date))):
            path = f"{compacted_dir(out, date)}/{run}"
            manifest = store.read(f"{path}/{MANIFEST}") if _RUN.fullmatch(run) else None
            if manifest is not None:
                content = json.loads(manifest)
                number = int(run.removeprefix("run="))
                days.append(
                    CompactedDay(
                        date,
                        path,
                        number,
                        content["rows"],
                        content["keys"],
                        content["completeness"],
                        content["batches"],
                        content.get("buckets", 0),
                        content.get("gateways", {}),
                        open=content.get("open", False),
                        algorithms=content.get("algorithms", {}),
                        set_back_ms=content.get("set_back_ms", {}),
                    )
                )
                break
    return days


def read_compacted(spark: Any, out: str, first: str | None = None, last: str | None = None) -> Any:
    """The compacted table over some days, as a DataFrame with the columns of `COMPACTED`.

    Args:
        spark: a SparkSession.
        out: the pipeline's folder.
        first: the first day, else from the beginning; 2026-11-21.
        last: the last day, else to the end.

    Raises:
        FileNotFoundError: no day in this range is compacted.
    """
    return read_days(spark, compacted_days(out, first, last, spark=spark))


def read_days(spark: Any, days: Iterable[CompactedDay]) -> Any:
    """The compacted table over these days, of which there is at least one; see `read_compacted`."""
    return spark.read.schema(COMPACTED).parquet(*(day.path for day in days))


def compacted_days(
    out: str, first: str | None = None, last: str | None = None, *, spark: Any = None
) -> list[CompactedDay]:
    """As `published_days`, and at least one.

    Raises:
        FileNotFoundError: no day in this range is compacted.
    """
    days = published_days(out, first, last, spark=spark)
    if not days:
        span = f" from {first or 'the beginning'} to {last or 'the end'}" if first or last else ""
        raise FileNotFoundError(f"no compacted day in {out}{span}: run `sluice-pipeline compact` first")
    return days


@dataclass(frozen=True, slots=True)
class RawBatch:
    """A batch that `ingest` has finished."""

    number: int
    path: str
    manifest: dict[str, Any]
    """lines, rows, torn, duplicates, and rows by date."""


def committed_batches(out: str, *, spark: Any = None) -> Iterator[RawBatch]:
    """The finished batches, in order; half-written ones have no manifest.

    Args:
        out: the pipeline's folder.
        spark: a session; needed if `out` is not on this machine.
    """
    store = store_of(out, spark)
    for name in store.names(f"{out}/raw"):
        if _BATCH.fullmatch(name):
            path = f"{out}/raw/{name}"
            manifest = store.read(f"{path}/{MANIFEST}")
            if manifest is not None:
                yield RawBatch(int(name.removeprefix("batch=")), path, json.loads(manifest))
