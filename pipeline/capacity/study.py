"""Studies a capacity: what clients or teams require, get and use together, and when the capacity is full.

Clients are processed part by part, as tasks of Spark or one after the other in this process. Teams are added second
by second (`pipeline.recommend.entities`) in this process. Clients without a team claim for themselves.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.capacity.claims import Claimant, Claims
from pipeline.capacity.forecast import Floats, Forecast, forecast, hours_of_week
from pipeline.capacity.shares import Shares, divided
from pipeline.capacity.sums import DAY_S, Load, Quotas, Sums, load_of, sums_of
from pipeline.client_tables.tables import ClientPart, find_clients
from pipeline.errors import NotYetCompleteError
from pipeline.plans.plan import LeftOut
from pipeline.recommend.doubt import NOTHING_LEFT_OUT, doubts_of
from pipeline.recommend.entities import EntityDays
from pipeline.recommend.recommendation import ClientDay, Rule, required_rate_of
from pipeline.recommend.required_rates import (
    ClientDays,
    Windows,
    days_of,
    hourly_peaks,
    left_out_of,
)
from pipeline.replay.demand import API_OF_KEY, KEY_OF_API
from pipeline.spark.runner import Runner
from pipeline.storage.compacted_days import ELEMENTS_AT_ONCE, CompactedDays
from pipeline.storage.compacted_files import Piece, read_entities
from pipeline.storage.entity_days import ENTITY, Scope, arrays_of
from pipeline.storage.layout import CompactedDay
from pipeline.teams.members import UNASSIGNED, Entities, Members
from quotas.entities import QuotaKey, counted
from quotas.limits import GROUP_KEYS
from quotas.usage_record import UsageApi


@dataclass(frozen=True, slots=True)
class Question:
    """The input of a study.

    Attributes:
        capacity: what the cluster carries, in the key's unit per second.
        claims: floors, ceilings, weights and tiers.
        members: the members of teams, which then claim instead of their clients; None: clients claim for themselves.
        usable: the part of the capacity that brokers carry during a failure.
        target, margin: as for `recommend`.
        windows: how quotas are measured.
        history: the number of last days for required rates and sums.
        horizon: the number of days to forecast.
        allow_gaps: leave out no day, even if records are missing or occur twice.
    """

    capacity: Mapping[QuotaKey, float]
    claims: Claims
    members: Members | None
    usable: float
    target: float
    margin: float
    windows: Windows
    history: int
    horizon: int
    allow_gaps: bool


@dataclass(frozen=True, slots=True)
class Loads:
    """The use of all clients together.

    Attributes:
        recorded: as recorded.
        with_required: if each client had its required rate as its quota.
        with_shares: if each client had its share as its quota.
    """

    recorded: Load
    with_required: Load
    with_shares: Load


@dataclass(frozen=True, slots=True)
class OfKey:
    """The results for one quota.

    Attributes:
        shares: how the capacity is divided.
        loads: the use of all clients together.
        censored: the share of active seconds in which clients were muted, so that their demand is not known.
        forecast: None: there are too few days.
        hours: over (weekday, hour); see `hours_of_week`.
    """

    shares: Shares
    loads: Loads
    censored: float
    forecast: Forecast | None
    hours: Floats


@dataclass(frozen=True, slots=True)
class Study:
    """All results.

    Attributes:
        question: the input.
        days: the days from which the forecast is made.
        history: the last of these days, for everything else.
        left_out: days of the history that are left out, for all or some clients.
        left_from_forecast: days that were not complete or have seconds twice; they are not in the sums either.
        of_key: results in the order of `QuotaKey`, for quotas with a capacity and any use.
    """

    question: Question
    days: tuple[CompactedDay, ...]
    history: tuple[CompactedDay, ...]
    left_out: tuple[LeftOut, ...]
    left_from_forecast: tuple[str, ...]
    of_key: Mapping[QuotaKey, OfKey]


@dataclass(slots=True)
class _Needs:
    """Required rates of each day by quota and claimant; and the claimant's active seconds and its muted ones."""

    required: dict[tuple[QuotaKey, Claimant], dict[str, float]] = field(default_factory=dict)
    active: dict[QuotaKey, list[float]] = field(default_factory=dict)

    def add(self, rows: Iterable[Mapping[str, Any]], whose: Any) -> None:
        for row in rows:
            key = KEY_OF_API[UsageApi(row["api"])]
            if row["api"] != API_OF_KEY[key]:
                continue
            claimant = whose(row["user"], row["client_id"], row["api"])
            if claimant is None:
                continue
            days = self.required.setdefault((key, claimant), {})
            date = row["date"].isoformat()
            # A client may use all of its counters at the same time.
            days[date] = days.get(date, 0.0) + row["required_rate"]
            seconds = self.active.setdefault(key, [0.0, 0.0])
            seconds[0] += row["active_s"]
            seconds[1] += row["censored_s"]

    def add_all(self, other: _Needs) -> None:
        """Adds the needs of other claimants."""
        self.required |= other.required
        for key, seconds in other.active.items():
            mine = self.active.setdefault(key, [0.0, 0.0])
            mine[0] += seconds[0]
            mine[1] += seconds[1]

    def of_key(self, key: QuotaKey, margin: float) -> dict[Claimant, float]:
        """The required rate of each claimant for a quota, with a margin; those without use are left out."""
        found = {}
        for (own, claimant), days in self.required.items():
            if own is key:
                rate = required_rate_of(
                    [ClientDay(date, need, 0, 0, None) for date, need in days.items()], Rule.DECAYED
                )
                if rate > 0:
                    found[claimant] = rate * margin
        return found


