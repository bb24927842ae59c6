"""The content of a report, made from the table `client_use`, day by day.

The content includes what is incomplete, because a report over lost records must not look like a quiet day.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.client_tables.profile import CLIENT, SUMS
from pipeline.client_tables.tables import ClientPart, find_clients
from pipeline.client_tables.timelines import CLIENT_USE, NO_BUCKET, SUMMARY, Timeline, largest_first
from pipeline.errors import ArgumentError
from pipeline.replay.demand import KEY_OF_API
from pipeline.report.teams import by_team, team_name
from pipeline.spark.runner import Runner
from pipeline.storage.compacted_days import compacted_days
from pipeline.storage.coverage import Expectation, short_gateways
from pipeline.storage.layout import BUCKET, CompactedDay
from pipeline.storage.losses import with_losses
from pipeline.teams.members import Members
from quotas.entities import API_RATE_KEYS
from quotas.usage_record import UsageApi

FORMAT: Final = "sluice-report"
VERSION: Final = 1
STACKED: Final = 6
"""Clients of each API that the page shows in the stacked plot."""
_NAMED_DAYS: Final = 7
_NUMBERS: Final = [name for name in SUMMARY.names if not name.startswith(("bins_", BUCKET))]
_OVER_DAYS: Final = {
    **dict.fromkeys((*SUMS, "active_s", "censored_s", "near_s"), "sum"),
    **dict.fromkeys(("gateways", "nodes", "closest", "p50", "p95", "p99"), "max"),
    **dict.fromkeys(("peak_1s", "peak_10s", "peak_60s"), "max"),
    "quota": "last",
}
"""How a client's values of several days are combined."""

UNITS: Final = {
    UsageApi.PRODUCE: "bytes",
    UsageApi.FETCH: "bytes",
    UsageApi.REQUEST: "ms",
    UsageApi.MUTATION: "partitions",
    UsageApi.CONNECT: "connections",
    UsageApi.USER_CONNECT: "connections",
    **{api: "requests" for api, key in KEY_OF_API.items() if key in API_RATE_KEYS},
}
"""What is counted, by API. Quotas are these units per second; for request a percentage of one core."""


@dataclass(frozen=True, slots=True)
class Report:
    """The content of a report.

    Attributes:
        made_at: ISO time.
        days: the compacted days it covers, with their completeness.
        clients: rows of `PROFILE` as dictionaries, the largest of each API first, without their series: sums over
            the days, or the largest value of a day, and the last quota.
        use: all use of each API over time.
        use_of: use over time of clients that were among the largest on some day, by `CLIENT`. Days on which such a
            client was not among the largest are missing.
        absent: requested days, or days between requested ones, that are not compacted.
        members: the teams; None: the report has none.
    """

    made_at: str
    days: tuple[CompactedDay, ...]
    clients: tuple[Mapping[str, Any], ...]
    use: Mapping[str, Timeline]
    use_of: Mapping[tuple[str, ...], Timeline]
    absent: tuple[str, ...] = ()
    members: Members | None = None

    def of_api(self, api: str) -> list[Mapping[str, Any]]:
        """The clients of one API."""
        return [client for client in self.clients if client["api"] == api]

    def totals(self) -> list[dict[str, Any]]:
        """Sums over all clients, one dictionary per API that was used."""
        found = []
        for api in UsageApi:
            clients = self.of_api(api)
            if not clients:
                continue
            names = (
                "requests",
                "offered",
                "admitted",
                "rejected",
                "rejected_units",
                "delayed",
                "throttle_ms",
            )
            sums = {name: sum(client[name] for client in clients) for name in names}
            found.append({"api": api.value, "unit": UNITS[api], "clients": len(clients), **sums})
        return found

    def teams(self) -> list[dict[str, Any]]:
        """The clients by team, as `by_team` returns them; empty without teams."""
        return by_team(self.clients, self.members) if self.members else []

    @property
    def completeness(self) -> float:
        """The completeness of the worst day, 0 to 1."""
        return min((day.completeness for day in self.days), default=0.0)

    @property
    def notes(self) -> list[str]:
        """Other reasons why days are incomplete, as text for the operator."""
        notes = [f"{day.date} was not over when it was compacted" for day in self.days if day.open]
        short = short_gateways(day.gateways for day in self.days)
        notes += [f"of {gw} only {share:.1%} on its worst day" for gw, share in short.items()]
        notes += [
            f"{gw} had its clock set back by {by_ms / 1000:.4g} s on {day.date}"
            for day in self.days
            for gw, by_ms in sorted(day.set_back_ms.items())
        ]
        return notes + [clash for day in self.days for clash in day.clashes.values()]

    @property
    def absent_text(self) -> str:
        """The absent days as text."""
        more = len(self.absent) - _NAMED_DAYS
        return ", ".join(self.absent[:_NAMED_DAYS]) + (f" and {more} more" if more > 0 else "")

    def to_json(self) -> str:
        """The report as text; shares are fractions of 1."""
        return json.dumps(
            {
                "format": FORMAT,
                "version": VERSION,
                "made_at": self.made_at,
                "days": [
                    {
                        "date": day.date,
                        "completeness": day.completeness,
                        "seconds": day.rows,
                        "keys": day.keys,
                        "open": day.open,
                        "short_gateways": short_gateways([day.gateways]),
                    }
                    for day in self.days
                ],
                "absent_days": list(self.absent),
                "totals": self.totals(),
                **self._teams_shared(),
                "clients": [self._shared(client) for client in self.clients],
            },
            indent=1,
            ensure_ascii=False,
            allow_nan=False,
        )

    def _teams_shared(self) -> dict[str, Any]:
        teams = [{name: each[name] for name in each if name != "clients"} for each in self.teams()]
        return {"teams": teams} if self.members else {}

    def _shared(self, client: Mapping[str, Any]) -> dict[str, Any]:
        requests, offered = client["requests"], client["offered"]
        return {
            **client,
            **({"team": team_name(client, self.members)} if self.members else {}),
            "unit": UNITS.get(client["api"], "units"),
            "delayed_share": client["delayed"] / requests if requests else 0.0,
            "rejected_share": client["rejected_units"] / offered if offered else 0.0,
        }


