"""Would the quotas of earlier days have fitted the next, and those of other rules?

Workers reduce each client's day to a few numbers (`day_stats`), from which the rules choose
(`pipeline.recommend.backtest_rules`), and then replay the days that are judged with what was chosen (`shares_of`).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from pipeline.recommend.backtest_rules import (
    DAY_NUMBERS,
    RECORDED,
    Evaluate,
    Judged,
    Known,
    Ships,
    backtest,
)
from pipeline.recommend.recommendation import ClientDay, ClientHistory, RecommendationSettings, entry_of
from pipeline.recommend.required_rates import STEP_S, Together, burst_s, client_day, day_rates
from pipeline.replay.demand import KEY_OF_API, Demand, demands
from pipeline.replay.kernels.deferral import deferred
from pipeline.replay.kernels.ragged import Floats, Ragged
from pipeline.storage.compacted_days import CompactedDays, Work, collected
from pipeline.storage.entity_days import ENTITY, Scope
from pipeline.storage.layout import KEY
from quotas.entities import QuotaKey
from quotas.usage_record import UsageApi

_DAY_S: Final = 86_400

STATS: Final = ", ".join(
    [
        *(f"`{name}` {KEY[name]}" for name in ENTITY),
        *(f"`{name}` double" for name in (*DAY_NUMBERS, *RECORDED)),
        "steps array<double>",
    ]
)
"""A client's day, or what all used together, as Spark DDL; see `required_rates.REQUIRED`."""


SHARES: Final = ", ".join([*(f"`{name}` {KEY[name]}" for name in ENTITY), "shares array<double>"])


def day_stats(demand: Demand, target: float) -> pa.RecordBatch:
    """One batch of clients' days, as rows of `STATS`; days without use are left out."""
    ragged = demand.by_second()
    rates = day_rates(demand, target, burst_s(demand.api, 11, 1_000))
    required = rates.column("required_rate").to_numpy()
    used = np.flatnonzero(required > 0)
    numbers = np.array([_numbers(*ragged.of(i)) for i in used.tolist()]).reshape(
        len(used), len(DAY_NUMBERS) - 1
    )
    columns: dict[str, Any] = {name: demand.names.column(name).take(pa.array(used)) for name in ENTITY}
    columns["required_rate"] = required[used]
    columns |= {name: numbers[:, i] for i, name in enumerate(DAY_NUMBERS[1:])}
    columns |= {name: rates.column(name).take(pa.array(used)).cast(pa.float64()) for name in RECORDED}
    columns["steps"] = pa.nulls(len(used), pa.list_(pa.float64()))
    return pa.RecordBatch.from_pydict(columns)


def _numbers(t_ms: Any, units: Floats) -> list[float]:
    """`DAY_NUMBERS` after the required rate."""
    seconds = t_ms // 1000
    by_second = np.bincount(seconds, weights=units, minlength=_DAY_S)[:_DAY_S]
    active = by_second[by_second > 0]
    minutes = by_second.reshape(-1, 60).sum(axis=1) / 60
    total = float(units.sum())
    return [
        total,
        total / _DAY_S,
        *np.percentile(active, (95, 99)).tolist(),
        float(active.max()),
        float(by_second.reshape(-1, 10).sum(axis=1).max() / 10),
        float(minutes.max()),
        *np.percentile(minutes, (90, 99)).tolist(),
    ]


Client: TypeAlias = tuple[str, int, str, str, str]
"""Gateway, broker, user, client id, API: what has a quota's counter of its own."""


