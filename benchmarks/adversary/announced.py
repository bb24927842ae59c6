"""``python -m benchmarks.adversary.announced``: honest clients beside large requests that are announced and not sent.

The attack runs through the gateway and directly at the broker (`each_attack`). The gateway runs from sources and
compiled (`make compiled` first), as one process and with two workers, with TLS and without. Exit code 1 when an
honest client was not served through the gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.adversary import each_attack
from benchmarks.keep import command_line, keep_results
from benchmarks.relay.machine import describe_machine, load_average
from benchmarks.relay.paths import with_compiled_core
from campaigns.adversary.stage import Stage

RESULTS: Final = Path(__file__).resolve().parents[1] / "results"
ATTACKS: Final = ("announced sizes", "announced parts", "unknown versions")


def main() -> int:
    """Measure, keep, report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adversary.announced", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each attack on each side")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    document: dict[str, Any] = {
        "command": command_line("benchmarks.adversary.announced"),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "rows": [],
    }
    tables: list[str] = []
    faults = 0
    for compiled, workers, tls in itertools.product((False, True), (1, 2), (False, True)):
        words = (
            "compiled" if compiled else "sources",
            "one process" if workers == 1 else "two workers",
            "TLS" if tls else "plain",
        )
        kind = ", ".join(words)
        print(kind, flush=True)
        stage = Stage(
            prefix=with_compiled_core([]) if compiled else (),
            more_configuration=f"[server]\nworkers = {workers}\n",
            tls=tls,
        )
        rows = asyncio.run(each_attack.measure(stage, ATTACKS, options.seconds))
        faults += sum(row.faults for row in rows)
        document["rows"] += [{"gateway": kind, **each_attack.as_row(row)} for row in rows]
        tables += ["", f"## {kind[0].upper()}{kind[1:]}", "", *each_attack.table(rows)]
    document["load_average_after"] = load_average()
    title = "# Honest clients beside what is announced and not sent"
    text = "\n".join([title, "", *each_attack.head(document, options.seconds), *tables]) + "\n"
    keep_results(document, text, options.output, "announced")
    print(text)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
