"""The required rates of all clients by day, and their total use, read from the tables of clients."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.client_tables.rows import BURSTS_S, STEP_S, TARGETS, required_column
from pipeline.client_tables.tables import read_clients
from pipeline.plans.plan import TooLittle
from pipeline.recommend.doubt import NOTHING_LEFT_OUT, Doubt, LeftDays, doubts_of, left_days
from pipeline.recommend.recommendation import ClientDay, ClientHistory, entity_of
from pipeline.recommend.waiting import burst_s, kept_burst_s, kept_target
from pipeline.replay.algorithms import Algorithm
from pipeline.replay.demand import KEY_OF_API
from pipeline.storage.entity_days import ENTITY, Scope
from pipeline.storage.layout import CompactedDay
from quotas.entities import BURST_KEYS, QuotaKey
from quotas.usage_record import UsageApi

_READ: Final = (*ENTITY, "units", "active_s", "censored_s", "throttle_ms", "beside_ms", "quota", "observed")


@dataclass(frozen=True, slots=True)
class Windows:
    """How quotas are measured: samples of a rate and their length, and how mutations are."""

    num: int = 11
    ms: int = 1_000
    mutations: Algorithm = Algorithm.TOKEN_BUCKET
    burst_s: float | None = None
    """Of buckets that byte rates are to have; None: they have Kafka's window."""

    def burst_of(self, api: UsageApi) -> float:
        """What can be used at once of this API's quota, in seconds of it."""
        if self.burst_s is not None and KEY_OF_API[api] in BURST_KEYS:
            return self.burst_s
        return burst_s(api, self.num, self.ms, self.mutations)

    def column(self, api: UsageApi) -> str:
        """Where `client_day` has what this API requires."""
        return required_column(kept_burst_s(api, self.burst_of(api)))


def client_days(
    out: str,
    days: Sequence[CompactedDay],
    target: float,
    windows: Windows,
    *,
    scope: Scope = Scope.GATEWAY,
    more: Sequence[str] = (),
) -> Iterator[dict[str, Any]]:
    """Days of clients as mappings: their names, `required` for all targets, and `required_rate` for the one asked.

    Args:
        out: the pipeline's folder.
        days: which.
        target: the share that may wait; where the table has not this one, the next smaller one.
        windows: see there; where the table has not this burst, the next smaller one.
        scope: whether brokers count together, and gateways of a fleet.
        more: other columns of client_day that are wanted.
    """
    columns = sorted({windows.column(api) for api in UsageApi})
    read = read_clients(out, days, "client_day", [*_READ, *more, *columns], scope=scope)
    return days_of(read.to_batches(), target, windows)


def days_of(batches: Iterable[pa.RecordBatch], target: float, windows: Windows) -> Iterator[dict[str, Any]]:
    """The mappings of `client_days`, out of rows of `client_day`."""
    columns = {api.value: windows.column(api) for api in UsageApi}
    at = kept_target(target)
    for batch in batches:
        for row in batch.to_pylist():
            row["required"] = row[columns[row["api"]]]
            row["required_rate"] = row["required"][at]
            yield row


def left_out_of(out: str, days: Sequence[CompactedDay], more: Collection[Doubt] = ()) -> LeftDays:
    """Which clients' days of these are left out.

    Args:
        out: the pipeline's folder.
        days: of which.
        more: doubts about days that are not there.
    """
    doubts = [*doubts_of(days), *more]
    if not doubts:
        return NOTHING_LEFT_OUT
    # By gateways, also where these count together: it is a gateway that fails.
    used = read_clients(out, days, "client_day", ("date", "gw", "user", "client_id"))
    return left_days(used.to_pylist(), sorted(doubts, key=lambda doubt: (doubt.date, doubt.gateway)))


def peaks_of(out: str, days: Sequence[CompactedDay]) -> dict[tuple[str, QuotaKey], float]:
    """The most that all clients together used in ten seconds, per second, by day and key."""
    together: dict[tuple[str, QuotaKey], Any] = {}
    for row in read_clients(out, days, "total", ("date", "api", "steps")).to_pylist():
        place = row["date"].isoformat(), KEY_OF_API[UsageApi(row["api"])]
        together[place] = together.get(place, 0.0) + np.asarray(row["steps"])
    return {place: float(total.max()) / STEP_S for place, total in together.items()}


def stricter_than_asked(target: float, windows: Windows) -> list[str]:
    """For people: what the tables do not have, and what is taken instead."""
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


def gather(
    rows: Iterable[Mapping[str, Any]], left: LeftDays = NOTHING_LEFT_OUT
) -> tuple[list[ClientHistory], tuple[TooLittle, ...]]:
    """Histories of all clients, and the clients of which no day is left.

    Args:
        rows: of `client_days`, in any order.
        left: days that are left out.
    """
    found: dict[tuple[str, str, str], dict[str, list[Any]]] = {}
    for row in rows:
        client = (row["user"], row["client_id"], row["api"])
        found.setdefault(client, {}).setdefault(row["date"].isoformat(), []).append(row)
    histories = []
    too_little = []
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
            too_little.append(TooLittle(f"{api} of {_name(user, client_id, api)}", reason))
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
    return histories, tuple(too_little)


def _name(user: str, client_id: str, api: str) -> str:
    if api == UsageApi.CONNECT:
        return f"ip={client_id}"
    return (
        ",".join(filter(None, (user and f"user={user}", client_id and f"client-id={client_id}"))) or "no name"
    )


def client_day(
    date: str, rows: Sequence[Mapping[str, Any]], *, gateways: int, left_out: bool = False
) -> ClientDay:
    """A client's day over its counters. Each has quotas of its own, so the largest decides.

    Args:
        date: the day.
        rows: of `client_days`, one each; a quota of None or NaN is none.
        gateways: how many counters there are.
        left_out: whether what it required is not known.
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
    """Of a table that an older release has made, which does not say it: 0."""
    return value if value is not None and value == value else 0.0
