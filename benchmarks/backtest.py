"""``python -m benchmarks.backtest``: quotas of earlier days on the next day, for made-up clients; about half an hour.

The table of `sluice-pipeline backtest`, over `testkit.pipeline.traces`, without Spark: the same rules and kernels
on the same compacted rows, one core. Once with rare bursts, once without, once with many: a burst that no earlier
day announces cannot be provided for and saved on at once. Each with several seeds: the tables are of the first, the
interval is where the mean over seeds lies with 95 % confidence (Student's t). Quotas stay for one day and for seven.
Goals, of the first number of bursts and one day, at a target of 1 %: mean share that waits at most 1.25 %, allocation
at most 1.8 times the oracle's (geometric mean), at most 5 % of client-days above 2 %. 1 when one is missed. The rule
was chosen with seeds 1 and 2.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.compacted_days import compacted_table
from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine, load_average
from pipeline.client_tables.rows import client_rows
from pipeline.recommend.backtest import History, client_of, evaluator, judged_days, markdown
from pipeline.recommend.backtest_rules import OURS, Judged
from pipeline.recommend.recommendation import RecommendationSettings
from pipeline.recommend.required_rates import Windows, days_of
from pipeline.recommend.waiting import burst_s
from pipeline.replay.demand import demands
from pipeline.replay.kernels.deferral import deferred
from pipeline.storage.entity_days import ARRAYS, ENTITY
from testkit.pipeline.traces import day_of

RESULTS: Final = Path(__file__).resolve().parent / "results"
# Student's t at 97.5 %, by degrees of freedom.
_T95: Final = (math.inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
GOALS: Final = {"mean_throttled": 0.0125, "geometric": 1.8, "above": 0.05}


def main() -> int:
    """Run, report and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backtest", description=__doc__)
    parser.add_argument("--entities", type=int, default=600)
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--test", type=int, default=7)
    parser.add_argument("--target", type=float, default=0.01)
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 4, 5, 6, 7])
    parser.add_argument("--horizons", type=int, nargs="+", default=[1, 7])
    parser.add_argument(
        "--bursts", type=float, nargs="+", default=[0.02, 0.0, 0.3], help="see `traces.day_of`"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = describe_machine()
    started = time.process_time()
    outcomes = [
        [
            run(options.entities, options.days, options.test, options.target, seed, bursts, options.horizons)
            for seed in options.seeds
        ]
        for bursts in options.bursts
    ]
    document = {
        "command": f"python -m benchmarks.backtest --entities {options.entities} --days {options.days} "
        f"--test {options.test} --target {options.target} --seeds {' '.join(map(str, options.seeds))} "
        f"--horizons {' '.join(map(str, options.horizons))} "
        f"--bursts {' '.join(map(str, options.bursts))}",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu_s": round(time.process_time() - started, 1),
        "machine": machine | {"load_average_after": load_average()},
        "runs": [
            {
                **{name: outcome[name] for name in ("bursts", "seed", "rows", "client_days", "replayed")},
                "rules": [asdict(judged) for judged in outcome["plain"]],
                "equal_harm": [asdict(judged) for judged in outcome["equal"]],
            }
            for of_bursts in outcomes
            for outcome in of_bursts
        ],
    }
    page = render(document, outcomes, options.target)
    keep_results(document, page, options.output, "backtest")
    print(page)
    return int(bool(missed_goals(outcomes[0])))


def run(
    entities: int, days: int, tested: int, target: float, seed: int, bursts: float, horizons: list[int]
) -> dict[str, Any]:
    """The backtest, and over how much it went."""
    days_of_clients: list[dict[str, Any]] = []
    kept: list[pa.RecordBatch] = []
    rows = 0
    for day in range(days):
        table = compacted_table(seed, entities, day_of(seed, entities, day, bursts=bursts))
        (batch,) = table.select([*ENTITY, *ARRAYS]).combine_chunks().to_batches()
        rows += len(batch.column("t").flatten())
        for found in client_rows(iter([batch])):
            is_day = pc.equal(found.column("table"), "client_day")
            days_of_clients += days_of([found.filter(is_day)], target, Windows())
        if day >= days - tested:
            kept.append(batch)
    history = History.of(days_of_clients, {})
    settings = RecommendationSettings(target)
    plain, equal = judged_days(history, tested, settings, horizons=horizons)
    return {
        "bursts": bursts,
        "seed": seed,
        "rows": rows,
        "client_days": len(days_of_clients),
        "plain": plain,
        "equal": equal,
        "replayed": replayed(history, kept, tested),
    }


def replayed(history: History, kept: list[pa.RecordBatch], tested: int) -> tuple[float, float, float]:
    """With yesterday's required rate times 1.25: the mean share that waits by the tables, by a replay of every
    record, and the mean distance of the two over clients' days."""
    quotas = 1.25 * history.known["required_rate"][:, -tested - 1 : -1]
    told = evaluator(history.required[:, -tested:])(quotas[:, :, None])[:, :, 0]
    exact = np.full(told.shape, np.nan)
    for batch in kept:
        for demand in demands(batch):
            ragged = demand.by_second()
            places = [
                (history.clients[client_of(row)], history.dates[-tested:].index(row["date"].isoformat()))
                if ragged.lengths[i]
                else (-1, -1)
                for i, row in enumerate(demand.names.to_pylist())
            ]
            seen = [
                i for i, (client, day) in enumerate(places) if client >= 0 and np.isfinite(told[client, day])
            ]
            tried = np.ones(len(places))
            tried[seen] = [quotas[places[i]] for i in seen]
            burst = burst_s(demand.api, 11, 1_000)
            waited = deferred(ragged, tried[:, None], burst_s=burst).throttled_units[:, 0]
            for i in seen:
                exact[places[i]] = waited[i] / ragged.total_units()[i]
    both = np.isfinite(told) & np.isfinite(exact)
    return (
        float(told[both].mean()),
        float(exact[both].mean()),
        float(np.abs(told[both] - exact[both]).mean()),
    )


def ours(outcome: dict[str, Any], horizon: int) -> Judged:
    """How what ships did."""
    return next(judged for judged in outcome["plain"] if (judged.name, judged.horizon) == (OURS, horizon))


def interval(values: list[float]) -> tuple[float, float]:
    """The mean, and how far from it the true one lies at most, with 95 % confidence."""
    if len(values) < 2:
        return values[0], math.inf
    return statistics.mean(values), _T95[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))


