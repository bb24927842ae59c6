"""Use over time for the report's plots, small whatever the number of clients. numpy and Arrow, no Spark.

A `Timeline` begins with bins of ten seconds and doubles their width when there are too many. Widths are powers of two
times ten seconds, and bins begin at multiples of them. So timelines from different workers have matching bins. Each
worker calls `summarise` with its clients' profiles. The result has their numbers without the series, a timeline of
all use of each API, and timelines of the worker's own largest clients. The largest clients of the day are among
these.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.client_tables.profile import CLIENT, PROFILE, STEP_S
from pipeline.storage.layout import BUCKET, bucket_of
from quotas.usage_record import OTHER

BINS: Final = 240
KEPT: Final = 50
"""Clients of each API for which a worker keeps a timeline of a day. The page shows the six largest of all days."""

_STEPS: Final = ("step", "step_offered", "step_throttle_ms")
_TIMELINE: Final = pa.schema(
    [
        ("level", pa.int32()),
        ("first", pa.int64()),
        ("offered", pa.list_(pa.float64())),
        ("throttle_ms", pa.list_(pa.float64())),
    ]
)
_NUMBERS: Final = [field for field in PROFILE if field.name not in _STEPS]
NO_BUCKET: Final = -1
CLIENT_USE: Final = "client_use"
"""The table of `SUMMARY`."""

SUMMARY: Final = pa.schema(
    [(BUCKET, pa.int32()), *_NUMBERS, *(field.with_name(f"bins_{field.name}") for field in _TIMELINE)]
)
"""One row of `summarise`: a client's numbers, or a timeline.

If `bins_level` is not null, the row is a timeline: of a client, or (without a name) of an API. A timeline has the
bucket `NO_BUCKET`, and a client's numbers have the client's bucket."""


class Timeline:
    """Offered units and issued throttle time, in at most `BINS` bins.

    Attributes:
        level: the width of a bin is two to this power, in ten-second steps.
        first: number of the first bin since the epoch.
        offered, throttle_ms: sums of each bin; empty before anything was added.
    """

    __slots__ = ("first", "level", "offered", "throttle_ms")

    def __init__(self) -> None:
        """An empty timeline."""
        self.level = 0
        self.first = 0
        self.offered: NDArray[np.float64] = np.empty(0)
        self.throttle_ms: NDArray[np.float64] = np.empty(0)

    @property
    def width_s(self) -> int:
        """The width of a bin."""
        return STEP_S << self.level

    def begins_s(self) -> NDArray[np.int64]:
        """The begin of each bin, in seconds since the epoch."""
        begins: NDArray[np.int64] = (self.first + np.arange(len(self.offered))) * self.width_s
        return begins

    def add(self, steps: NDArray[np.int64], offered: Any, throttle_ms: Any, *, level: int = 0) -> None:
        """Adds a series.

        Args:
            steps: numbers of its bins since the epoch.
            offered, throttle_ms: values of each bin.
            level: the level of these bins.
        """
        if not len(steps):
            return
        while self.level < level:
            self._widen()
        shift = self.level - level
        self._reach(int(steps.min()) >> shift, int(steps.max()) >> shift)
        bins = (steps >> (self.level - level)) - self.first
        self.offered += np.bincount(bins, offered, len(self.offered))
        self.throttle_ms += np.bincount(bins, throttle_ms, len(self.offered))

    def add_all(self, other: Timeline) -> None:
        """Adds another timeline."""
        bins = other.first + np.arange(len(other.offered))
        self.add(bins, other.offered, other.throttle_ms, level=other.level)

    def on(self, other: Timeline) -> NDArray[np.float64]:
        """Offered units in the bins of another timeline, which includes this one."""
        bins = ((self.first + np.arange(len(self.offered))) >> (other.level - self.level)) - other.first
        return np.bincount(bins, self.offered, len(other.offered)).astype(np.float64)

    def to_dict(self) -> dict[str, Any]:
        """The values for the columns of `SUMMARY`."""
        return {f"bins_{name}": getattr(self, name) for name in _TIMELINE.names}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Timeline:
        """The timeline of such a row."""
        made = cls()
        made.level, made.first = row["bins_level"], row["bins_first"]
        made.offered, made.throttle_ms = np.array(row["bins_offered"]), np.array(row["bins_throttle_ms"])
        return made

    def _reach(self, begin: int, last: int) -> None:
        """Extends the timeline to these bins, and widens the bins if there are too many."""
        if len(self.offered):
            begin, last = min(begin, self.first), max(last, self.first + len(self.offered) - 1)
        else:
            self.first = begin
        while last - begin >= BINS:
            self._widen()
            begin, last = begin >> 1, last >> 1
        before, after = self.first - begin, last - begin + 1 - (self.first - begin) - len(self.offered)
        self.first = begin
        self.offered = np.pad(self.offered, (before, after))
        self.throttle_ms = np.pad(self.throttle_ms, (before, after))

    def _widen(self) -> None:
        odd = self.first & 1
        for name in ("offered", "throttle_ms"):
            values = getattr(self, name)
            padded = np.pad(values, (odd, (odd + len(values)) & 1))
            setattr(self, name, padded.reshape(-1, 2).sum(axis=1))
        self.first >>= 1
        self.level += 1


Place: TypeAlias = tuple[bool, float, str, str]
"""The sort key of an API's clients."""


