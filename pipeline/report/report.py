"""What a report holds, and making it of compacted days: in the workers per client, on the driver for all.

What is incomplete is part of it: a report over lost records must not look like a quiet day.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import JobError
from pipeline.report.profile import (
    CLIENT,
    PARTIAL,
    PROFILE,
    READ,
    as_ddl,
    merge_profiles,
    profile_rows,
)
from pipeline.report.timelines import SUMMARY, Timeline, largest_first, summarise
from pipeline.storage.compacted_days import CompactedDays
from pipeline.storage.compacted_files import Piece, buckets_of
from pipeline.storage.coverage import Expectation, short_gateways
from pipeline.storage.index_files import with_losses
from pipeline.storage.layout import CompactedDay
from quotas.usage_record import UsageApi

FORMAT: Final = "sluice-report"
VERSION: Final = 1
_NAMED_DAYS: Final = 7

UNITS: Final = {
    UsageApi.PRODUCE: "bytes",
    UsageApi.FETCH: "bytes",
    UsageApi.REQUEST: "ms",
    UsageApi.MUTATION: "partitions",
    UsageApi.CONNECT: "connections",
}
"""What is counted, by API; quotas are these per second, for request a percentage of one core."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was found.

    Attributes:
        made_at: ISO time.
        days: the compacted days it covers, with their completeness.
        clients: rows of `PROFILE` as dictionaries, the largest of each API first, without their series.
        use: all use of each API over time.
        use_of: that of at least the first `STACKED` clients of each API, by `CLIENT`.
        absent: days between the first and the last one asked for that are not compacted.
    """

    made_at: str
    days: tuple[CompactedDay, ...]
    clients: tuple[Mapping[str, Any], ...]
    use: Mapping[str, Timeline]
    use_of: Mapping[tuple[str, ...], Timeline]
    absent: tuple[str, ...] = ()

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

    @property
    def completeness(self) -> float:
        """Of the worst day, 0 to 1."""
        return min((day.completeness for day in self.days), default=0.0)

    @property
    def notes(self) -> list[str]:
        """What else keeps the days from being whole, for people."""
        notes = [f"{day.date} was not over when it was compacted" for day in self.days if day.open]
        short = short_gateways(day.gateways for day in self.days)
        notes += [f"of {gw} only {share:.1%} on its worst day" for gw, share in short.items()]
        return notes + [clash for day in self.days for clash in day.clashes]

    @property
    def absent_text(self) -> str:
        """The absent days, for people."""
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
                "clients": [_shared(client) for client in self.clients],
            },
            indent=1,
            ensure_ascii=False,
            allow_nan=False,
        )


def _shared(client: Mapping[str, Any]) -> dict[str, Any]:
    requests, offered = client["requests"], client["offered"]
    return {
        **client,
        "unit": UNITS.get(client["api"], "units"),
        "delayed_share": client["delayed"] / requests if requests else 0.0,
        "rejected_share": client["rejected_units"] / offered if offered else 0.0,
    }


def make(
    spark: Any, out: str, expectation: Expectation, first: str | None = None, last: str | None = None
) -> Report:
    """The report over some compacted days.

    Args:
        spark: a SparkSession.
        out: the pipeline's folder.
        expectation: what records should be there.
        first: first day, else from the beginning.
        last: last day, else to the end.

    Raises:
        FileNotFoundError: no day is compacted.
    """
    days = CompactedDays.of(spark, out, first, last)
    found = summaries(days).toArrow()
    known = with_losses(days.days, out, expectation, spark)
    return report_of(found, known, absent=absent_days(known, first, last))


def absent_days(days: Sequence[CompactedDay], first: str | None, last: str | None) -> tuple[str, ...]:
    """Days that were asked for, or lie between others, and are not there.

    Args:
        days: those that are there, by date; at least one.
        first: the first one asked for, if any was; 2026-11-21.
        last: the last one.

    Raises:
        JobError: these are no days.
    """
    try:
        begin, end = (date.fromisoformat(day) for day in (first or days[0].date, last or days[-1].date))
    except ValueError as exc:
        raise JobError(f"--from, --to: say days as 2026-11-21: {exc}") from exc
    there = {day.date for day in days}
    all_days = ((begin + timedelta(back)).isoformat() for back in range((end - begin).days + 1))
    return tuple(day for day in all_days if day not in there)


def report_of(found: pa.Table, days: Sequence[CompactedDay], *, absent: tuple[str, ...] = ()) -> Report:
    """The report from what the workers found.

    Args:
        found: rows of `SUMMARY`.
        days: which it covers.
        absent: see `Report`.
    """
    is_client = pc.is_null(found.column("bins_level"))
    names = [name for name in found.column_names if not name.startswith("bins_")]
    clients = sorted(found.filter(is_client).select(names).to_pylist(), key=_largest_first)
    use: dict[str, Timeline] = {}
    use_of: dict[tuple[str, ...], Timeline] = {}
    for row in found.filter(pc.invert(is_client)).to_pylist():
        if row["user"] is None:
            use.setdefault(row["api"], Timeline()).add_all(Timeline.from_dict(row))
        else:
            use_of[tuple(row[name] for name in CLIENT)] = Timeline.from_dict(row)
    made_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Report(made_at, tuple(days), tuple(clients), use, use_of, absent)


def summaries(days: CompactedDays) -> Any:
    """A DataFrame of `SUMMARY`: a client and API each row, and timelines.

    Clients beyond the gateways' cap are in one row called `~other`.
    """
    if days.here:
        return days.deal(_summaries_of, as_ddl(SUMMARY), days_apart=False)
    partial = days.frame().select(*READ).mapInArrow(profile_rows, as_ddl(PARTIAL))
    profiles = partial.groupBy(*CLIENT).applyInArrow(_merge, as_ddl(PROFILE))
    return profiles.mapInArrow(summarise, as_ddl(SUMMARY))


def _summaries_of(pieces: list[Piece]) -> Iterator[pa.RecordBatch]:
    def profiles() -> Iterator[pa.RecordBatch]:
        # Bucket by bucket: what is held is a thirty-second of the clients, in steps of ten seconds.
        for _, rows in buckets_of(pieces, READ):
            yield merge_profiles(pa.Table.from_batches(profile_rows(rows), schema=PARTIAL))

    return summarise(profiles())


def _merge(table: pa.Table) -> pa.Table:
    return pa.Table.from_batches([merge_profiles(table)])


def _largest_first(row: Mapping[str, Any]) -> tuple[Any, ...]:
    order: Sequence[str] = list(UsageApi)
    api = row["api"]
    known = order.index(api) if api in order else len(order)
    return known, *largest_first(row["user"], row["client_id"], row["offered"])
