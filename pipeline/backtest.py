"""`sluice-pipeline backtest`: would the quotas of earlier days have fitted the next, and those of other rules?

Workers reduce each client's day to a few numbers (`day_stats`), from which the rules choose
(`pipeline.backtest_rules`), and then replay the days that are judged with what was chosen (`shares_of`). Writes
`backtest.json`, and a table in Markdown.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from pipeline.backtest_rules import DAY_NUMBERS, HISTORY_DAYS, Evaluate, Judged, Known, backtest
from pipeline.demand import ENTITY, Demand, demands
from pipeline.entity_days import Scope
from pipeline.errors import JobError
from pipeline.kernels.deferral import deferred, needs
from pipeline.kernels.ragged import Floats, Ragged
from pipeline.layout import KEY, published_days, results_dir
from pipeline.packed_days import PackedDays, Work
from pipeline.recommend import burst_s
from pipeline.session import open_session, open_to_look
from pipeline.simulate import add_master_argument
from pipeline.store import local_result

_DAY_S: Final = 86_400

STATS: Final = ", ".join(
    [
        *(f"`{name}` {KEY[name]}" for name in ENTITY),
        *(f"`{name}` double" for name in DAY_NUMBERS),
    ]
)
"""A client's day, as Spark DDL."""


SHARES: Final = ", ".join([*(f"`{name}` {KEY[name]}" for name in ENTITY), "shares array<double>"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    parser.add_argument("--out", required=True, help="the pipeline's folder; it has packed days")
    parser.add_argument("--from", dest="first", metavar="DATE", help="first day; else the first packed")
    parser.add_argument("--to", dest="last", metavar="DATE", help="last day; else the last packed")
    parser.add_argument(
        "--test",
        type=int,
        metavar="DAYS",
        help=f"last days to judge; else all after the first {HISTORY_DAYS}",
    )
    parser.add_argument("--target", type=float, default=0.01, help="share of use that may wait (0.01)")
    parser.add_argument(
        "--scope", choices=list(Scope), default=Scope.GATEWAY, help="the gateway's quota scope"
    )
    parser.add_argument("--result", metavar="FOLDER", help="where to write; else below OUT/results/backtest")
    add_master_argument(parser)


def day_stats(demand: Demand, target: float) -> pa.RecordBatch:
    """One batch of clients' days, as rows of `STATS`; days without use are left out."""
    ragged = demand.by_second()
    burst = burst_s(demand.api, 11, 1_000)
    need = needs(ragged, target, burst_s=burst)
    used = np.flatnonzero(need > 0)
    numbers = np.array([_numbers(*ragged.of(i)) for i in used.tolist()]).reshape(
        len(used), len(DAY_NUMBERS) - 1
    )
    columns: dict[str, Any] = {name: demand.names.column(name).take(pa.array(used)) for name in ENTITY}
    columns["need"] = need[used]
    columns |= {name: numbers[:, i] for i, name in enumerate(DAY_NUMBERS[1:])}
    return pa.RecordBatch.from_pydict(columns)


def _numbers(t_ms: Any, units: Floats) -> list[float]:
    """`DAY_NUMBERS` after the need."""
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
    """Days of clients as arrays over (client, day)."""

    clients: dict[Client, int]
    dates: list[datetime.date]
    known: Known

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> History:
        """What rows of `STATS` tell, in whatever order they come."""
        listed = list(rows)
        clients = {client: i for i, client in enumerate(sorted({client_of(row) for row in listed}))}
        dates = sorted({row["date"] for row in listed})
        known = {name: np.full((len(clients), len(dates)), np.nan) for name in DAY_NUMBERS}
        for row in listed:
            client, day = clients[client_of(row)], dates.index(row["date"])
            for name in DAY_NUMBERS:
                known[name][client, day] = row[name]
        return cls(clients, dates, known)


def client_of(row: Mapping[str, Any]) -> Client:
    """Whose row it is."""
    return row["gw"], row["node"], row["user"], row["client_id"], row["api"]


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
        history: whose clients and days the array is about.
        tested: the last days.
        replay: `shares_of` over all the demand of those days, in parts.
    """
    dates = history.dates[-tested:]

    def evaluate(quotas: Floats) -> Floats:
        table = {
            (client, date): np.maximum(quotas[i, day], 1e-9)
            for client, i in history.clients.items()
            for day, date in enumerate(dates)
            if np.isfinite(quotas[i, day]).all()
        }
        shares = np.full(quotas.shape, np.nan)
        for part in replay(table):
            for (client, date), found in part.items():
                shares[history.clients[client], dates.index(date)] = found
        return shares

    return evaluate


def markdown(plain: Sequence[Judged], equal: Sequence[Judged], target: float) -> str:
    """Both tables."""
    head = (
        f"| rule | mean share that waits | clients above {2 * target:.0%} | of all units | allocated / oracle"
    )
    lines = [f"{head} (geometric, sum) | factor |", "|---|---|---|---|---|---|"]
    lines += [_line(judged) for judged in plain]
    lines += [
        "",
        f"At equal harm: each rule times the factor, found in hindsight, with which the mean share is {target:.0%}.",
        "Rules that are not listed never get there.",
        "",
        f"{head} (geometric, sum) | factor |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_line(judged) for judged in sorted(equal, key=lambda judged: judged.geometric)]
    return "\n".join(lines) + "\n"


def _line(judged: Judged) -> str:
    return (
        f"| {judged.name} | {judged.mean_throttled:.2%} | {judged.above:.1%} | {judged.of_units:.2%} "
        f"| {judged.geometric:.2f} / {judged.by_sum:.2f} | {judged.factor:.3g} |"
    )


def _stats_of(target: float) -> Work:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for demand in demands(batch):
                yield day_stats(demand, target)

    return work


def _shares_of(quotas: Table) -> Work:
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


def run(arguments: argparse.Namespace) -> int:
    """The job; see the module."""
    made_at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = local_result(arguments.result, "--result", results_dir(arguments.out, "backtest", made_at))
    look = open_to_look("sluice-backtest", arguments.out, master=arguments.master)
    days = published_days(arguments.out, arguments.first, arguments.last, spark=look)
    judged_days = arguments.test or max(1, len(days) - HISTORY_DAYS)
    if len(days) < 2 or not 1 <= judged_days < len(days):
        raise JobError(f"{len(days)} packed days: at least one is needed before those to be judged")
    if not 0 < arguments.target < 0.5:
        raise JobError(f"--target is in (0, 0.5), not {arguments.target}")
    target = float(arguments.target)

    spark = open_session("sluice-backtest", master=arguments.master)
    packed = PackedDays.of(spark, arguments.out, days[0].date, days[-1].date)
    scope = Scope(arguments.scope)
    stats = packed.map_entities(_stats_of(target), STATS, scope=scope)
    history = History.of(row.asDict() for row in stats.toLocalIterator())
    late = packed.since(days[-judged_days].date)

    def replay_all(quotas: Table) -> Iterator[Table]:
        for row in late.map_entities(_shares_of(quotas), SHARES, scope=scope).toLocalIterator():
            yield {(client_of(row), row["date"]): np.array(row["shares"])}

    plain, equal = backtest(history.known, judged_days, target, evaluator(history, judged_days, replay_all))
    text = markdown(plain, equal, target)
    folder.mkdir(parents=True, exist_ok=True)
    data = {"target": target, "rules": [asdict(j) for j in plain], "equal_harm": [asdict(j) for j in equal]}
    (folder / "backtest.json").write_text(json.dumps(data, indent=1) + "\n", encoding="ascii")
    (folder / "backtest.md").write_text(text, encoding="utf-8")
    print(text)
    print(folder)
    return 0
