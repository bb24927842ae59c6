"""``python -m benchmarks.chaos``: 300 rounds of faults; keeps results. 1 when something did not hold."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine, load_average
from testkit.chaos.campaign import ChaosCampaign, Report

ROWS: Final = ("L01", "L02", "L03", "L04", "L05", "L06")
RESULTS: Final = Path(__file__).resolve().parents[1] / "results"


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=75.0, help="at most")
    parser.add_argument(
        "--round", type=int, default=0, help="the first one; with --rounds 1 it is played again"
    )
    parser.add_argument("--rounds", type=int, default=300, help="at most")
    parser.add_argument(
        "--planted",
        choices=ROWS,
        default="",
        help="gateways without the mending of this row; ends when it is found",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="where logs and files of the gateways stay"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    document: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.chaos", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
    }
    campaign = ChaosCampaign(
        seed=options.seed,
        tell=lambda line: print(line, flush=True),
        without=options.planted,
        folder=options.keep,
    )
    report = campaign.run(seconds=options.minutes * 60, first_round=options.round, most_rounds=options.rounds)
    document |= {
        "load_average_after": load_average(),
        "rounds": report.rounds,
        "seconds": round(report.seconds),
        "faults": dict(report.faults),
        "alterations": report.alterations,
        "records": report.records,
        "drained": report.drained,
        "looks": report.looks,
        "green": report.green,
        "usage_lines": report.usage_lines,
        "rows": [{"violation": each} for each in report.violations],
    }
    text = page(document, report)
    if not options.planted:
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
            "Two gateways on a quota topic and one on a SQLite file, before three brokers; a writer at each, "
            "an idempotent producer and a consumer through them, usage records. In each round one to three faults at "
            "once. All the time: a gateway that says it is ready has what was acknowledged 5 s before. After each "
            "round: acknowledged alterations in force, views equal within 5 s; no record lost, twice or reordered, "
            "the consumer at the end within 20 s; each usage line in the files once, but for two that a killed "
            "process may take with it. At each drain: no reply of a request that was carried out is lost.",
            "",
            f"{report.rounds} rounds in {round(report.seconds)} s "
            f"({report.seconds / max(1, report.rounds):.1f} s each): {report.alterations} acknowledged alterations, "
            f"{report.records} acknowledged records, {report.drained} requests carried out at drains, "
            f"{report.usage_lines} usage lines; asked {report.looks} times whether they are ready, gateways were it "
            f"{report.green} times. **{len(report.violations)} violations.**",
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