class _Whose:
    """Finds the claimant of a row: its client, or none if its team claims."""

    def __init__(self, members: Members | None) -> None:
        self._members = members

    def client(self, user: str, client_id: str, api: str) -> Claimant | None:
        members = self._members if KEY_OF_API[UsageApi(api)] in GROUP_KEYS else None
        if members is not None and members.team_of(user, client_id, api) != UNASSIGNED:
            return None
        return Claimant(user, client_id)

    def team(self, user: str, client_id: str, api: str) -> Claimant | None:
        return Claimant(team=user)


def study(runner: Runner, out: str, days: Sequence[CompactedDay], scope: Scope, question: Question) -> Study:
    """Makes the study.

    Args:
        runner: runs the parts.
        out: the pipeline's folder.
        days: closed, compacted days by date, with their known losses; at least one.
        scope: whether brokers count together, and gateways of a fleet.
        question: the input.

    Raises:
        NotYetCompleteError: the records of no day of the history are complete and there once.
    """
    history = days[-question.history :]
    doubts = [] if question.allow_gaps else doubts_of(days)
    whole = [day for day in days if day.date not in {doubt.date for doubt in doubts}]
    # A sum of all clients is too low if records are missing, and too high if seconds are recorded twice.
    trusted = [day for day in history if day in whole]
    if not trusted:
        why = "; ".join(
            f"{doubt.date}: {doubt.gateway or 'all gateways'} {doubt.reason}"
            for doubt in doubts
            if doubt.date >= history[0].date
        )
        raise NotYetCompleteError(
            f"on each of the last {counted(len(history), 'day')} records are missing or occur twice, so no sum of "
            f"all clients is right ({why}). Use more days with --history, or say --allow-gaps"
        )
    left = NOTHING_LEFT_OUT if question.allow_gaps else left_out_of(runner, out, history)
    rows = find_clients(out, history, "client_day", scope=scope)
    clients = ClientDays(rows.parts(runner), question.target, question.windows, left)
    whose = _Whose(question.members)

    def needs_of(part: ClientPart) -> Iterator[_Needs]:
        found = _Needs()
        kept = (
            row
            for row in clients.read(part)
            if not left.why(row["user"], row["client_id"], row["date"].isoformat())
        )
        found.add(kept, whose.client)
        yield found

    needs = _Needs()
    for some in runner.run(needs_of, clients.parts):
        needs.add_all(some)
    teams = None
    if question.members is not None:
        teams = EntityDays(out, trusted, scope, Entities.TEAM, question.members, all_gateways=True)
        needs.add(days_of(teams.read(), question.target, question.windows), whose.team)
    shares = {}
    for key in QuotaKey:
        required = needs.of_key(key, question.margin) if key in question.capacity else {}
        if required:
            shares[key] = divided(key, question.capacity[key], required, question.claims, question.usable)
    loads = _loads(runner, out, trusted, teams, whose, question, shares)
    hours = hourly_peaks(runner, out, whole)
    of_key = {}
    for key, own in shares.items():
        by_date = {date: peaks for (date, other), peaks in hours.items() if other is key}
        seen = {date: max(peaks) for date, peaks in by_date.items()}
        active_s, censored_s = needs.active[key]
        of_key[key] = OfKey(
            own,
            loads[key],
            censored=censored_s / max(1.0, active_s),
            forecast=forecast(seen, own.capacity, question.horizon),
            hours=hours_of_week(by_date),
        )
    return Study(
        question,
        tuple(days),
        tuple(history),
        left.left_out,
        tuple(day.date for day in days if day not in whole),
        of_key,
    )


def _loads(
    runner: Runner,
    out: str,
    days: Sequence[CompactedDay],
    teams: EntityDays | None,
    whose: _Whose,
    question: Question,
    shares: Mapping[QuotaKey, Shares],
) -> dict[QuotaKey, Loads]:
    """The loads of some days, by quota."""
    quotas: list[Quotas] = [
        {(key, each.claimant): each.claim.demand for key, own in shares.items() for each in own.shares},
        {(key, each.claimant): each.share for key, own in shares.items() for each in own.shares},
    ]
    bursts = {key: question.windows.burst_of(API_OF_KEY[key]) for key in shares}

    def of_part(pieces: list[Piece]) -> Iterator[Sums]:
        rows = read_entities(
            pieces,
            ENTITY,
            arrays_of(()),
            brokers_apart=False,
            apis=[API_OF_KEY[key] for key in bursts],
            most_elements=ELEMENTS_AT_ONCE,
        )
        yield sums_of(rows, whose.client, bursts, quotas)

    by_day: dict[QuotaKey, list[Floats]] = {key: [] for key in shares}
    for day in days:
        sums = Sums()
        # One day after the other: the driver keeps the sums of only one day beside its results.
        for some in runner.run(of_part, CompactedDays.of(None, out, day.date, day.date).parts(runner.cores)):
            sums.add_all(some)
        if teams is not None:
            sums.add_all(sums_of(teams.of_day(day), whose.team, bursts, quotas))
        for key, found in by_day.items():
            found.append(sums.by_key.get(key, np.zeros((1 + len(quotas), DAY_S))))
    return {
        key: Loads(*(load_of(seconds, shares[key].capacity) for seconds in np.concatenate(found, axis=1)))
        for key, found in by_day.items()
    }


def weeks(expected: Sequence[Any]) -> list[Any]:
    """One day of each week of a forecast: the busiest."""
    by_week: dict[tuple[int, int], Any] = {}
    for each in expected:
        week = datetime.date.fromisoformat(each.date).isocalendar()[:2]
        if week not in by_week or each.peak > by_week[week].peak:
            by_week[week] = each
    return list(by_week.values())
