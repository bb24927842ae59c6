"""``python -m benchmarks.chaos``: rounds of faults for half an hour; keeps results. 1 when something did not hold."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine, load_average
from testkit.chaos.campaign import ChaosCampaign, Report

RESULTS: Final = Path(__file__).resolve().parents[1] / "results"


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument(
        "--round", type=int, default=0, help="the first one; with --rounds 1 it is played again"
    )
    parser.add_argument("--rounds", type=int, default=1 << 30, help="at most")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    document: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.chaos", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
    }
    campaign = ChaosCampaign(seed=options.seed)
    report = campaign.run(seconds=options.minutes * 60, first_round=options.round, most_rounds=options.rounds)
    document |= {
        "load_average_after": load_average(),
        "rounds": report.rounds,
        "seconds": round(report.seconds),
        "faults": dict(report.faults),
        "alterations": report.alterations,
        "records": report.records,
        "drained": report.drained,
        "rows": [{"violation": each} for each in report.violations],
    }
    text = page(document, report)
    keep_results(document, text, options.output, "chaos")
    print(text)
    return int(bool(report.violations))


def page(document: dict[str, Any], report: Report) -> str:
    """Markdown."""
    machine = document["machine"]
    return "\n".join(
        [
            "# Chaos",
            "",
            f"`{document['command']}`, {document['started']}, commit {machine.get('commit', '?')}; "
            f"load average before {machine['load_average_before']}, after {document['load_average_after']}.",
            "",
            "Two gateways on a quota topic and one on a SQLite file, before three brokers; writers at each, "
            "an idempotent producer, usage records. After each round: acknowledged alterations in force within 5 s, "
            "views equal, no record lost, twice or reordered.",
            "",
            f"{report.rounds} rounds in {round(report.seconds)} s: {report.alterations} acknowledged alterations, "
            f"{report.records} acknowledged records, {report.drained} requests carried out at drains. "
            f"**{len(report.violations)} violations.**",
            "",
            "| Fault | Times |",
            "|---|---|",
            *(f"| {fault} | {count} |" for fault, count in sorted(report.faults.items())),
            "",
            *(f"* {each}" for each in report.violations),
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
