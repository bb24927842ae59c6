"""Which days of which clients are not used, because a gateway's records of the day are incomplete.

A doubt is about one gateway and one day. All other days of its clients stay, and so do all other clients.
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
    """A gateway's records of a day are not to be trusted.

    Attributes:
        gateway: which; `ALL_GATEWAYS` for all.
        date: the day.
        reason: beginning with a verb.
        lacks: whether records are missing. Then clients that are not in its records of the day may have used it all
            the same. Else all are there, and some count twice.
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
            # Days of an older release do not name their gateways.
            found.append(Doubt(ALL_GATEWAYS, day.date, f"is {day.completeness:.1%} complete", lacks=True))
        for gw, by_ms in sorted(day.set_back_ms.items()):
            # Seconds stand twice: what was used one after the other looks as used at once.
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
        days: dates by client, and the gateways that they are left out for.
        left_out: each doubt with the number of its clients.
    """

    days: Mapping[Client, Mapping[str, tuple[str, ...]]]
    left_out: tuple[LeftOut, ...]

    def why(self, user: str, client_id: str, date: str) -> tuple[str, ...]:
        """The gateways that a client's day is left out for; empty where it stays."""
        return self.days.get((user, client_id), {}).get(date, ())


NOTHING_LEFT_OUT: Final = LeftDays({}, ())


Place: TypeAlias = tuple[str, str]
"""A gateway and a date; an empty date stands for all."""


def place_of(doubt: Doubt) -> Place:
    """Where the clients are whose day is left out for a doubt.

    What is missing may be of any client that uses the gateway; what stands twice is of those that are there.
    """
    return doubt.gateway, "" if doubt.lacks else doubt.date


def clients_at(used: Iterable[Mapping[str, Any]], places: Collection[Place]) -> dict[Place, set[Client]]:
    """The clients at some places.

    Args:
        used: rows with date, gw, user and client_id: which client used which gateway on which day of the history.
        places: which.
    """
    found: dict[Place, set[Client]] = {place: set() for place in places}
    for row in used:
        for gw in (row["gw"], ALL_GATEWAYS):
            for date in (row["date"].isoformat(), ""):
                if (gw, date) in found:
                    found[gw, date].add((row["user"], row["client_id"]))
    return found


def left_days(clients_of: Mapping[Place, Collection[Client]], doubts: Collection[Doubt]) -> LeftDays:
    """Which days of which clients are left out.

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
