"""Compares a week with the week before it, client by client. Arrow and numpy, no Spark.

A week is seven days that end with a given weekday. Weeks are counted backwards: week 0 is the one that is examined.
Missing days do not count: use is compared per existing day.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.client_tables.rows import TARGETS, required_column
from pipeline.replay.demand import KEY_OF_API
from pipeline.replay.kernels.ragged import Floats, Ints
from quotas.usage_record import OTHER, UsageApi

DAYS: Final = 7
WEEKS: Final = 8
"""The most weeks that are read, to know what is usual in an hour of the week."""
HISTORY: Final = 3
"""For an hour to be compared, at least this many earlier weeks must have its day."""
GROWN: Final = 2.0
"""Grown: use of at least this many times that of the week before."""
THROTTLED: Final = 0.01
"""More waiting: the share of requests that wait has risen by at least this."""
UNUSUAL: Final = 6.0
"""Unusual: this many standard deviations above the mean of the same hour in earlier weeks."""
LEAST: Final = 0.001
"""Share of all use of an API. A smaller change is not shown as new, vanished, grown or unusual."""

_LEAST_DEVIATION: Final = 0.1
"""The least standard deviation, as a share of mean use: for a constant client any difference would be unusual."""
_TARGET: Final = TARGETS.index(0.01)
_CLIENT: Final = ("user", "client_id", "api")
READ_HOURS: Final = ("date", "hour", *_CLIENT, "units", "requests", "delayed")
READ_DAYS: Final = ("date", *_CLIENT, "quota", required_column(10), required_column(11))


class Kind(StrEnum):
    """The kinds of changes."""

    NEW = "new"
    VANISHED = "vanished"
    GROWN = "grown"
    THROTTLED = "throttled more"
    OUTGROWN = "quota too small"
    UNUSUAL = "unusual hour"


_OF_USE: Final = frozenset({Kind.NEW, Kind.VANISHED, Kind.GROWN, Kind.UNUSUAL})


@dataclass(frozen=True, slots=True)
class Change:
    """A client with changes.

    Attributes:
        user, client_id, api: of its counter.
        kinds: its kinds of changes.
        before, now: units per day, in the week before and in this one.
        waited_before, waited_now: the share of its requests that had to wait.
        required: the largest rate of this week with which 1 % of a day's units would have waited.
        quota: the last quota in force.
        z: how many standard deviations its most unusual hour was above the same hour of earlier weeks; None: there
            are too few.
        hour: that hour, such as 2026-11-21T13.
    """

    user: str
    client_id: str
    api: str
    kinds: tuple[Kind, ...]
    before: float
    now: float
    waited_before: float
    waited_now: float
    required: float | None = None
    quota: float | None = None
    z: float | None = None
    hour: str | None = None

    @property
    def difference(self) -> float:
        """The change in units per day."""
        return abs(self.now - self.before)


@dataclass(slots=True)
class Found:
    """The comparison of some clients.

    Attributes:
        changes: clients with changes.
        totals: units per day of all clients by API, in the week before and in this one.
        clients: the number of clients; each counts once for each of its APIs.
    """

    changes: list[Change] = field(default_factory=list)
    totals: dict[str, tuple[float, float]] = field(default_factory=dict)
    clients: int = 0

    def significant(self, least: float) -> list[Change]:
        """Changes, the largest first, without those that are small relative to all use of their API (`LEAST`)."""
        kept = []
        for each in self.changes:
            small = each.difference < least * max(self.totals[each.api])
            kinds = tuple(kind for kind in each.kinds if not (small and kind in _OF_USE))
            if kinds:
                kept.append(replace(each, kinds=kinds))
        return sorted(kept, key=lambda each: (-each.difference, each.user, each.client_id, each.api))

    def add(self, other: Found) -> None:
        """Adds the comparison of other clients."""
        self.changes += other.changes
        self.clients += other.clients
        for api, (before, now) in other.totals.items():
            own = self.totals.get(api, (0.0, 0.0))
            self.totals[api] = own[0] + before, own[1] + now


@dataclass(frozen=True, slots=True)
class Calendar:
    """The weeks that are compared.

    Attributes:
        last: the last day of week 0.
        there: by week and weekday, whether the day exists.
    """

    last: datetime.date
    there: tuple[tuple[bool, ...], ...]

    @classmethod
    def of(cls, last: datetime.date, dates: Iterable[str]) -> Calendar:
        """The weeks before a day.

        Args:
            last: the last day of week 0.
            dates: the existing days, such as 2026-11-21.
        """
        days = set(dates)
        return cls(
            last, tuple(tuple(day in days for day in _days_before(last, week)) for week in range(WEEKS))
        )

    def days_of(self, week: int) -> list[str]:
        """The days of a week."""
        return _days_before(self.last, week)

    @property
    def compared(self) -> list[str]:
        """The days of the two compared weeks."""
        return [*self.days_of(1), *self.days_of(0)]

    @property
    def missing(self) -> list[str]:
        """The missing days of the two compared weeks."""
        there = (*self.there[1], *self.there[0])
        return [day for day, is_there in zip(self.compared, there, strict=True) if not is_there]

    @property
    def usual(self) -> bool:
        """Whether there are enough weeks to know what is usual in any hour."""
        return bool(np.any(np.sum(np.array(self.there[1:]), axis=0) >= HISTORY))


def _days_before(last: datetime.date, week: int) -> list[str]:
    begin = last - datetime.timedelta(DAYS * (week + 1) - 1)
    return [(begin + datetime.timedelta(day)).isoformat() for day in range(DAYS)]


def compare(hours: pa.Table, days: pa.Table, calendar: Calendar, least: float = LEAST) -> Found:
    """Compares the weeks of some clients.

    Args:
        hours: rows of the table `client_hour`, columns `READ_HOURS`, with all hours of these clients in the weeks.
        days: rows of `client_day`, columns `READ_DAYS`, in the order of days.
        calendar: the weeks.
        least: see `LEAST`.
    """
    hours = hours.filter(pc.is_in(hours.column("api"), pa.array([api.value for api in KEY_OF_API])))
    if not len(hours):
        return Found()
    clients, client = _clients(hours)
    back = (np.datetime64(calendar.last) - hours.column("date").to_numpy().astype("datetime64[D]")).astype(
        np.int64
    )
    week, day = back // DAYS, DAYS - 1 - back % DAYS
    place = 24 * day + hours.column("hour").to_numpy()
    units = hours.column("units").to_numpy()
    there = np.array(calendar.there)
    length = np.maximum(there.sum(axis=1), 1)

    def by_week(values: Floats) -> Floats:
        of_both = week < 2
        sums: Floats = np.bincount(
            client[of_both] * 2 + week[of_both], values[of_both], 2 * len(clients)
        ).astype(float)
        both: Floats = sums.reshape(-1, 2)
        return both

    used = by_week(units) / length[:2]
    requests, delayed = (by_week(hours.column(name).to_numpy()) for name in ("requests", "delayed"))
    waited = delayed / np.maximum(requests, 1)
    z, at = _unusual(client, week, place, units, there, len(clients))
    limits = _limits(days, calendar)
    found = Found(clients=int(np.count_nonzero(used.any(axis=1))))
    for api, before, now in zip(
        (name[2] for name in clients), used[:, 1].tolist(), used[:, 0].tolist(), strict=True
    ):
        own = found.totals.get(api, (0.0, 0.0))
        found.totals[api] = own[0] + before, own[1] + now
    for number, name in enumerate(clients):
        if name[1] == OTHER:
            continue  # not a client with rows of its own
        quota, required, required_before = limits.get(name, (None, None, None))
        change = Change(
            *name,
            (),
            float(used[number, 1]),
            float(used[number, 0]),
            float(waited[number, 1]),
            float(waited[number, 0]),
            required,
            quota,
            None if np.isnan(z[number]) else float(z[number]),
            None if np.isnan(z[number]) else _named(calendar, int(at[number])),
        )
        if kinds := tuple(_kinds(change, required_before)):
            found.changes.append(replace(change, kinds=kinds))
    # Relative to all clients of an API these changes are even smaller, so this filter removes nothing too early.
    found.changes = found.significant(least)
    return found


def _kinds(change: Change, required_before: float | None) -> Iterable[Kind]:
    if change.now and not change.before:
        yield Kind.NEW
    elif change.before and not change.now:
        yield Kind.VANISHED
    elif change.now >= GROWN * change.before > 0:
        yield Kind.GROWN
    if change.waited_now >= change.waited_before + THROTTLED:
        yield Kind.THROTTLED
    known = None not in (change.quota, change.required, required_before)
    if known and required_before <= change.quota < change.required:  # type: ignore[operator]
        yield Kind.OUTGROWN
    if change.z is not None and change.z >= UNUSUAL and change.before:
        yield Kind.UNUSUAL


def _clients(rows: pa.Table) -> tuple[list[tuple[str, str, str]], Ints]:
    """The clients of rows, and the index of each row's client."""
    names = [rows.column(name).combine_chunks().dictionary_encode() for name in _CLIENT]
    codes = np.stack([each.indices.to_numpy() for each in names], axis=1)
    found, own = np.unique(codes, axis=0, return_inverse=True)
    known = [each.dictionary.to_pylist() for each in names]
    clients = [
        (known[0][user], known[1][client_id], known[2][api]) for user, client_id, api in found.tolist()
    ]
    return clients, own.reshape(-1).astype(np.int64)


