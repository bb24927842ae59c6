"""``python -m benchmarks.alerts``: every shipped alert fires on a real fault and stops after it; keeps results.

A real Prometheus with the shipped rules, two gateways, a Kafka of one broker. In the rules a minute becomes a second
and an hour becomes a minute; thresholds and queries are the shipped ones. Needs root, to fill disks. Exit code 1 when
an alert did not fire or did not stop.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.keep import command_line, keep_results
from benchmarks.relay.machine import describe_machine
from campaigns.alerts.campaign import Outcome, play
from campaigns.alerts.faults import QUOTA_TOPIC, rounds
from campaigns.alerts.gateways import FaultyGateway, wait_for
from campaigns.alerts.prometheus import Prometheus
from campaigns.alerts.rules import alerts, shipped, shortened
from embedded_kafka.kafka import KafkaCluster
from testkit.packages import require_package

RESULTS: Final = Path(__file__).with_name("results")


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.alerts", description=__doc__)
    parser.add_argument("--only", help="rounds with this alert alone")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    document: dict[str, Any] = {
        "command": command_line("benchmarks.alerts"),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
    }
    rules = shortened(shipped())
    outcomes = _run(rules, options.only)
    missing = {rule["alert"] for rule in alerts(rules)} - {each.alert for each in outcomes}
    document["rows"] = [each._asdict() for each in outcomes]
    text = page(document, outcomes, sorted(missing))
    if options.only is None:
        keep_results(document, text, options.output, "alerts")
    print(text)
    return int(not all(each.held for each in outcomes) or (options.only is None and bool(missing)))


def _run(rules: str, only: str | None) -> list[Outcome]:
    outcomes: list[Outcome] = []
    with TemporaryDirectory() as name, KafkaCluster(1) as kafka:
        folder = Path(name)
        brokers = ", ".join(f'"{address}"' for address in kafka.brokers.values())
        one = FaultyGateway(folder / "one", brokers)
        two = FaultyGateway(folder / "two", brokers, topic=QUOTA_TOPIC)
        try:
            if not one.store_disk.mounted:
                raise SystemExit("disks to be filled can only be mounted by root")
            one.start()
            two.start()
            with Prometheus(
                require_package("prometheus"), folder, rules, (one.admin, two.admin)
            ) as prometheus:
                wait_for(lambda: prometheus.scraped() == {one.admin, two.admin})
                for faults in rounds(one, two, kafka):
                    if only is None or any(only in fault.alerts for fault in faults):
                        for outcome in play(prometheus, faults):
                            outcomes.append(outcome)
                            print(outcome, file=sys.stderr, flush=True)
        finally:
            one.close()
            two.close()
    return outcomes


def page(document: dict[str, Any], outcomes: list[Outcome], missing: list[str]) -> str:
    """Markdown."""
    lines = [
        "# Alerts",
        "",
        f"`{document['command']}`, {document['started']}.",
        "",
        "Every alert of `monitoring/rules.yml`, fired by a real fault of a real gateway before a real Kafka, as a",
        "real Prometheus sees it. In the rules a minute was a second and an hour a minute, in `for:` and in the",
        "ranges in brackets: a second below stands for up to a minute. Thresholds are the shipped ones. Others are",
        "alerts that fired too in the same round.",
        "",
        "| Alert | Fault | fired after | stopped after | Labels | Others |",
        "|---|---|---|---|---|---|",
    ]
    for each in outcomes:
        fired, stopped = (
            f"{seconds:.1f} s" if seconds is not None else "**never**"
            for seconds in (each.fired_s, each.stopped_s)
        )
        lines.append(
            f"| {each.alert} | {each.what} | {fired} | {stopped} | {each.labels} | {', '.join(each.others)} |"
        )
    if missing:
        lines += ["", f"**No fault was done for:** {', '.join(missing)}"]
    held = sum(each.held for each in outcomes)
    return "\n".join([*lines, "", f"{held} of {len(outcomes) + len(missing)} fired and stopped.", ""])


if __name__ == "__main__":
    sys.exit(main())
