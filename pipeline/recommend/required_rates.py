"""The required rates of all clients by day, and their total use, read from the tables of clients."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import pyarrow as pa

from pipeline.client_tables.rows import BURSTS_S, STEP_S, TARGETS, required_column
from pipeline.client_tables.tables import ClientPart, ClientRows, find_clients
from pipeline.plans.plan import TooLittle
from pipeline.recommend.doubt import (
    NOTHING_LEFT_OUT,
    Client,
    Doubt,
    LeftDays,
    Place,
    clients_at,
    doubts_of,
    left_days,
    place_of,
)
from pipeline.recommend.recommendation import ClientDay, ClientHistory, entity_of, least_active_s
from pipeline.recommend.waiting import burst_s, kept_burst_s, kept_target
from pipeline.replay.algorithms import Algorithm
from pipeline.replay.demand import API_OF_KEY, KEY_OF_API
from pipeline.spark.runner import Runner
from pipeline.storage.entity_days import ENTITY
from pipeline.storage.layout import SEEN_FOR_ONLY, CompactedDay
from quotas.entities import BURST_KEYS, QuotaKey
from quotas.usage_record import UsageApi

_ROWS_AT_ONCE: Final = 2_000
_TOTALS_AT_ONCE: Final = 100
_HOURS: Final = 24
_USED: Final = ["date", "gw", "user", "client_id"]
_READ: Final = (*ENTITY, "units", "active_s", "censored_s", "throttle_ms", "beside_ms", "quota", "observed")


@dataclass(frozen=True, slots=True)
class Windows:
    """How quotas are measured: number and length of a rate's samples, and the algorithm for mutations."""

    num: int = 11
    ms: int = 1_000
    mutations: Algorithm = Algorithm.TOKEN_BUCKET
    burst_s: float | None = None
    """Burst of the planned buckets of byte rates, in seconds; None: byte rates have Kafka's window."""

    def burst_of(self, api: UsageApi) -> float:
        """The part of this API's quota that can be used at once, in seconds of quota."""
        if self.burst_s is not None and KEY_OF_API[api] in BURST_KEYS:
            return self.burst_s
        return burst_s(api, self.num, self.ms, self.mutations)

    def column(self, api: UsageApi) -> str:
        """The column of `client_day` with the required rates of this API."""
        return required_column(kept_burst_s(api, self.burst_of(api)))


