"""The folders and the columns of the pipeline's tables: the interface between its jobs.

    OUT/raw          what `ingest` has read; its state says which lines (`pipeline.storage.raw_table`)
    OUT/compacted    days: one row per client, API, broker and gateway (`pipeline.storage.compacted_days`)
    OUT/clients      the same days in numbers per client, OUT/client_use for the report (`pipeline.client_tables`)
    OUT/results/{report,sim,plan,backtest}/run=.../   what the other jobs found

The first four are Delta tables with a state (`pipeline.storage.tables`), partitioned by day.

A **compacted** row is a day of one key (`KEY`): the columns of `KEY`, then arrays. The arrays of `SERIES` have one
element for each second with a record, all of the same length and ordered by `t`, the second
of the day (UTC, 0 to 86399). `t` never falls; the same second may stand twice, when a gateway was restarted or its
clock was set back. Quotas hold for each gateway by itself, so the gateway is part of the key. The arrays of
`EVENTS` are the controller mutations of that client one by one (KIP-599), ordered by `e_ms`, the millisecond of the
day; they stand in the row with API `mutation` and node -1, and are empty elsewhere. No array is null and no element
is, but in `quota` (null: unlimited) and `level_end` (null: not counted). Units are those of `quotas.usage_record`.

Rows of API `quotas.usage_record.STORED` are about no client, but about what brokers store. `listener` is cluster and
broker as ``CLUSTER/NODE``, `client_id` the topic, `t` the second of a sample and `admitted` bytes. The row without a
topic has the total of each sample. `user` is empty, node is -1, and all else is 0.

A **raw** row is the same over the lines of one file or Arrow batch, with the numbers of the lines besides, or is
about the lines themselves: `kind` says which (rows, events, lines, or torn: a line that could not be read).
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

KEY: Final = {
    "date": "date",  # UTC
    "gw": "string",
    "listener": "string",
    "user": "string",
    "client_id": "string",  # the address where api is connect
    "api": "string",  # `quotas.usage_record.UsageApi`
    "node": "int",  # upstream broker, -1: not known or does not matter
}
"""What a compacted row is about: columns and their types."""

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
    "connections": "int",  # that made requests; this and the next are 0 in files of an older release
    "first_ms": "int",  # when the first request was counted, since `t`
    "beside_ms": "bigint",  # of throttle_ms: for other limits than the quota; 0 in files of an older release
    "in_force": "double",  # in place of the quota: a share of a capacity; 0: none, also in files of an older release
}
"""Arrays with one element per recorded second: columns and the types of their elements."""

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
"""Arrays with one element per controller mutation: columns and the types of their elements."""

MUTATION_KINDS: Final = ("create_topics", "create_partitions", "delete_topics")

LINES: Final = {
    "seq": "bigint",  # kind rows: of the line each element of the series came from; kind lines: of each line
    "position": "bigint",  # number of the line in its file from 0, or its offset in the topic
    "ts": "bigint",  # s since the epoch
    "dur_ms": "int",
    "row_count": "int",
    "dropped_rows": "int",  # too many for the gateway's cap: not in the record
    "dropped_events": "int",
    "scope": "string",  # what one counter covers
    "algo": "string",  # of the controller mutation quota
    "jump_ms": "bigint",  # by how much the clock was set meanwhile
}
"""Arrays with one element per line (raw only); kind `rows` fills `seq` only."""


BUCKET: Final = "bucket"
"""The column by which files of the first four tables are ordered."""
FINE_BUCKETS: Final = 1024
"""By which raw rows are ordered."""
_SECONDS_PER_BUCKET: Final = 2_000_000
_LEAST_BUCKETS: Final = 4


def bucket_of(user: str, client_id: str, api: str) -> int:
    """Which of `FINE_BUCKETS` parts a client belongs to, on every day, gateway, listener, broker; in every process.

    A compacted day has `buckets_for` its size, each of them so many fine ones that follow one another.
    """
    text = "\0".join((user, client_id, api))
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) % FINE_BUCKETS


def buckets_for(rows: int) -> int:
    """Into how many buckets a day of so many recorded seconds is divided: a task holds one of them at once."""
    buckets = _LEAST_BUCKETS
    while buckets < FINE_BUCKETS and rows > buckets * _SECONDS_PER_BUCKET:
        buckets *= 2
    return buckets


def results_dir(out: str, kind: str, run: str) -> str:
    """Where a job leaves what it found; kind is report, changes, sim, plan, backtest, cost or capacity."""
    return f"{out}/results/{kind}/run={run}"


@dataclass(frozen=True, slots=True)
class CompactedDay:
    """A day that is compacted."""

    date: str
    run: str = ""
    """Another one each time it is compacted: what was made of it says of which run."""
    rows: int = 0
    """Recorded seconds over all keys: the elements of `t`."""
    keys: int = 0
    completeness: float = 1.0
    """Time that lines cover by time that was expected of its gateways, 0 to 1; see `pipeline.storage.coverage`."""
    raw: str = ""
    """The identifier of the raw table that it was compacted from,"""
    last_batch: int = -1
    """the last batch there that has lines of it,"""
    lines: int = 0
    """and how many lines that were."""
    buckets: int = 0
    """By how many buckets its files are ordered."""
    several_brokers: bool = False
    """Whether any client has used several."""
    gateways: Mapping[str, float] = field(default_factory=dict)
    """Completeness of each gateway."""
    silent: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """By gateway that lacks too much of the day, the longest spans without lines, in seconds since the epoch."""
    clashes: Mapping[str, str] = field(default_factory=dict)
    """By gateway, that another one had its name, for people."""
    open: bool = False
    """Whether it was compacted before it was closed."""
    algorithms: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By gateway, those of its controller mutation quota on this day; empty where its lines do not say."""
    set_back_ms: Mapping[str, int] = field(default_factory=dict)
    """By gateway, how far its clock was set back on this day; those whose clock was not are not in it."""
    scopes: Mapping[str, str] = field(default_factory=dict)
    """By gateway, what one of its counters covers, by its newest line of this day that says it."""
    erased: int = 0
    """Recorded seconds of clients that have been erased, which `rows` does not count."""

    def without(self, keys: int, rows: int) -> CompactedDay:
        """The day when so many of its rows, with so many recorded seconds, have been erased."""
        # Another run: the tables of clients have to be made again.
        return replace(
            self,
            run=uuid.uuid4().hex,
            keys=self.keys - keys,
            rows=self.rows - rows,
            erased=self.erased + rows,
        )
