"""``python -m benchmarks.order``: two million small frames through every quota with random timing.

Exit code 1 when a frame was out of order, lost or changed; the result is kept.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine, load_average
from campaigns.order.run import Outcome, run

RESULTS: Final = Path(__file__).resolve().parent / "results"


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.order", description=__doc__)
    parser.add_argument("--requests", type=int, default=2_000_000)
    parser.add_argument("--limit-s", type=float, default=300.0, help="for the sending")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = describe_machine()
    started = datetime.now(UTC).isoformat(timespec="seconds")
    with tempfile.TemporaryDirectory(prefix="order-") as folder:
        outcome = uvloop.run(
            run(options.requests, folder=Path(folder), seed=options.seed, limit_s=options.limit_s)
        )
    document = {
        "command": f"python -m benchmarks.order --requests {options.requests} --seed {options.seed}",
        "started": started,
        "machine": machine | {"load_average_after": load_average()},
        **outcome.as_row(),
    }
    page = render(document, outcome)
    keep_results(document, page, options.output, "order")
    print(page)
    return int(outcome.out_of_order > 0)


def render(document: dict[str, Any], outcome: Outcome) -> str:
    """The page."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in outcome.of_kind.items())
    throttles = ", ".join(
        f"{count:,} {what} ({outcome.throttled_s.get(what, 0):,.0f} s)"
        for what, count in outcome.throttled_requests.items()
        if count
    )
    lines = [
        "# Order under chaos",
        "",
        f"`{document['command']}`, {document['started']}, commit {document['machine']['commit']}; "
        f"load average after: {document['machine']['load_average_after']}.",
        "",
        f"**{outcome.requests:,} requests, {outcome.answered:,} replies, {outcome.out_of_order} out of order, lost "
        f"or changed**, in {outcome.seconds:,.0f} s.",
        "",
        f"* Requests: {kinds}.",
        f"* The broker got {outcome.at_broker:,} of them, in order; the rest was answered by the gateway itself.",
        f"* {outcome.pieces:,} pieces were written by both ends together: whole, cut anywhere, or a few bytes, with "
        "pauses of up to 20 ms between them; both ends stop reading now and then.",
        "* Byte rates, request percentage and mutation rate are set for every client: for five of eight so low that "
        "they wait again and again, for the others so high that they are only counted. Throttled requests by quota "
        f"and API (and the seconds in replies): {throttles}.",
        f"* Connections ended: {outcome.closed}.",
        "* Every request carries a number and a correlation id that follows from it; the broker checks that each is "
        "the next one of its connection and repeats the number in its reply, the client checks both.",
    ]
    if outcome.faults:
        lines += ["", "Faults:", "", *(f"* {fault}" for fault in outcome.faults)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