def make(
    runner: Runner,
    out: str,
    expectation: Expectation,
    first: str | None = None,
    last: str | None = None,
) -> Report:
    """The report over some compacted days.

    Args:
        runner: adds the days, part by part.
        out: the pipeline's folder.
        expectation: the gateways and the time that are expected.
        first: the first day; None: from the beginning.
        last: the last day; None: to the end.

    Raises:
        NotYetCompleteError: no day is compacted, or one has no tables.
    """
    days = compacted_days(out, first, last)
    rows = find_clients(out, days, CLIENT_USE)
    timelines = rows.divided(runner, [range(NO_BUCKET, NO_BUCKET + 1)])

    def of_part(part: ClientPart) -> Iterator[_OfPart]:
        yield _added_up_days(part.read(SUMMARY.names))

    known = with_losses(days, out, expectation)
    return _joined(
        runner.run(of_part, [*timelines, *rows.parts(runner)]), known, absent_days(known, first, last)
    )


def absent_days(days: Sequence[CompactedDay], first: str | None, last: str | None) -> tuple[str, ...]:
    """Missing days that were requested, or lie between existing days.

    Args:
        days: the existing days, by date; at least one.
        first: the first requested day, such as 2026-11-21, if any.
        last: the last one.

    Raises:
        ArgumentError: one of them is not a day.
    """
    try:
        begin, end = (date.fromisoformat(day) for day in (first or days[0].date, last or days[-1].date))
    except ValueError as exc:
        raise ArgumentError(f"--from, --to: say days as 2026-11-21: {exc}") from exc
    there = {day.date for day in days}
    all_days = ((begin + timedelta(back)).isoformat() for back in range((end - begin).days + 1))
    return tuple(day for day in all_days if day not in there)


def report_of(
    found: Iterable[pa.Table], days: Sequence[CompactedDay], *, absent: tuple[str, ...] = ()
) -> Report:
    """The report from rows of tables of clients.

    Args:
        found: rows of `SUMMARY`, day by day.
        days: the days that they cover.
        absent: see `Report`.
    """
    return _joined([_added_up_days(found)], days, absent)


@dataclass(frozen=True, slots=True)
class _OfPart:
    """A part of a report: `numbers` has a row of each of its clients; see `Report` for the others."""

    numbers: pa.Table
    use: dict[str, Timeline]
    use_of: dict[tuple[str, ...], Timeline]


def _added_up_days(found: Iterable[pa.Table]) -> _OfPart:
    """Adds the days of some clients; rows of `SUMMARY`, day by day."""
    numbers = SUMMARY.empty_table().select(_NUMBERS)
    use: dict[str, Timeline] = {}
    use_of: dict[tuple[str, ...], Timeline] = {}
    for of_day in found:
        is_client = pc.is_null(of_day.column("bins_level"))
        # Day by day, so that only one row of each client is in memory, however many days there are.
        numbers = _added_up(pa.concat_tables([numbers, of_day.filter(is_client).select(_NUMBERS)]))
        for row in of_day.filter(pc.invert(is_client)).to_pylist():
            if row["user"] is None:
                shown = use.setdefault(row["api"], Timeline())
            else:
                shown = use_of.setdefault(tuple(row[name] for name in CLIENT), Timeline())
            shown.add_all(Timeline.from_dict(row))
    return _OfPart(numbers.combine_chunks(), use, use_of)


def _joined(parts: Iterable[_OfPart], days: Sequence[CompactedDay], absent: tuple[str, ...]) -> Report:
    """The report from parts that have no client in common. All timelines are in one of the parts."""
    found = list(parts)
    clients = [client for part in found for client in part.numbers.to_pylist()]
    clients.sort(key=_largest_first)
    made_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    use = {api: shown for part in found for api, shown in part.use.items()}
    use_of = {client: shown for part in found for client, shown in part.use_of.items()}
    return Report(made_at, tuple(days), tuple(clients), use, use_of, absent)


def _added_up(numbers: pa.Table) -> pa.Table:
    """One row for each client and API; later rows are of later days."""
    # In one thread, because the order of rows determines which quota is the last.
    grouped = numbers.group_by(list(CLIENT), use_threads=False).aggregate(list(_OVER_DAYS.items()))
    names = {f"{name}_{how}": name for name, how in _OVER_DAYS.items()}
    return grouped.rename_columns([names.get(name, name) for name in grouped.column_names]).select(_NUMBERS)


def _largest_first(row: Mapping[str, Any]) -> tuple[Any, ...]:
    order: Sequence[str] = list(UsageApi)
    api = row["api"]
    known = order.index(api) if api in order else len(order)
    return known, *largest_first(row["user"], row["client_id"], row["offered"])
