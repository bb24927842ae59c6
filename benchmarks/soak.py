"""``python -m benchmarks.soak``: an hour of faults; keeps results. Exit code 1 when the gateway leaked anything."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.keep import command_line, keep_results
from benchmarks.relay.machine import describe_machine, load_average
from campaigns.soak.campaign import soak, summarize
from campaigns.soak.faults import KINDS
from testkit.faults.schedule import Schedule, add_option

RESULTS: Final = Path(__file__).resolve().parent / "results"
GOAL_MIB: Final = 1.0


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--output", type=Path, default=RESULTS)
    add_option(parser, KINDS)
    options = parser.parse_args()
    schedule: Schedule | None = options.schedule
    seed = schedule.seed if schedule else options.seed
    started = datetime.now(UTC).isoformat(timespec="seconds")
    machine = describe_machine()
    begun_s = time.monotonic()
    readings, count, errors = asyncio.run(soak(options.minutes, seed, schedule))
    summary = summarize(readings) | asdict(count) | {"errors": len(errors)}
    document = {
        "command": command_line("benchmarks.soak"),
        "started": started,
        "seconds": round(time.monotonic() - begun_s),
        "machine": machine | {"load_average_after": load_average()},
        "summary": summary,
        "errors": errors,
        "rows": [asdict(each) for each in readings],
    }
    text = page(document)
    if schedule is None:
        keep_results(document, text, options.output, "soak")
    print(text)
    left = ("descriptors_more", "tasks_more", "connections_not_accounted", "wrong", "errors")
    return int(summary["rss_mib_in_10_minutes"] > GOAL_MIB or any(summary[name] > 0 for name in left))


def page(document: dict[str, Any]) -> str:
    """Markdown."""
    machine, found = document["machine"], document["summary"]
    rows = document["rows"]
    return "\n".join(
        [
            "# An hour of faults",
            "",
            f"`{document['command']}`, {document['started']}, commit {machine['commit']}. {machine['cpu']}, "
            f"{machine['cores']} cores, Python {machine['python']}. Load average before "
            f"{machine['load_average_before']}, after {machine['load_average_after']}.",
            "",
            "One gateway process before a scripted broker, with usage files, quotas in SQLite and four steady "
            f"clients. In each minute {len(KINDS)} kinds of faults come once: "
            f"{', '.join(each.replace('-', ' ') for each in KINDS)}. Then it is read.",
            "",
            f"**{len(rows)} minutes: {found['rss_mib_in_10_minutes']:.2f} MiB more in 10 minutes "
            f"({found['rss_mib_first']:.1f} after the warm-up and {found['rss_mib_last']:.1f} at the end), "
            f"{found['descriptors_more']:.0f} descriptors and {found['tasks_more']:.0f} tasks more; "
            f"{found['opened']:,.0f} connections, {found['connections_not_accounted']:.0f} not accounted for; "
            f"{found['answered']:,.0f} requests answered, {found['wrong']:.0f} wrongly; "
            f"{found['errors']} errors in the log**",
            "",
            "The slope is that of a line through the readings after the first sixth. The number of connections not "
            "accounted for is the sum over all readings of opened less closed less active.",
            "",
            "| Minute | Resident MiB | Descriptors | Tasks | Opened | Closed | Active |",
            "|---|---|---|---|---|---|---|",
            *(
                f"| {each['at_s'] / 60:.0f} | {each['rss_bytes'] / 2**20:.1f} | {each['descriptors']} | "
                f"{each['tasks']} | {each['opened']:,} | {each['closed']:,} | {each['active']} |"
                for each in rows
            ),
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