def missed_goals(outcomes: list[dict[str, Any]]) -> list[str]:
    """Goals that what ships does not reach in the mean over seeds, when it runs each night."""
    means = {name: interval([getattr(ours(outcome, 1), name) for outcome in outcomes])[0] for name in GOALS}
    return [f"{name} {means[name]:.4g} > {goal}" for name, goal in GOALS.items() if means[name] > goal]


def over_seeds(outcomes: list[dict[str, Any]], horizons: list[int]) -> str:
    """What ships, as a table over horizons."""
    lines = [
        "| quotas stay for | mean share that waits | client-days above twice the target | of all units "
        "| allocated / oracle (geometric) |",
        "|---|---|---|---|---|",
    ]
    for horizon in horizons:
        cells = []
        for name, text in (
            ("mean_throttled", "{:.2%} ± {:.2%}"),
            ("above", "{:.1%} ± {:.1%}"),
            ("of_units", "{:.2%} ± {:.2%}"),
            ("geometric", "{:.2f} ± {:.2f}"),
        ):
            cells.append(text.format(*interval([getattr(ours(each, horizon), name) for each in outcomes])))
        lines.append(f"| {horizon} day{'s' * (horizon > 1)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def render(document: dict[str, Any], outcomes: list[list[dict[str, Any]]], target: float) -> str:
    """The page."""
    machine = document["machine"]
    parts = [
        "# Backtest\n\n"
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}, {document['cpu_s']} s of CPU; "
        f"load average before {machine['load_average_before']}, after {machine['load_average_after']}.\n\n"
        "Clients of `benchmarks/traces.py`: steady, diurnal, on-off, cron and admin, whose sizes drift by 12 % a "
        "day; 2 % of them triple or fall to a third for good on a day, most do less at weekends. Each test day's "
        "quotas come from up to seven days before it. What waits is what a bucket of 10 s (mutations: 11 s) of the "
        f'quota lacks. "{OURS}" is the function that makes plans, with what it set before; its rule was chosen '
        "with other seeds (1 and 2). Its goals, for quotas of one day, in the mean over seeds: mean "
        "at most 1.25 %, geometric allocation at most 1.8, at most 5 % of client-days above 2 %.\n"
    ]
    for of_bursts in outcomes:
        missed = missed_goals(of_bursts)
        outcome = of_bursts[0]
        horizons = sorted({judged.horizon for judged in outcome["plain"]})
        parts.append(
            f"\n## Bursts on {outcome['bursts']:.0%} of a client's days\n\n"
            f"{sum(each['rows'] for each in of_bursts):,} client-seconds, "
            f"{sum(each['client_days'] for each in of_bursts):,} client-days, {len(of_bursts)} seeds. "
            f"Goals: {'met' if not missed else 'missed: ' + ', '.join(missed)}. What ships, with 95 % intervals:\n\n"
            + over_seeds(of_bursts, horizons)
            + "\nWith yesterday's required rate and 25 % more {1:.3%} of a client's use waited, by a replay "
            "of every record (first seed); {0:.3%} by the tables of clients, which the backtest reads. On a client's "
            "day the two differ by {2:.3%} on average.\n".format(*outcome["replayed"])
            + f"\nAll rules, with seed {outcome['seed']}:\n\n"
            + markdown(outcome["plain"], outcome["equal"], target)
        )
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(main())
