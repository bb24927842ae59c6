"""Runs the rules of a backtest over days and writes its tables.

The rules (`pipeline.recommend.backtest_rules`) choose quotas from the numbers of each day in the tables of clients.
The same tables give the share that would have waited with these quotas. No Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from pipeline.client_tables.rows import TARGETS
from pipeline.client_tables.tables import ClientPart
from pipeline.errors import NotYetCompleteError
from pipeline.recommend.backtest_rules import (
    DAY_NUMBERS,
    RECORDED,
    Evaluate,
    Judged,
    Known,
    Ships,
    backtest,
    choose,
    judge,
)
from pipeline.recommend.doubt import NOTHING_LEFT_OUT, LeftDays
from pipeline.recommend.recommendation import ClientDay, ClientHistory, RecommendationSettings, entry_of
from pipeline.recommend.required_rates import ClientDays, client_day
from pipeline.recommend.waiting import shares_waiting
from pipeline.replay.demand import KEY_OF_API
from pipeline.replay.kernels.ragged import Floats
from pipeline.spark.runner import Runner
from quotas.entities import QuotaKey
from quotas.usage_record import UsageApi

_CLIENTS_AT_ONCE: Final = 1_000
READ: Final = DAY_NUMBERS[2:]
"""Columns of client_day that are read besides those of `required_rates.ClientDays`."""

Client: TypeAlias = tuple[str, int, str, str, str]
"""Gateway, broker, user, client id, API: one counter of a quota."""


@dataclass(frozen=True, slots=True)
class History:
    """Days of clients as arrays over (client, day).

    Attributes:
        clients: the index of each client.
        dates: of all days, as 2026-11-21.
        known: see `Known`.
        required: the rates required for `TARGETS`, over (client, day, target); NaN if the client was not seen.
        peaks: the most that all clients together used on a day, per second.
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
        dates: Sequence[str] = (),
    ) -> History:
        """Builds a history from rows of `ClientDays.read`, in any order. Left-out days count as not seen.

        Args:
            rows: of some clients.
            peaks: see the class.
            left: the days that are left out.
            dates: all days, if other clients were seen on further days.
        """
        listed = list(rows)
        dates = sorted({*dates, *(row["date"].isoformat() for row in listed)})
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
    """The product's own rule, for days of a history.

    Args:
        history: the clients and their days.
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


def evaluator(required: Floats) -> Evaluate:
    """Makes the function that gives the waiting shares for quotas over (client, test day, candidate).

    Args:
        required: the rates required on these days, over (client, test day, target).
    """

    def evaluate(quotas: Floats) -> Floats:
        shares = np.empty(quotas.shape)
        # A few clients at a time: computing a share takes ten times the memory of its quota.
        for begin in range(0, len(quotas), _CLIENTS_AT_ONCE):
            some = slice(begin, begin + _CLIENTS_AT_ONCE)
            own, rates = quotas[some], required[some].reshape(-1, len(TARGETS))
            flat = np.maximum(own.reshape(len(rates), -1), 1e-9)
            shares[some] = shares_waiting(rates, flat).reshape(own.shape)
        return shares

    return evaluate


def markdown(plain: Sequence[Judged], equal: Sequence[Judged], target: float) -> str:
    """Both tables as Markdown."""
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
    """Judges the last days; see `pipeline.recommend.backtest_rules.backtest`.

    Args:
        history: at least one day more than are judged.
        tested: the number of days to judge, which are the last ones.
        settings: how to recommend; all rules use its target.
        capacity: what the cluster can take.
        horizons: see `backtest`.
    """
    return backtest(
        history.known,
        tested,
        settings.target,
        evaluator(history.required[:, -tested:]),
        recommender(history, settings, capacity or {}),
        horizons=horizons,
    )


@dataclass(frozen=True, slots=True)
class _OfPart:
    """The rules' quotas for the clients of a part that are judged on some day, and the data to judge them.

    Attributes:
        clients: in the order of the arrays.
        chosen: the result of `backtest_rules.choose`.
        required: over (client, test day, target).
        units: over (client, test day).
        there: whether any client, including those left out here, has days before the test days and among them.
    """

    clients: list[Client]
    chosen: Floats
    required: Floats
    units: Floats
    there: bool


def judge_parts(
    runner: Runner,
    days: ClientDays,
    tested: int,
    settings: RecommendationSettings,
    *,
    dates: Sequence[str],
    peaks: Mapping[tuple[str, QuotaKey], float],
    capacity: Mapping[QuotaKey, float],
    horizons: Sequence[int],
) -> tuple[list[Judged], list[Judged]]:
    """Judges the last days like `judged_days`. Parts choose quotas, and the driver judges all of them.

    Args:
        runner: runs the parts.
        days: at least one day more than are judged.
        tested, settings, capacity, horizons: see `judged_days`.
        dates: all days on which there was any client.
        peaks: see `History`.

    Raises:
        NotYetCompleteError: no client has days before and among the test days.
    """

    def of_part(part: ClientPart) -> Iterator[_OfPart]:
        history = History.of(days.read(part, READ), peaks, days.left, dates)
        seen = np.isfinite(history.known["required_rate"])
        ships = recommender(history, settings, capacity)
        chosen = choose(history.known, tested, ships, horizons)
        kept = np.flatnonzero(np.isfinite(chosen[:, :, 0]).any(axis=1))
        clients = list(history.clients)
        yield _OfPart(
            [clients[place] for place in kept.tolist()],
            chosen[kept],
            history.required[kept, -tested:],
            history.known["units"][kept, -tested:],
            bool((seen[:, :-tested].any(axis=1) & seen[:, -tested:].any(axis=1)).any()),
        )

    found = list(runner.run(of_part, days.parts))
    if not any(part.there for part in found):
        raise NotYetCompleteError(
            "no client has a day that is not left out among those to be judged, and one before: take other days with "
            "--from and --to, or say --allow-gaps"
        )
    # Sorted, so that sums have the same last digit however clients are divided into parts.
    clients = [client for part in found for client in part.clients]
    order = np.array(sorted(range(len(clients)), key=clients.__getitem__), np.intp)
    chosen, required, units = (
        np.concatenate([getattr(part, name) for part in found])[order]
        for name in ("chosen", "required", "units")
    )
    del found
    return judge(chosen, units, settings.target, evaluator(required), horizons=horizons)