def summarise(profiles: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Makes the rows of `SUMMARY` for a worker's clients.

    Args:
        profiles: rows of `PROFILE`.
    """
    totals: dict[str, Timeline] = {}
    largest: dict[str, list[tuple[Place, Timeline]]] = {}
    for batch in profiles:
        for api in pc.unique(batch.column("api")).to_pylist():
            rows = batch.filter(pc.equal(batch.column("api"), api))
            totals.setdefault(api, Timeline()).add(*_series(rows))
            _keep_largest(largest.setdefault(api, []), rows)
        numbers = batch.select([field.name for field in _NUMBERS])
        nothing = [pa.nulls(batch.num_rows, field.type) for field in list(SUMMARY)[len(_NUMBERS) + 1 :]]
        names = (batch.column(name).to_pylist() for name in CLIENT)
        buckets = pa.array([bucket_of(*client) for client in zip(*names, strict=True)], pa.int32())
        yield pa.RecordBatch.from_arrays([buckets, *numbers.columns, *nothing], schema=SUMMARY)
    timelines: list[dict[str, Any]] = [{"api": api, **total.to_dict()} for api, total in totals.items()]
    for api, kept in largest.items():
        for (_, _, user, client_id), own in kept:
            timelines.append({"api": api, "user": user, "client_id": client_id, **own.to_dict()})
    for timeline in timelines:
        timeline[BUCKET] = NO_BUCKET
    if timelines:
        yield pa.RecordBatch.from_pylist(timelines, schema=SUMMARY)


def _series(rows: pa.RecordBatch) -> tuple[Any, ...]:
    return tuple(rows.column(name).flatten().to_numpy() for name in _STEPS)


def largest_first(user: str, client_id: str, offered: float) -> Place:
    """Sort key of the clients of an API; the sum of clients beyond the gateways' cap comes last."""
    return client_id == OTHER, -offered, user, client_id


def _keep_largest(kept: list[tuple[Place, Timeline]], rows: pa.RecordBatch) -> None:
    columns = (rows.column(name).to_pylist() for name in ("user", "client_id", "offered"))
    places = [(largest_first(*client), at) for at, client in enumerate(zip(*columns, strict=True))]
    for place, at in heapq.nsmallest(KEPT, places):
        own = Timeline()
        own.add(*_series(rows.slice(at, 1)))
        kept.append((place, own))
    kept.sort(key=lambda each: each[0])
    del kept[KEPT:]
