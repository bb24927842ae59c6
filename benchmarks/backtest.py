"""``python -m benchmarks.backtest``: quotas of earlier days on the next day, for made-up clients; about half an hour.

The table of `sluice-pipeline backtest`, over `testkit.pipeline.traces`, without Spark: the same rules and kernels
on the same compacted rows, one core. Once with rare bursts, once without, once with many: a burst that no earlier
day announces cannot be provided for and saved on at once. Goals, of the first, at a target of 1 %: mean share that
waits at most 1.25 %, allocation at most 1.8 times the oracle's (geometric mean), at most 5 % of client-days above 2
%. 1 when one is missed. The rule was chosen with seeds 1 and 2.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.compacted_days import compacted_table
from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine, load_average
from pipeline.recommend.backtest import History, Table, day_stats, evaluator, markdown, shares_of
from pipeline.recommend.backtest_rules import OURS, Judged, backtest
from pipeline.replay.demand import Demand, demands
from pipeline.storage.entity_days import ARRAYS, ENTITY
from testkit.pipeline.traces import day_of

RESULTS: Final = Path(__file__).resolve().parent / "results"
GOALS: Final = {"mean_throttled": 0.0125, "geometric": 1.8, "above": 0.05}


def main() -> int:
    """Run, report and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backtest", description=__doc__)
    parser.add_argument("--entities", type=int, default=600)
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--test", type=int, default=7)
    parser.add_argument("--target", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument(
        "--bursts", type=float, nargs="+", default=[0.02, 0.0, 0.3], help="see `traces.day_of`"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = describe_machine()
    started = time.process_time()
    outcomes = [
        run(options.entities, options.days, options.test, options.target, options.seed, bursts)
        for bursts in options.bursts
    ]
    document = {
        "command": f"python -m benchmarks.backtest --entities {options.entities} --days {options.days} "
        f"--test {options.test} --target {options.target} --seed {options.seed} "
        f"--bursts {' '.join(map(str, options.bursts))}",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu_s": round(time.process_time() - started, 1),
        "machine": machine | {"load_average_after": load_average()},
        "runs": [
            {
                **{name: outcome[name] for name in ("bursts", "rows", "client_days")},
                "rules": [asdict(judged) for judged in outcome["plain"]],
                "equal_harm": [asdict(judged) for judged in outcome["equal"]],
            }
            for outcome in outcomes
        ],
    }
    page = render(document, outcomes, options.target)
    keep_results(document, page, options.output, "backtest")
    print(page)
    return int(bool(missed_goals(outcomes[0]["plain"])))


def run(entities: int, days: int, tested: int, target: float, seed: int, bursts: float) -> dict[str, Any]:
    """The backtest, and over how much it went."""
    stats: list[dict[str, Any]] = []
    kept: list[Demand] = []
    rows = 0
    for day in range(days):
        for demand in demands_of(seed, entities, day, bursts):
            stats += day_stats(demand, target).to_pylist()
            rows += len(demand.seconds)
            if day >= days - tested:
                kept.append(demand)
    history = History.of(stats)

    def replay(quotas: Table) -> Iterator[Table]:
        for demand in kept:
            yield shares_of(demand, quotas)

    plain, equal = backtest(history.known, tested, target, evaluator(history, tested, replay))
    return {"bursts": bursts, "rows": rows, "client_days": len(stats), "plain": plain, "equal": equal}


def demands_of(seed: int, entities: int, day: int, bursts: float) -> Iterator[Demand]:
    """A day's demand, API by API, through the compacted table's columns."""
    table = compacted_table(seed, entities, day_of(seed, entities, day, bursts=bursts)).select(
        [*ENTITY, *ARRAYS]
    )
    for batch in table.to_batches():
        yield from demands(batch)


def missed_goals(plain: list[Judged]) -> list[str]:
    """Goals that our rule does not reach."""
    ours = next(judged for judged in plain if judged.name == OURS)
    return [
        f"{name} {getattr(ours, name):.4g} > {goal}"
        for name, goal in GOALS.items()
        if getattr(ours, name) > goal
    ]


def render(document: dict[str, Any], outcomes: list[dict[str, Any]], target: float) -> str:
    """The page."""
    machine = document["machine"]
    parts = [
        "# Backtest\n\n"
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}, {document['cpu_s']} s of CPU; "
        f"load average before {machine['load_average_before']}, after {machine['load_average_after']}.\n\n"
        "Clients of `benchmarks/traces.py`: steady, diurnal, on-off, cron and admin, whose sizes drift by 12 % a "
        "day; 2 % of them triple or fall to a third for good on a day, most do less at weekends. Each test day's "
        "quotas come from up to seven days before it. What waits is what a bucket of 10 s (mutations: 11 s) of the "
        f'quota lacks. "{OURS}" is what `recommend` does; it was chosen with other seeds (1 and 2). Its goals: mean '
        "at most 1.25 %, geometric allocation at most 1.8, at most 5 % of client-days above 2 %.\n"
    ]
    for outcome in outcomes:
        missed = missed_goals(outcome["plain"])
        parts.append(
            f"\n## Bursts on {outcome['bursts']:.0%} of a client's days\n\n"
            f"{outcome['rows']:,} client-seconds, {outcome['client_days']:,} client-days. "
            f"Goals: {'met' if not missed else 'missed: ' + ', '.join(missed)}.\n\n"
            + markdown(outcome["plain"], outcome["equal"], target)
        )
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(main())
