"""Runs the rules of a backtest over days and writes its tables.

The rules (`pipeline.recommend.backtest_rules`) choose from what the tables of clients say of each day, and are judged
by what the same tables say would have waited with what was chosen. No Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from pipeline.client_tables.rows import TARGETS
from pipeline.recommend.backtest_rules import (
    DAY_NUMBERS,
    RECORDED,
    Evaluate,
    Judged,
    Known,
    Ships,
    backtest,
)
from pipeline.recommend.doubt import NOTHING_LEFT_OUT, LeftDays
from pipeline.recommend.recommendation import ClientDay, ClientHistory, RecommendationSettings, entry_of
from pipeline.recommend.required_rates import client_day
from pipeline.recommend.waiting import shares_waiting
from pipeline.replay.demand import KEY_OF_API
from pipeline.replay.kernels.ragged import Floats
from quotas.entities import QuotaKey
from quotas.usage_record import UsageApi

READ: Final = DAY_NUMBERS[2:]
"""Columns of client_day that are read besides those of `required_rates.client_days`."""

Client: TypeAlias = tuple[str, int, str, str, str]
"""Gateway, broker, user, client id, API: what has a quota's counter of its own."""


@dataclass(frozen=True, slots=True)
class History:
    """Days of clients as arrays over (client, day).

    Attributes:
        clients: and the place of each.
        dates: of all days, as 2026-11-21.
        known: see there.
        required: the rates required for `TARGETS`, over (client, day, target); NaN where the client was not seen.
        peaks: the most that all used together on a day, per second.
    """

    clients: dict[Client, int]
    dates: list[str]
    known: Known
    required: Floats
    peaks: Mapping[tuple[str, QuotaKey], float]

    @classmethod
    def of(
        cls,
        rows: Iterable[Mapping[str, Any]],
        peaks: Mapping[tuple[str, QuotaKey], float],
        left: LeftDays = NOTHING_LEFT_OUT,
    ) -> History:
        """Out of rows of `required_rates.client_days`, in any order; days that are left out count as not seen."""
        listed = list(rows)
        dates = sorted({row["date"].isoformat() for row in listed})
        listed = [
            row for row in listed if not left.why(row["user"], row["client_id"], row["date"].isoformat())
        ]
        clients = {client: i for i, client in enumerate(sorted({client_of(row) for row in listed}))}
        day_of = {date: i for i, date in enumerate(dates)}
        names = (*DAY_NUMBERS, *RECORDED)
        known = {name: np.full((len(clients), len(dates)), np.nan) for name in names}
        required = np.full((len(clients), len(dates), len(TARGETS)), np.nan)
        for row in listed:
            place = clients[client_of(row)], day_of[row["date"].isoformat()]
            required[place] = row["required"]
            for name in names:
                known[name][place] = np.nan if row[name] is None else row[name]
        return cls(clients, dates, known, required, peaks)


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
    known, dates = history.known, history.dates
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
            peaks = [history.peaks[date, key] for date in dates[first:end] if (date, key) in history.peaks]
            entry = entry_of(client, settings, limit=capacity.get(key), peak=max(peaks, default=None))
            if entry is not None:
                chosen[places] = entry.value
        return chosen

    return ships


_OF_A_DAY: Final = ("required_rate", *RECORDED)


def evaluator(history: History, tested: int) -> Evaluate:
    """What would have waited on the last days with quotas given as an array over the history's clients."""
    required = history.required[:, -tested:].reshape(-1, len(TARGETS))

    def evaluate(quotas: Floats) -> Floats:
        flat = np.maximum(quotas.reshape(len(required), -1), 1e-9)
        return shares_waiting(required, flat).reshape(quotas.shape)

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


def judged_days(
    history: History,
    tested: int,
    settings: RecommendationSettings,
    *,
    capacity: Mapping[QuotaKey, float] | None = None,
    horizons: Sequence[int] = (1,),
) -> tuple[list[Judged], list[Judged]]:
    """The last days judged; see `pipeline.recommend.backtest_rules.backtest`.

    Args:
        history: at least one day more than are judged.
        tested: how many of the last days are judged.
        settings: how to recommend; its target is that of all rules.
        capacity: what the cluster can take.
        horizons: see `backtest`.
    """
    return backtest(
        history.known,
        tested,
        settings.target,
        evaluator(history, tested),
        recommender(history, settings, capacity or {}),
        horizons=horizons,
    )
