"""The rate that each client required on each day, and what all clients used together.

Workers find them (`find_required_rates`), `gather` puts the days of a client together.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.plans.plan import LeftOut
from pipeline.recommend.recommendation import ClientDay, ClientHistory
from pipeline.replay.demand import KEY_OF_API, Demand, demands
from pipeline.replay.dispatch import Algorithm
from pipeline.replay.kernels.deferral import required_rates
from pipeline.storage.compacted_days import CompactedDays, Work
from pipeline.storage.entity_days import ENTITY, Scope
from pipeline.storage.layout import KEY
from quotas.entities import QuotaKey
from quotas.usage_record import UsageApi

STEP_S: Final = 10
_STEPS: Final = 86_400 // STEP_S
_NUMBERS: Final = {
    "required_rate": pa.float64(),
    "active_s": pa.int32(),
    "censored_s": pa.int32(),
    "quota": pa.float64(),
    "observed": pa.bool_(),
}

REQUIRED: Final = ", ".join(
    [
        *(f"`{name}` {KEY[name]}" for name in ENTITY),
        "required_rate double, active_s int, censored_s int, quota double, observed boolean, steps array<double>",
    ]
)
"""A day of one client; or, where `steps` is set, what all clients of a worker used together in each ten seconds."""


def burst_s(
    api: UsageApi, window_num: int, window_ms: int, mutations: Algorithm = Algorithm.TOKEN_BUCKET
) -> float:
    """Seconds of quota that can be used at once: a bucket holds all its windows, a Rate passes all but one.

    Args:
        api: of which.
        window_num, window_ms: samples of a rate and their length.
        mutations: how mutations are measured.
    """
    bucket = api is UsageApi.MUTATION and mutations is Algorithm.TOKEN_BUCKET
    windows = window_num if bucket else max(1, window_num - 1)
    return windows * window_ms / 1000


def find_required_rates(
    days: CompactedDays,
    target: float,
    window_num: int,
    window_ms: int,
    *,
    scope: Scope = Scope.GATEWAY,
    mutations: Algorithm = Algorithm.TOKEN_BUCKET,
) -> Any:
    """Clients' days as a DataFrame with the columns of `REQUIRED`; see `rate_finder` for the numbers."""
    finder = rate_finder(target, window_num, window_ms, mutations)
    return days.map_entities(finder, REQUIRED, scope=scope, arrays=("censored", "quota", "observed"))


def rate_finder(
    target: float, window_num: int, window_ms: int, mutations: Algorithm = Algorithm.TOKEN_BUCKET
) -> Work:
    """What each worker does with its batches of clients' days: rows of `REQUIRED`. Needs no Spark.

    Args:
        target: the share of units that may wait.
        window_num, window_ms: samples of a rate and their length.
        mutations: how mutations are measured.
    """

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        together = Together()
        for batch in batches:
            for demand in demands(batch):
                yield day_rates(demand, target, burst_s(demand.api, window_num, window_ms, mutations))
                together.add(demand)
        yield from together.rows(_NUMBERS)

    return work


def day_rates(demand: Demand, target: float, burst: float) -> pa.RecordBatch:
    """Clients' days, as rows of `REQUIRED`."""
    columns: dict[str, Any] = {name: demand.names.column(name) for name in ENTITY}
    columns["required_rate"] = required_rates(demand.by_second(), target, burst_s=burst)
    columns["active_s"] = np.diff(demand.offsets).astype(np.int32)
    columns["censored_s"] = demand.sums(demand.censored).astype(np.int32)
    some = np.diff(demand.offsets) > 0
    lasts = demand.offsets[1:][some] - 1
    quotas, observed = np.full(len(demand), np.nan), np.zeros(len(demand), bool)
    quotas[some], observed[some] = demand.quota[lasts], demand.observed[lasts] > 0
    columns["quota"] = pa.array(quotas, mask=~np.isfinite(quotas))
    columns["observed"] = pa.array(observed)
    columns["steps"] = pa.nulls(len(demand), pa.list_(pa.float64()))
    return pa.RecordBatch.from_pydict(columns)


