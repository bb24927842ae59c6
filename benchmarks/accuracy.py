"""``python -m benchmarks.accuracy``: the whole campaign, about five minutes; results are kept.

Exit code 1 when a client of the gateway is not within +5 % and -10 % of its quota.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.accuracy_report import keep, within
from benchmarks.keep import command_line
from benchmarks.relay.machine import describe_machine, load_average
from campaigns.accuracy.campaign import FAMILIES, GATEWAY, KAFKA, SIDES, Plan, run_campaign

HONEST: Final = tuple(family for family in FAMILIES if family != "cheater")
RESULTS: Final = Path(__file__).resolve().parent / "results"


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument(
        "--quota", type=int, default=Plan().quota_bytes_per_s, help="bytes per second per client"
    )
    parser.add_argument("--seconds", type=float, default=Plan().measured_s, help="that are averaged over")
    parser.add_argument("--only", action="append", choices=FAMILIES, help="only these clients")
    parser.add_argument("--side", action="append", choices=SIDES, help="only this side")
    parser.add_argument(
        "--topics", action="store_true", help="quotas of topics, which only the gateway has; not the cheater"
    )
    parser.add_argument("--workers", type=int, default=1, help="of each gateway")
    parser.add_argument(
        "--gateways", type=int, default=1, help="a fleet, whose clients are two each, at different gateways"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.gateways > 1 and (options.topics or GATEWAY not in (options.side or SIDES)):
        parser.error("--gateways goes neither with --topics nor with Kafka's side alone")
    plan = Plan(
        quota_bytes_per_s=options.quota,
        measured_s=options.seconds,
        families=tuple(options.only or (HONEST if options.topics else FAMILIES)),
        sides=(GATEWAY,) if options.topics else tuple(options.side or SIDES),
        by_topic=options.topics,
        workers=options.workers,
        gateways=options.gateways,
    )
    document = {
        "command": command_line("benchmarks.accuracy"),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
    }
    began_s = time.monotonic()
    results = run_campaign(plan)
    document["seconds"] = round(time.monotonic() - began_s)
    document["load_average_after"] = load_average()
    print(keep(document, plan, results, options.output))
    return int(not all(within(result) for result in results if result.side != KAFKA))


if __name__ == "__main__":
    sys.exit(main())
