"""One quota over four gateways of two workers, minute by minute and in bursts, by `testkit.fleet_minutes`."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine
from testkit.fleet_minutes import BURST_MS, GATEWAYS, SILENCE_MS, WORKERS, Minutes, play_minutes

LEAST_MEAN: Final = 0.97
MOST_MEAN: Final = 1.03
"""Largest mean of all runs, in multiples of the quota."""

MOST: Final = 1.05
"""Largest single run, in multiples of the quota."""

MOST_OVER: Final = 1.5
"""Largest excess in bursts beyond one gateway's: docs/explanation/one-quota-over-a-fleet.md."""


def run(count: int, *, output: Path) -> int:
    """Play `count` runs of the fleet and of one gateway; 1 when a goal is missed."""
    began_s = time.process_time()
    rows = [
        row_of(
            f"{gateways} x {workers}",
            [play_minutes(seed, gateways=gateways, workers=workers) for seed in range(count)],
        )
        for gateways, workers in ((GATEWAYS, WORKERS), (1, 1))
    ]
    document = {
        "command": f"python -m benchmarks.fleet --minutes {count}",
        "machine": describe_machine(),
        "cpu_s": round(time.process_time() - began_s),
        "rows": rows,
    }
    page = page_of(document)
    keep_results(document, page, output, "fleet-minutes")
    print(page)
    return int(bool(missed(rows[0])))


def row_of(name: str, runs: list[Minutes]) -> dict[str, Any]:
    """The summary of a fleet's runs."""
    means = [each.mean for each in runs]
    return {
        "gateways": name,
        "runs": len(runs),
        "mean": round(statistics.fmean(means), 3),
        "lowest": round(min(means), 3),
        "highest": round(max(means), 3),
        "burst": round(max(each.burst for each in runs), 3),
        "over": round(max(each.over for each in runs), 3),
        "allowed": round(max(each.allowed for each in runs), 3),
        "above": sum(each.over > each.allowed for each in runs),
    }


def missed(row: dict[str, Any]) -> list[str]:
    """The missed goals."""
    goals = {
        f"a mean of {LEAST_MEAN} to {MOST_MEAN}": LEAST_MEAN <= row["mean"] <= MOST_MEAN,
        f"a highest of {MOST}": row["highest"] <= MOST,
        f"bursts of {MOST_OVER} beyond one gateway's": row["allowed"] <= MOST_OVER and not row["above"],
    }
    return [goal for goal, met in goals.items() if not met]


def page_of(document: dict[str, Any]) -> str:
    """The results as Markdown."""
    rows = document["rows"]
    lost = missed(rows[0])
    lines = [
        "# One quota over a fleet, minute by minute",
        "",
        f"`{document['command']}`, {document['cpu_s']} s of CPU, in simulated time. Each run has 1 to 24",
        "connections that want more than the quota, at workers of all gateways, and that move now and then.",
        "Messages take up to 10, 30, 80 or 200 ms. *Mean*, *lowest* and *highest*: of the quota, the means that runs",
        "pass in a minute, over all minutes that begin within 11.5 s after 15 s. *Burst*: what passes within",
        f"{BURST_MS // 1000} s after {SILENCE_MS // 1000} s of silence,",
        "beyond the 15 s of quota that Kafka's arithmetic lets through, in parts of these. *Over*: burst beyond one",
        "gateway's, with the bound of it that applies (docs/explanation/one-quota-over-a-fleet.md).",
        "",
        f"Goals: {LEAST_MEAN} to {MOST_MEAN} in the mean, at most {MOST} in the highest run, "
        f"over at most {MOST_OVER}: " + ("met." if not lost else f"missed: {', '.join(lost)}."),
        "",
        "| gateways x workers | runs | mean | lowest | highest "
        "| burst, at most | over, at most | bound of it | above it |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows]
    return "\n".join(lines) + "\n"