@dataclass(frozen=True, slots=True)
class History:
    """Days of clients as arrays over (client, day).

    Attributes:
        clients: and the place of each.
        dates: of all days.
        known: see there.
        peaks: the most that all used together on a day, per second.
    """

    clients: dict[Client, int]
    dates: list[datetime.date]
    known: Known
    peaks: Mapping[tuple[datetime.date, QuotaKey], float]

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], doubtful: Collection[str] = ()) -> History:
        """Out of rows of `STATS`, in any order; without the clients of doubtful gateways."""
        together: dict[tuple[datetime.date, str], Floats] = {}
        listed = []
        for row in rows:
            if row["steps"] is None:
                listed.append(row)
            else:
                # Several workers, one after the other.
                place = row["date"], row["api"]
                together[place] = together.get(place, 0.0) + np.asarray(row["steps"])
        left_out = {client_of(row)[2:] for row in listed if row["gw"] in doubtful}
        listed = [row for row in listed if client_of(row)[2:] not in left_out]
        clients = {client: i for i, client in enumerate(sorted({client_of(row) for row in listed}))}
        dates = sorted({row["date"] for row in listed})
        names = (*DAY_NUMBERS, *RECORDED)
        known = {name: np.full((len(clients), len(dates)), np.nan) for name in names}
        for row in listed:
            client, day = clients[client_of(row)], dates.index(row["date"])
            for name in names:
                known[name][client, day] = np.nan if row[name] is None else row[name]
        peaks = {
            (date, KEY_OF_API[UsageApi(api)]): float(total.max()) / STEP_S
            for (date, api), total in together.items()
        }
        return cls(clients, dates, known, peaks)


def client_of(row: Mapping[str, Any]) -> Client:
    """The client of a row."""
    return row["gw"], row["node"], row["user"], row["client_id"], row["api"]


def recommender(
    history: History, settings: RecommendationSettings, capacity: Mapping[QuotaKey, float]
) -> Ships:
    """The rule that makes plans, on days of a history.

    Args:
        history: of which days are given.
        settings: how to recommend.
        capacity: what the cluster can take.
    """
    known, dates = history.known, [date.isoformat() for date in history.dates]
    entities: dict[tuple[str, str, str], list[int]] = {}
    for (_, _, user, client_id, api), place in history.clients.items():
        entities.setdefault((user, client_id, api), []).append(place)

    def days_of(places: list[int], first: int, end: int) -> Iterator[ClientDay]:
        for day in range(first, end):
            there = [place for place in places if np.isfinite(known["required_rate"][place, day])]
            if there:
                rows = [{name: known[name][place, day] for name in _OF_A_DAY} for place in there]
                yield client_day(dates[day], rows, gateways=len(there))

    def ships(first: int, end: int, before: Floats) -> Floats:
        chosen = np.full(len(history.clients), np.nan)
        for (user, client_id, api), places in entities.items():
            days = tuple(days_of(places, first, end))
            if not days:
                continue
            key = KEY_OF_API[UsageApi(api)]
            planned = before[places[0]]
            client = ClientHistory(
                user, client_id, UsageApi(api), key, days, None if np.isnan(planned) else float(planned)
            )
            peaks = [
                history.peaks[date, key] for date in history.dates[first:end] if (date, key) in history.peaks
            ]
            entry = entry_of(client, settings, limit=capacity.get(key), peak=max(peaks, default=None))
            if entry is not None:
                chosen[places] = entry.value
        return chosen

    return ships


_OF_A_DAY: Final = ("required_rate", *RECORDED)

Table: TypeAlias = dict[tuple[Client, datetime.date], Floats]
"""Candidate quotas, or their shares, of a client on a day."""


def shares_of(demand: Demand, quotas: Table) -> Table:
    """Shares of units that would have waited, for those of the demand's clients that have candidates.

    Args:
        demand: any days of clients.
        quotas: > 0, the same number for all.
    """
    ragged = demand.by_second()
    totals = ragged.total_units()
    found = {}
    for i, row in enumerate(demand.names.to_pylist()):
        place = client_of(row), row["date"]
        if place in quotas:
            one = Ragged(np.array([0, ragged.lengths[i]]), *ragged.of(i), np.empty(0))
            waits = deferred(one, quotas[place], burst_s=burst_s(demand.api, 11, 1_000))
            found[place] = waits.throttled_units[0] / totals[i]
    return found


def evaluator(history: History, tested: int, replay: Callable[[Table], Iterable[Table]]) -> Evaluate:
    """Replays quotas given as an array.

    Args:
        history: its clients and days are those of the array.
        tested: the last days.
        replay: `shares_of` over all the demand of those days, in parts.
    """
    dates = history.dates[-tested:]

    def evaluate(quotas: Floats) -> Floats:
        table = {
            # A rule may have no quota for a client that others have one for.
            (client, date): np.maximum(np.nan_to_num(quotas[i, day], nan=1.0), 1e-9)
            for client, i in history.clients.items()
            for day, date in enumerate(dates)
            if np.isfinite(quotas[i, day]).any()
        }
        shares = np.full(quotas.shape, np.nan)
        for part in replay(table):
            for (client, date), found in part.items():
                shares[history.clients[client], dates.index(date)] = found
        shares[np.isnan(quotas)] = np.nan
        return shares

    return evaluate