class Together:
    """What all clients of a worker use together in each ten seconds, by day and API."""

    def __init__(self) -> None:
        self._steps: dict[tuple[datetime.date, str], Any] = {}

    def add(self, demand: Demand) -> None:
        """Counts these clients."""
        dates = demand.names.column("date").to_pylist()
        for date in set(dates):
            rows = np.repeat([each == date for each in dates], np.diff(demand.offsets))
            used = np.bincount(demand.seconds[rows] // STEP_S, weights=demand.units[rows], minlength=_STEPS)
            total = self._steps.setdefault((date, demand.api.value), np.zeros(_STEPS))
            total += used[:_STEPS]

    def rows(self, numbers: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        """One row for each day and API, nothing if there was none.

        Args:
            numbers: columns between those of `ENTITY` and `steps`, and their types; they are zero.
        """
        rows = len(self._steps)
        if rows:
            columns: dict[str, Any] = {
                "date": pa.array([date for date, _ in self._steps], pa.date32()),
                **{name: pa.array([""] * rows) for name in ("gw", "user", "client_id")},
                "api": pa.array([api for _, api in self._steps]),
                "node": pa.array([-1] * rows, pa.int32()),
                **{name: pa.array([0] * rows).cast(kind) for name, kind in numbers.items()},
                "steps": pa.array(list(self._steps.values()), pa.list_(pa.float64())),
            }
            yield pa.RecordBatch.from_pydict(columns)


def gather(
    rows: Iterable[Any], doubtful: Mapping[str, str]
) -> tuple[list[ClientHistory], dict[QuotaKey, float], tuple[LeftOut, ...]]:
    """Histories of all clients, and per key the most that all used together, per second; and who was left out.

    Args:
        rows: of `REQUIRED`, in any order, as mappings.
        doubtful: gateways whose records are not to be trusted, and why. What their clients need is not known, so
            these are left out.
    """
    through: dict[str, set[tuple[str, str, str]]] = {gw: set() for gw in doubtful}
    found: dict[tuple[str, str, str], dict[str, list[Any]]] = {}
    together: dict[tuple[str, str], Any] = {}
    for row in rows:
        date = row["date"].isoformat()
        if row["steps"] is not None:
            total = together.setdefault((date, row["api"]), np.zeros(_STEPS))
            total += np.asarray(row["steps"])
            continue
        client = (row["user"], row["client_id"], row["api"])
        if row["gw"] in through:
            through[row["gw"]].add(client)
        found.setdefault(client, {}).setdefault(date, []).append(row)
    histories = [
        ClientHistory(
            user=user,
            client_id=client_id,
            api=UsageApi(api),
            key=KEY_OF_API[UsageApi(api)],
            days=tuple(
                client_day(date, of_day, gateways=len({(row["gw"], row["node"]) for row in of_day}))
                for date, of_day in sorted(days.items())
            ),
        )
        for (user, client_id, api), days in sorted(found.items())
        if not any((user, client_id, api) in clients for clients in through.values())
    ]
    peaks: dict[QuotaKey, float] = {}
    for (_, api), total in together.items():
        key = KEY_OF_API[UsageApi(api)]
        peaks[key] = max(peaks.get(key, 0.0), float(total.max()) / STEP_S)
    left_out = tuple(
        LeftOut(
            gw,
            doubtful[gw],
            tuple(f"{api} of {_name(user, client_id)}" for user, client_id, api in sorted(clients)),
        )
        for gw, clients in sorted(through.items())
    )
    return histories, peaks, left_out


def _name(user: str, client_id: str) -> str:
    return (
        ",".join(filter(None, (user and f"user={user}", client_id and f"client-id={client_id}"))) or "no name"
    )


def client_day(date: str, rows: Sequence[Mapping[str, Any]], *, gateways: int) -> ClientDay:
    """A client's day over its gateways (in scope broker: brokers). Each has quotas of its own, the largest decides.

    Args:
        date: the day.
        rows: the numbers of `REQUIRED`, one each; a quota of None or NaN is none.
        gateways: how many there are.
    """
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
    )