@dataclass(frozen=True, slots=True)
class ClientDays:
    """Days of clients, read part by part.

    Attributes:
        parts: parts of client_day.
        target: the share that may wait. If the table does not have it, the next smaller one is used.
        windows: see `Windows`. If the table does not have this burst, the next smaller one is used.
        left: the days that are left out.
    """

    parts: Sequence[ClientPart]
    target: float
    windows: Windows
    left: LeftDays = NOTHING_LEFT_OUT

    def read(self, part: ClientPart, more: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """Rows as mappings: names, `required` for all targets, and `required_rate` for the wanted target.

        Args:
            part: one of `parts`.
            more: further columns of client_day.
        """
        columns = sorted({self.windows.column(api) for api in UsageApi})
        for table in part.read([*_READ, *more, *columns]):
            yield from days_of(table.to_batches(_ROWS_AT_ONCE), self.target, self.windows)


def days_of(batches: Iterable[pa.RecordBatch], target: float, windows: Windows) -> Iterator[dict[str, Any]]:
    """Makes the mappings of `ClientDays.read` from rows of `client_day`."""
    columns = {api.value: windows.column(api) for api in UsageApi}
    at = kept_target(target)
    for batch in batches:
        for row in batch.to_pylist():
            row["required"] = row[columns[row["api"]]]
            row["required_rate"] = row["required"][at]
            yield row


def left_out_of(
    runner: Runner, out: str, days: Sequence[CompactedDay], more: Collection[Doubt] = ()
) -> LeftDays:
    """Finds which clients' days are left out.

    Args:
        runner: searches for the clients.
        out: the pipeline's folder.
        days: the days of the history.
        more: doubts about days that do not exist.
    """
    doubts = sorted([*doubts_of(days), *more], key=lambda doubt: (doubt.date, doubt.gateway))
    if not doubts:
        return NOTHING_LEFT_OUT
    # By gateway, even if gateways count together: it is a single gateway that fails.
    rows = find_clients(out, days, "client_day")
    places = {place_of(doubt) for doubt in doubts}

    def used(part: ClientPart) -> Iterator[dict[Place, set[Client]]]:
        for table in part.read(_USED):
            yield clients_at(table.group_by(_USED).aggregate([]).to_pylist(), places)

    found: dict[Place, set[Client]] = {place: set() for place in places}
    for some in runner.run(used, rows.parts(runner)):
        for place, clients in some.items():
            found[place] |= clients
    return left_days(found, doubts)


def peaks_of(runner: Runner, out: str, days: Sequence[CompactedDay]) -> dict[tuple[str, QuotaKey], float]:
    """The most that all clients together used in ten seconds, per second, by day and key."""
    return {place: max(hours) for place, hours in hourly_peaks(runner, out, days).items()}


def hourly_peaks(
    runner: Runner, out: str, days: Sequence[CompactedDay]
) -> dict[tuple[str, QuotaKey], list[float]]:
    """As `peaks_of`, for each hour of the day."""
    by_day = find_clients(out, days, "total").by_day()

    def peaks(rows: ClientRows) -> Iterator[dict[tuple[str, QuotaKey], list[float]]]:
        together: dict[tuple[str, QuotaKey], Any] = {}
        for table in rows.read(("date", "api", "steps")):
            for batch in table.to_batches(_TOTALS_AT_ONCE):
                steps = batch.column("steps")
                for date, api, own in zip(
                    *(batch.column(at).to_pylist() for at in range(2)), steps, strict=True
                ):
                    key = KEY_OF_API[UsageApi(api)]
                    if api != API_OF_KEY[key]:
                        continue
                    place = date.isoformat(), key
                    together[place] = together.get(place, 0.0) + own.values.to_numpy()
        yield {
            place: (total.reshape(_HOURS, -1).max(axis=1) / STEP_S).tolist()
            for place, total in together.items()
        }

    return {place: peak for found in runner.run(peaks, by_day) for place, peak in found.items()}


def stricter_than_asked(target: float, windows: Windows) -> list[str]:
    """Notes for the operator: wanted values that the tables do not have, and the stricter ones that are used."""
    told = []
    if TARGETS[kept_target(target)] != target:
        told.append(
            f"--target {target:g}: required rates are kept for {TARGETS[kept_target(target)]:g}, which is taken"
        )
    for api in (UsageApi.PRODUCE, UsageApi.MUTATION):
        wanted = windows.burst_of(api)
        if wanted not in BURSTS_S:
            told.append(f"{api}: bursts of {wanted:g} s are taken for {kept_burst_s(api, wanted)} s")
    return told


ClientApi: TypeAlias = tuple[str, str, str]
"""User, client id and API."""


def gather(
    rows: Iterable[Mapping[str, Any]], left: LeftDays = NOTHING_LEFT_OUT
) -> tuple[list[ClientHistory], dict[ClientApi, TooLittle]]:
    """Histories of all clients, and the clients without remaining days; both in the order of `ClientApi`.

    Args:
        rows: of `ClientDays.read`, in any order.
        left: the days that are left out.
    """
    found: dict[ClientApi, dict[str, list[Any]]] = {}
    for row in rows:
        client = (row["user"], row["client_id"], row["api"])
        found.setdefault(client, {}).setdefault(row["date"].isoformat(), []).append(row)
    histories = []
    too_little = {}
    for (user, client_id, api), days in sorted(found.items()):
        why = {date: gateways for date in sorted(days) if (gateways := left.why(user, client_id, date))}
        key = KEY_OF_API[UsageApi(api)]
        history = ClientHistory(user, client_id, UsageApi(api), key, ())
        if len(why) == len(days) and entity_of(history) is None:
            continue
        if len(why) == len(days):
            reason = ", ".join(
                f"{date} left out for {' and '.join(gateways)}" for date, gateways in why.items()
            )
            too_little[user, client_id, api] = TooLittle(f"{api} of {_name(user, client_id, api)}", reason)
            continue
        of_days = (
            client_day(
                date,
                of_day,
                gateways=len({(row["gw"], row["node"]) for row in of_day}),
                left_out=date in why,
            )
            for date, of_day in sorted(days.items())
        )
        histories.append(replace(history, days=tuple(of_days)))
    return histories, too_little


def known_enough(
    histories: Sequence[ClientHistory], windows: Windows, margin: float
) -> tuple[list[ClientHistory], dict[ClientApi, TooLittle]]:
    """Histories from which a quota can be made, and the clients that were seen too briefly for one.

    Args:
        histories: of `gather`.
        windows: how quotas are measured.
        margin: see `RecommendationSettings`.
    """
    enough = []
    too_little = {}
    for history in histories:
        used = [day for day in history.days if not day.left_out and day.active_s]
        least_s = least_active_s(history.api, windows.burst_of(history.api), margin)
        if len(used) != 1 or used[0].active_s >= least_s or entity_of(history) is None:
            enough.append(history)
            continue
        client = history.user, history.client_id, history.api.value
        reason = f"{SEEN_FOR_ONLY}{used[0].active_s} s, on {used[0].date}"
        too_little[client] = TooLittle(f"{history.api} of {_name(*client)}", reason)
    return enough, too_little


def _name(user: str, client_id: str, api: str) -> str:
    if api == UsageApi.CONNECT:
        return f"ip={client_id}"
    return (
        ",".join(filter(None, (user and f"user={user}", client_id and f"client-id={client_id}"))) or "no name"
    )


def client_day(
    date: str, rows: Sequence[Mapping[str, Any]], *, gateways: int, left_out: bool = False
) -> ClientDay:
    """A client's day over all its counters. Each counter has a quota of its own, so the largest rate counts.

    Args:
        date: the day.
        rows: of `ClientDays.read`, one for each counter; a quota of None or NaN means none.
        gateways: the number of counters.
        left_out: whether its required rate is not known.
    """
    throttle_ms, beside_ms = (
        sum(_number(row[name]) for row in rows) for name in ("throttle_ms", "beside_ms")
    )
    limited = [row for row in rows if row["quota"] is not None and row["quota"] == row["quota"]]
    quotas = [row["quota"] for row in limited if not row["observed"]] or [row["quota"] for row in limited]
    return ClientDay(
        date=date,
        required_rate=float(max(row["required_rate"] for row in rows)),
        active_s=int(sum(row["active_s"] for row in rows)),
        censored_s=int(sum(row["censored_s"] for row in rows)),
        quota=float(min(quotas)) if quotas else None,
        observed=bool(limited) and all(row["observed"] for row in limited),
        gateways=gateways,
        beside=min(1.0, beside_ms / throttle_ms) if throttle_ms else 0.0,
        left_out=left_out,
    )


def _number(value: float | None) -> float:
    """A number of the table; 0 if an older release wrote the table without it."""
    return value if value is not None and value == value else 0.0
