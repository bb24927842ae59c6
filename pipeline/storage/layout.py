"""The folders and the columns of the pipeline's tables: the interface between its jobs.

    OUT/raw          rows that `ingest` has read; its state says from which lines (`pipeline.storage.raw_table`)
    OUT/compacted    days: one row per client, API, broker and gateway (`pipeline.storage.compacted_days`)
    OUT/clients      the same days in numbers per client; OUT/client_use for the report (`pipeline.client_tables`)
    OUT/results/{report,sim,plan,backtest}/run=.../   results of the other jobs

The first four are Delta tables with a state (`pipeline.storage.tables`), partitioned by day.

A **compacted** row is a day of one key (`KEY`). It has the columns of `KEY` and arrays. Quotas hold for each gateway
by itself, so the gateway is part of the key.

* The arrays of `SERIES` have one element for each second with a record. They have the same length and are ordered by
  `t`, the second of the day (UTC, 0 to 86399). `t` never falls. A second can occur twice if a gateway was restarted
  or its clock was set back.
* The arrays of `EVENTS` are the controller mutations of the client one by one (KIP-599), ordered by `e_ms`, the
  millisecond of the day. They are in the row with API `mutation` and node -1, and are empty in other rows.
* No array and no element is null, except in `quota` (null: unlimited) and `level_end` (null: not counted). Units are
  those of `quotas.usage_record`.

Rows of API `quotas.usage_record.STORED` describe bytes that brokers store, not a client. `listener` is cluster and
broker as ``CLUSTER/NODE``, `client_id` the topic, `t` the second of a sample and `admitted` bytes. The row without a
topic has the total of each sample. `user` is empty, node is -1, and all else is 0.

A **raw** row has the same columns for the lines of one file or Arrow batch, and the numbers of these lines. Other raw
rows describe the lines themselves. `kind` is rows, events, lines, or torn (a line that could not be read).
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
"""Columns that identify a compacted row, and their types."""

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
    "observed": "boolean",  # the quota is in mode observe; all false in files of an older release
    "connections": "int",  # those that made requests; this and the next are 0 in files of an older release
    "first_ms": "int",  # when the first request was counted, ms after `t`
    "beside_ms": "bigint",  # part of throttle_ms due to limits other than the quota; 0 in files of an older release
    "in_force": "double",  # limit that replaced the quota: a share of a capacity; 0: none, or an older release
}
"""Arrays with one element per recorded second: columns and the types of their elements."""

EVENTS: Final = {
    "e_ms": "int",  # millisecond of the day
    "e_kind": "int",  # index into MUTATION_KINDS, -1: not listed there
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
    "seq": "bigint",  # kind rows: line that each element of the series came from; kind lines: each line
    "position": "bigint",  # number of the line in its file from 0, or its offset in the topic
    "ts": "bigint",  # s since the epoch
    "dur_ms": "int",
    "row_count": "int",
    "dropped_rows": "int",  # rows above the gateway's cap, which the record leaves out
    "dropped_events": "int",
    "scope": "string",  # the scope of one counter
    "algo": "string",  # of the controller mutation quota
    "jump_ms": "bigint",  # by how much the clock was set since the line before
}
"""Arrays with one element per line (raw only); kind `rows` fills `seq` only."""


BUCKET: Final = "bucket"
"""The column by which files of the first four tables are sorted."""
FINE_BUCKETS: Final = 1024
"""The order of raw rows."""
_SECONDS_PER_BUCKET: Final = 2_000_000
_LEAST_BUCKETS: Final = 4


def bucket_of(user: str, client_id: str, api: str) -> int:
    """Which of `FINE_BUCKETS` parts a client belongs to: the same on each day and gateway, and in each process.

    A compacted day has `buckets_for` its size; each of them consists of neighbouring fine buckets.
    """
    text = "\0".join((user, client_id, api))
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) % FINE_BUCKETS


def buckets_for(rows: int) -> int:
    """Number of buckets for a day of so many recorded seconds. A task has one bucket in memory at a time."""
    buckets = _LEAST_BUCKETS
    while buckets < FINE_BUCKETS and rows > buckets * _SECONDS_PER_BUCKET:
        buckets *= 2
    return buckets


SEEN_FOR_ONLY: Final = "seen for only "
"""How a plan says that a client was seen too briefly. A field of its own would keep 0.2.0 from reading the plan."""


def results_dir(out: str, kind: str, run: str) -> str:
    """Folder of a job's results; kind is report, changes, sim, plan, backtest, cost or capacity."""
    return f"{out}/results/{kind}/run={run}"


@dataclass(frozen=True, slots=True)
class CompactedDay:
    """Facts about a compacted day."""

    date: str
    run: str = ""
    """Changes each time the day is compacted. Results made from the day name this run."""
    rows: int = 0
    """Recorded seconds of all keys: the elements of `t`."""
    keys: int = 0
    completeness: float = 1.0
    """Covered time divided by expected time of its gateways, 0 to 1; see `pipeline.storage.coverage`."""
    raw: str = ""
    """The identifier of the raw table from which the day was compacted."""
    last_batch: int = -1
    """The last batch of the raw table with lines of the day."""
    lines: int = 0
    """Number of lines of the day in the raw table."""
    buckets: int = 0
    """Number of buckets by which its files are sorted."""
    several_brokers: bool = False
    """Whether any client has used several brokers at one gateway."""
    gateways: Mapping[str, float] = field(default_factory=dict)
    """Completeness of each gateway."""
    silent: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """For gateways that lack too much of the day, the longest spans without lines, in seconds since the epoch."""
    clashes: Mapping[str, str] = field(default_factory=dict)
    """For gateways whose name another gateway used at the same time, a text for the operator."""
    open: bool = False
    """Whether it was compacted before it was closed."""
    algorithms: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Algorithms of each gateway's controller mutation quota on this day; empty if its lines do not name any."""
    set_back_ms: Mapping[str, int] = field(default_factory=dict)
    """By how much a gateway's clock was set back on this day. Gateways with an unchanged clock are left out."""
    scopes: Mapping[str, str] = field(default_factory=dict)
    """The scope of each gateway's counters, from its newest line of this day that names it."""
    erased: int = 0
    """Recorded seconds of clients that have been erased, which `rows` does not count."""

    def without(self, keys: int, rows: int) -> CompactedDay:
        """The day after so many of its rows, with so many recorded seconds, have been erased."""
        # A new run, because the tables of clients have to be made again.
        return replace(
            self,
            run=uuid.uuid4().hex,
            keys=self.keys - keys,
            rows=self.rows - rows,
            erased=self.erased + rows,
        )
