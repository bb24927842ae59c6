"""Computes the use of teams by day from compacted rows. Sums are whole numbers, so their order does not matter.

A day is one of the billing time zone. A second of the records belongs to the day in which it begins there. Uses Arrow
and numpy.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.teams.members import Members
from pipeline.teams.prices import STORED_BYTE_HOURS
from quotas.usage_record import UsageApi

READ: Final = (
    "date", "gw", "listener", "user", "client_id", "api", "t", "bytes_in", "bytes_out", "requests", "admitted",
)  # fmt: skip
"""The columns of compacted rows that are read."""

AMOUNTS: Final = ("bytes_in", "bytes_out", "request_us", "mutations", "connections", STORED_BYTE_HOURS)
"""Amounts with a price: bytes of Produce and Fetch, microseconds of request time, partitions, new connections, and
byte-hours on brokers' disks (`pipeline.teams.stored`). Each sum fits into 63 bits: 12 PB for a month."""

USE: Final = pa.schema(
    [("team", pa.string()), ("day", pa.date32()), *((name, pa.int64()) for name in (*AMOUNTS, "requests"))]
)
"""One row for each team and day of the billing time zone; `requests` counts Produce and Fetch."""

_DAY_S: Final = 86_400
_BYTES: Final = (UsageApi.PRODUCE, UsageApi.FETCH)
_UNITS: Final = {
    UsageApi.REQUEST: ("request_us", 1_000),
    UsageApi.MUTATION: ("mutations", 1),
    UsageApi.CONNECT: ("connections", 1),
}
"""The amount to which the admitted units of an API are added, and the factor."""


def utc_days(first: datetime.date, last: datetime.date, zone: ZoneInfo) -> list[str]:
    """The days of UTC that overlap some days of a zone, as the tables name them."""
    begin = int(midnight(first, zone)) // _DAY_S
    end = int(midnight(last + datetime.timedelta(days=1), zone) - 1) // _DAY_S
    epoch = datetime.date(1970, 1, 1)
    return [(epoch + datetime.timedelta(days=at)).isoformat() for at in range(begin, end + 1)]


def use_of(batches: Iterable[pa.RecordBatch], members: Members, zone: ZoneInfo) -> pa.Table:
    """Computes the use of teams on each day. Results of several calls can be added.

    Args:
        batches: compacted rows of clients with the columns of `READ`.
        members: the members of teams.
        zone: the time zone of the days.
    """
    return added(pa.Table.from_batches(_parts(batches, members, zone), schema=USE))


def added(rows: pa.Table) -> pa.Table:
    """Adds rows of `USE` to one for each team and day, in order."""
    names = USE.names[2:]
    found = rows.group_by(["team", "day"], use_threads=False).aggregate([(name, "sum") for name in names])
    found = found.rename_columns([name.removesuffix("_sum") for name in found.column_names])
    return found.select(USE.names).cast(USE).sort_by([("team", "ascending"), ("day", "ascending")])


def _parts(batches: Iterable[pa.RecordBatch], members: Members, zone: ZoneInfo) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if not batch.num_rows:
            continue
        clients = zip(*(batch.column(name).to_pylist() for name in ("user", "client_id", "api")), strict=True)
        teams = pa.array([members.team_of(*client) for client in clients], pa.string())
        for date in pc.unique(batch.column("date")):
            of_date = pc.equal(batch.column("date"), date)
            rows = batch.filter(of_date)
            for day, begin, end in _days_in(date.as_py(), zone):
                yield _of_day(rows, teams.filter(of_date), day, begin, end)


def _of_day(
    rows: pa.RecordBatch, teams: pa.Array, day: datetime.date, begin: int, end: int
) -> pa.RecordBatch:
    """The use of each row in the seconds from `begin` to `end` of its day of UTC."""
    times = rows.column("t")
    mine = times.flatten().to_numpy()
    mine = (mine >= begin) & (mine < end)
    edges = np.concatenate(([0], np.cumsum(pc.list_value_length(times).to_numpy(), dtype=np.int64)))

    def sums(name: str, factor: int = 1) -> Any:
        values = rows.column(name).flatten().to_numpy()
        whole = (
            np.rint(values * factor).astype(np.int64) if values.dtype.kind == "f" else values.astype(np.int64)
        )
        total = np.concatenate(([0], np.cumsum(np.where(mine, whole, 0), dtype=np.int64)))
        return total[edges[1:]] - total[edges[:-1]]

    apis = np.array(rows.column("api").to_pylist(), object)

    def sums_of(own: Any, name: str, factor: int = 1) -> Any:
        # Most batches have rows of a few APIs; columns that only other APIs need are not added.
        return np.where(own, sums(name, factor), 0) if own.any() else np.zeros(len(own), np.int64)

    of_bytes = np.isin(apis, [str(each) for each in _BYTES])
    columns: dict[str, Any] = {
        name: sums_of(of_bytes, name) for name in ("bytes_in", "bytes_out", "requests")
    }
    for each, (name, factor) in _UNITS.items():
        columns[name] = sums_of(apis == str(each), "admitted", factor)
    columns[STORED_BYTE_HOURS] = np.zeros(rows.num_rows, np.int64)
    used = pa.array(np.any(list(columns.values()), axis=0))
    days = pa.array([day] * rows.num_rows, pa.date32())
    return pa.RecordBatch.from_pydict({"team": teams, "day": days, **columns}, schema=USE).filter(used)


@lru_cache(maxsize=1_000)
def _days_in(date: datetime.date, zone: ZoneInfo) -> tuple[tuple[datetime.date, int, int], ...]:
    """The days of a zone that overlap a day of UTC: each day, its first second and its end there."""
    of_utc = int(datetime.datetime.combine(date, datetime.time(), datetime.UTC).timestamp())
    found = []
    for back in (-1, 0, 1):
        day = date + datetime.timedelta(days=back)
        begin = max(0, int(midnight(day, zone)) - of_utc)
        end = min(_DAY_S, int(midnight(day + datetime.timedelta(days=1), zone)) - of_utc)
        if begin < end:
            found.append((day, begin, end))
    return tuple(found)


def midnight(day: datetime.date, zone: ZoneInfo) -> float:
    """The begin of a day in a zone, in seconds since the epoch. If clocks skip midnight, the end of that gap."""
    return datetime.datetime.combine(day, datetime.time(), zone).timestamp()