def _unusual(
    client: Ints, week: Ints, place: Ints, units: Floats, there: Any, count: int
) -> tuple[Floats, Ints]:
    """For each client the most unusual hour of this week: by how much it is above the usual, and its index."""
    z, at = np.full(count, np.nan), np.zeros(count, np.int64)
    keys = client * (24 * DAYS) + place
    own = np.unique(keys[week == 0])
    if not len(own):
        return z, at
    found = np.searchsorted(own, keys)
    known = (found < len(own)) & (own[np.minimum(found, len(own) - 1)] == keys)
    table = np.zeros((len(own), WEEKS))
    np.add.at(table, (found[known], week[known]), units[known])
    days = there[:, (own % (24 * DAYS)) // 24].T
    weeks = days[:, 1:].sum(axis=1)
    mean = (table[:, 1:] * days[:, 1:]).sum(axis=1) / np.maximum(weeks, 1)
    deviation = np.sqrt(
        (((table[:, 1:] - mean[:, None]) ** 2) * days[:, 1:]).sum(axis=1) / np.maximum(weeks - 1, 1)
    )
    earlier = week > 0
    hours = max(1, 24 * int(there[1:].sum()))
    usual = np.bincount(client[earlier], units[earlier], count) / hours
    own_usual = usual[own // (24 * DAYS)]
    deviation = np.maximum(deviation, _LEAST_DEVIATION * own_usual)
    known_usual = (weeks >= HISTORY) & (own_usual > 0)
    above = np.where(known_usual, (table[:, 0] - mean) / np.where(known_usual, deviation, 1.0), -np.inf)
    order = np.lexsort((-own, above))
    owner = own[order] // (24 * DAYS)
    z[owner], at[owner] = above[order], own[order] % (24 * DAYS)
    z[np.isneginf(z)] = np.nan
    return z, at


def _named(calendar: Calendar, place: int) -> str:
    return f"{calendar.days_of(0)[place // 24]}T{place % 24:02}"


def _limits(
    days: pa.Table, calendar: Calendar
) -> Mapping[tuple[str, str, str], tuple[float | None, float | None, float | None]]:
    """The last quota of each client, and its largest required rates in this week and the week before."""
    weeks = {day: week for week in (0, 1) for day in calendar.days_of(week)}
    found: dict[tuple[str, str, str], list[float | None]] = {}
    lasts: dict[tuple[str, str, str], str] = {}
    for row in days.to_pylist():
        date = row["date"].isoformat()
        if date not in weeks:
            continue
        client = row["user"], row["client_id"], row["api"]
        own = found.setdefault(client, [None, None, None])
        rates = row[required_column(11 if row["api"] == UsageApi.MUTATION else 10)]
        if rates:
            at = 1 + weeks[date]
            own[at] = max(rates[_TARGET], own[at] or 0.0)
        if lasts.get(client) != date:
            lasts[client], own[0] = date, row["quota"]
        elif row["quota"] is not None:
            # If gateways have different quotas on one day, the smallest counts.
            own[0] = row["quota"] if own[0] is None else min(row["quota"], own[0])
    return {client: (own[0], own[1], own[2]) for client, own in found.items()}