def markdown(plain: Sequence[Judged], equal: Sequence[Judged], target: float) -> str:
    """Both tables."""
    head = (
        f"| rule | mean share that waits | clients above {2 * target:.0%} | of all units | allocated / oracle"
    )
    lines = []
    for horizon in sorted({judged.horizon for judged in plain}):
        lines += ["", f"Quotas that stay for {horizon} day{'s' * (horizon > 1)}:", ""]
        lines += [f"{head} (geometric, sum) | factor |", "|---|---|---|---|---|---|"]
        lines += [_line(judged) for judged in plain if judged.horizon == horizon]
    lines = lines[1:]
    lines += [
        "",
        f"At equal harm: each rule times the factor, found in hindsight, with which the mean share is {target:.0%}.",
        "Rules that are not listed never get there.",
    ]
    for horizon in sorted({judged.horizon for judged in equal}):
        lines += ["", f"Quotas that stay for {horizon} day{'s' * (horizon > 1)}:", ""]
        lines += [f"{head} (geometric, sum) | factor |", "|---|---|---|---|---|---|"]
        of_horizon = [judged for judged in equal if judged.horizon == horizon]
        lines += [_line(judged) for judged in sorted(of_horizon, key=lambda judged: judged.geometric)]
    return "\n".join(lines) + "\n"


def _line(judged: Judged) -> str:
    return (
        f"| {judged.name} | {judged.mean_throttled:.2%} | {judged.above:.1%} | {judged.of_units:.2%} "
        f"| {judged.geometric:.2f} / {judged.by_sum:.2f} | {judged.factor:.3g} |"
    )


def stats_of(target: float) -> Work:
    """What each worker does with its batches of clients' days: rows of `STATS`. Needs no Spark."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        together = Together()
        for batch in batches:
            for demand in demands(batch):
                yield day_stats(demand, target)
                together.add(demand)
        yield from together.rows(dict.fromkeys((*DAY_NUMBERS, *RECORDED), pa.float64()))

    return work


def _share_rows_of(quotas: Table) -> Work:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for demand in demands(batch):
                found = shares_of(demand, quotas)
                rows = [(client_of(row), row["date"]) for row in demand.names.to_pylist()]
                kept = [i for i, place in enumerate(rows) if place in found]
                names = demand.names.take(pa.array(kept, pa.int64()))
                shares = pa.array([found[rows[i]] for i in kept], pa.list_(pa.float64()))
                yield pa.RecordBatch.from_arrays([*names.columns, shares], names=[*ENTITY, "shares"])

    return work


def judged_days(
    days: CompactedDays,
    tested: int,
    settings: RecommendationSettings,
    *,
    scope: Scope = Scope.GATEWAY,
    capacity: Mapping[QuotaKey, float] | None = None,
    horizons: Sequence[int] = (1,),
    doubtful: Collection[str] = (),
) -> tuple[list[Judged], list[Judged]]:
    """The last days judged by Spark; see `pipeline.recommend.backtest_rules.backtest`.

    Args:
        days: at least one more than are judged.
        tested: how many of the last days are judged.
        settings: how to recommend; its target is that of all rules.
        scope: whether brokers count together.
        capacity: what the cluster can take.
        horizons: see `backtest`.
        doubtful: gateways whose clients are left out.
    """
    arrays = ("censored", "quota", "observed")
    stats = days.map_entities(stats_of(settings.target), STATS, scope=scope, arrays=arrays)
    history = History.of(collected(stats), doubtful)
    late = days.since(days.days[-tested].date)

    def replay(quotas: Table) -> Iterator[Table]:
        for row in collected(late.map_entities(_share_rows_of(quotas), SHARES, scope=scope)):
            yield {(client_of(row), row["date"]): np.array(row["shares"])}

    return backtest(
        history.known,
        tested,
        settings.target,
        evaluator(history, tested, replay),
        recommender(history, settings, capacity or {}),
        horizons=horizons,
    )
