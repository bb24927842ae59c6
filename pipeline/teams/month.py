"""Reads the use of a month from compacted days, in this process: three columns of a day are little data."""

from __future__ import annotations

import calendar
import datetime
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.client_tables.tables import find_clients
from pipeline.client_tables.timelines import CLIENT_USE, SUMMARY
from pipeline.errors import ArgumentError, NotYetCompleteError
from pipeline.storage.compacted_days import compacted_table, published_days
from pipeline.storage.compacted_files import pieces_of, read_pieces
from pipeline.storage.coverage import Expectation
from pipeline.storage.layout import CompactedDay
from pipeline.storage.losses import with_losses
from pipeline.teams.members import UNASSIGNED, Members
from pipeline.teams.stored import HOUR_S, Samples, StoredUse
from pipeline.teams.use import AMOUNTS, READ, USE, added, midnight, use_of, utc_days
from quotas.usage_record import STORED, UsageApi

_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class MonthUse:
    """The use of teams in a month.

    Attributes:
        month: as 2026-11.
        zone: the billing time zone.
        rows: of `pipeline.teams.use.USE`: each team and day with use.
        days: the days of UTC that were read.
        missing: days that are not compacted, or were not closed when they were compacted.
        hours: hours of the month; a clock change may leave a part of an hour.
        stored_hours: hours of UTC that begin in the month and have a sample of the bytes stored on a broker.
        stored_torn: samples that count although they are incomplete.
    """

    month: str
    zone: str
    rows: pa.Table
    days: tuple[CompactedDay, ...]
    missing: tuple[str, ...]
    hours: Fraction
    stored_hours: int = 0
    stored_torn: int = 0

    @property
    def completeness(self) -> float:
        """The part of the gateways' time that records cover, from 0 to 1; missing days count as 0."""
        wanted = len({*(day.date for day in self.days), *self.missing})
        return sum(day.completeness for day in self.days if day.date not in self.missing) / max(1, wanted)

    def by_team(self, members: Members) -> dict[str, dict[str, int]]:
        """The sums of the month: of each team in the file's order, and of clients without a team last."""
        found = {team: dict.fromkeys((*AMOUNTS, "requests"), 0) for team in (*members.teams, UNASSIGNED)}
        for row in self.rows.to_pylist():
            for name in found[row["team"]]:
                found[row["team"]][name] += row[name]
        return found


def month_use(
    out: str, month: str, zone: ZoneInfo, members: Members, expectation: Expectation, *, allow_gaps: bool
) -> MonthUse:
    """Reads the use of teams in a month of a time zone.

    Args:
        out: the pipeline's folder.
        month: as 2026-11.
        zone: the billing time zone.
        members: the members of teams.
        expectation: says which days are closed.
        allow_gaps: continue if days are missing.

    Raises:
        NotYetCompleteError: days of the month are missing.
        ArgumentError: `month` is not a month.
    """
    first, last = _span(month)
    try:
        wanted = utc_days(first, last, zone)
    except OverflowError:  # the calendar's first or last month
        raise ArgumentError(f"--month {month!r}: say a month as 2026-11") from None
    days = with_losses(published_days(out, wanted[0], wanted[-1]), out, expectation)
    whole = {day.date for day in days if not day.open and not expectation.is_open(day.date)}
    missing = tuple(date for date in wanted if date not in whole)
    if not days or (missing and not allow_gaps):
        raise NotYetCompleteError(
            f"{month} in {zone.key} needs the days of UTC from {wanted[0]} to {wanted[-1]}, and "
            f"{_listed(missing)} not compacted or not over yet: compact them, or say --allow-gaps"
        )
    table = compacted_table(out)
    found = table.in_order()
    parts = [USE.empty_table()]
    stored: list[StoredUse] = []
    for day in days:
        pieces = sorted(pieces_of(table.paths(found.of(date=day.date))))
        samples = Samples(members)
        parts.append(use_of(samples.take(read_pieces(pieces, READ)), members, zone))
        stored.append(samples.use(zone))
        parts.append(stored[-1].rows)
    rows = added(pa.concat_tables(parts))
    inside = pc.and_(pc.greater_equal(rows.column("day"), first), pc.less_equal(rows.column("day"), last))
    begin_s, end_s = midnight(first, zone), midnight(last + datetime.timedelta(days=1), zone)
    sampled = {
        hour: torn for each in stored for hour, torn in each.torn.items() if begin_s <= hour * HOUR_S < end_s
    }
    return MonthUse(
        month,
        zone.key,
        rows.filter(inside),
        tuple(days),
        missing,
        Fraction(int(end_s - begin_s), HOUR_S),
        len(sampled),
        sum(sampled.values()),
    )


