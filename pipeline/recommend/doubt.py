"""Finds the days of clients that are not used, because a gateway's records of the day are incomplete.

A doubt concerns one gateway and one day. Other days of its clients are used, and so are other clients.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pipeline.plans.plan import LeftOut
from pipeline.storage.coverage import COMPLETE_ENOUGH
from pipeline.storage.layout import CompactedDay

_SET_BACK_MS: Final = 1_000
ALL_GATEWAYS: Final = ""

Client: TypeAlias = tuple[str, str]
"""User and client id."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason not to trust a gateway's records of a day.

    Attributes:
        gateway: its name; `ALL_GATEWAYS` for all.
        date: the day.
        reason: text that begins with a verb.
        lacks: whether records are missing. Then clients without records on that day may have used the gateway too.
            Otherwise no record is missing, and some count twice.
    """

    gateway: str
    date: str
    reason: str
    lacks: bool


def doubts_of(days: Iterable[CompactedDay]) -> list[Doubt]:
    """The doubts about some days."""
    found = []
    for day in days:
        short = {gw: share for gw, share in sorted(day.gateways.items()) if share < COMPLETE_ENOUGH}
        for gw, share in short.items():
            found.append(Doubt(gw, day.date, f"is {share:.1%} complete{_spans(day, gw)}", lacks=True))
        if day.completeness < COMPLETE_ENOUGH and not short:
            # An older release did not record the gateways of a day.
            found.append(Doubt(ALL_GATEWAYS, day.date, f"is {day.completeness:.1%} complete", lacks=True))
        for gw, by_ms in sorted(day.set_back_ms.items()):
            # Some seconds are recorded twice, so uses at different times look simultaneous.
            if by_ms > _SET_BACK_MS:
                reason = f"had its clock set back by {by_ms / 1000:.4g} s"
                found.append(Doubt(gw, day.date, reason, lacks=False))
        for gw, text in sorted(day.clashes.items()):
            found.append(Doubt(gw, day.date, f"is not one gateway: {text}", lacks=False))
    return found


def _spans(day: CompactedDay, gw: str) -> str:
    spans = [f"{_time(begin)} to {_time(end)}" for begin, end in day.silent.get(gw, ())]
    return f", without records {' and '.join(spans)}" if spans else ""


def _time(ts: int) -> str:
    return datetime.datetime.fromtimestamp(ts, datetime.UTC).strftime("%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class LeftDays:
    """Days of clients that are left out.

    Attributes:
        days: dates by client, each with the gateways that are the reason.
        left_out: each doubt with the number of its clients.
    """

    days: Mapping[Client, Mapping[str, tuple[str, ...]]]
    left_out: tuple[LeftOut, ...]

    def why(self, user: str, client_id: str, date: str) -> tuple[str, ...]:
        """The gateways that are the reason to leave out a client's day; empty if it is used."""
        return self.days.get((user, client_id), {}).get(date, ())


NOTHING_LEFT_OUT: Final = LeftDays({}, ())


Place: TypeAlias = tuple[str, str]
"""A gateway and a date; an empty date means all days."""


def place_of(doubt: Doubt) -> Place:
    """The place of the clients whose day is left out because of a doubt.

    Missing records may be of any client that uses the gateway. Records that count twice are of clients on that day.
    """
    return doubt.gateway, "" if doubt.lacks else doubt.date


def clients_at(used: Iterable[Mapping[str, Any]], places: Collection[Place]) -> dict[Place, set[Client]]:
    """The clients at some places.

    Args:
        used: rows with date, gw, user and client_id: which client used which gateway on which day of the history.
        places: the places to look for.
    """
    found: dict[Place, set[Client]] = {place: set() for place in places}
    for row in used:
        for gw in (row["gw"], ALL_GATEWAYS):
            for date in (row["date"].isoformat(), ""):
                if (gw, date) in found:
                    found[gw, date].add((row["user"], row["client_id"]))
    return found


def left_days(clients_of: Mapping[Place, Collection[Client]], doubts: Collection[Doubt]) -> LeftDays:
    """Finds which days of which clients are left out.

    Args:
        clients_of: the clients at the places of all doubts.
        doubts: about days of the history.
    """
    days: dict[Client, dict[str, tuple[str, ...]]] = {}
    left_out = []
    for doubt in doubts:
        clients = clients_of[place_of(doubt)]
        for client in clients:
            of_client = days.setdefault(client, {})
            of_client[doubt.date] = (*of_client.get(doubt.date, ()), doubt.gateway or "all gateways")
        left_out.append(LeftOut(doubt.gateway, doubt.date, doubt.reason, len(clients)))
    return LeftDays(days, tuple(left_out))