def largest_of_no_team(out: str, use: MonthUse, members: Members) -> list[tuple[str, str, int]]:
    """The clients without a team that have the most bytes: user, client id, bytes. Whole days of UTC."""
    names = ("user", "client_id", "api", "offered", "bins_level")
    apis = pa.array([str(UsageApi.PRODUCE), str(UsageApi.FETCH)])
    found = [pa.schema([SUMMARY.field(name) for name in names]).empty_table()]
    for table in find_clients(out, use.days, CLIENT_USE).read(names):
        of_client = pc.is_null(table.column("bins_level"))
        found.append(table.filter(pc.and_(of_client, pc.is_in(table.column("api"), apis))))
    rows = pa.concat_tables(found)
    sums: Mapping[str, Any] = (
        rows.group_by(["user", "client_id"], use_threads=False).aggregate([("offered", "sum")]).to_pydict()
    )
    clients = zip(sums["user"], sums["client_id"], sums["offered_sum"], strict=True)
    largest = [
        (user, client_id, int(sent))
        for user, client_id, sent in clients
        if sent and members.team_of(user, client_id, UsageApi.PRODUCE) == UNASSIGNED
    ]
    return sorted(largest, key=lambda each: (-each[2], each[:2]))[:_SHOWN]


def largest_topics_of_no_team(out: str, use: MonthUse, members: Members) -> list[tuple[str, int]]:
    """The largest topics without a team on the last day with samples: name, bytes on all brokers."""
    if not use.stored_hours:
        return []
    table = compacted_table(out)
    found = table.in_order()
    for day in reversed(use.days):
        pieces = sorted(pieces_of(table.paths(found.of(date=day.date))))
        largest: dict[tuple[str, str], int] = {}
        for batch in read_pieces(pieces, ("listener", "client_id", "api", "admitted"), [STORED]):
            sizes = batch.column("admitted")
            ends = np.cumsum(pc.list_value_length(sizes).to_numpy())
            most = np.maximum.reduceat(sizes.flatten().to_numpy(), np.append(0, ends[:-1])).tolist()
            names = (batch.column(name).to_pylist() for name in ("listener", "client_id"))
            for broker, topic, size in zip(*names, most, strict=True):
                largest[broker, topic] = max(int(size), largest.get((broker, topic), 0))
        if largest:
            sums: Counter[str] = Counter()
            for (_, topic), size in largest.items():
                if topic and members.team_of_topic(topic) == UNASSIGNED:
                    sums[topic] += size
            ranked = sorted(sums.items(), key=lambda each: (-each[1], each[0]))
            return [each for each in ranked if each[1]][:_SHOWN]
    return []


def _span(month: str) -> tuple[datetime.date, datetime.date]:
    try:
        first = datetime.date.fromisoformat(f"{month}-01")
    except ValueError:
        raise ArgumentError(f"--month {month!r}: say a month as 2026-11") from None
    return first, first.replace(day=calendar.monthrange(first.year, first.month)[1])


def _listed(dates: tuple[str, ...]) -> str:
    shown = ", ".join(dates[:5])
    more = f" and {len(dates) - 5} more" if len(dates) > 5 else ""
    return f"{shown}{more} {'is' if len(dates) == 1 else 'are'}"
