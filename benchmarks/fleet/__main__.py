"""How well a quota holds over a fleet.

    python -m benchmarks.fleet --gateways 2 --seconds 60   # real gateways and a real Kafka; about 2 minutes
    python -m benchmarks.fleet --gateways 4 --workers 2 --brokers 3   # with several processes each
    python -m benchmarks.fleet --schedules 1000            # random schedules of four kinds; about 5 minutes of CPU
        python -m benchmarks.fleet --schedules 100 --planted   # with a planted error in each member, which must be
        found
    python -m benchmarks.fleet --minutes 100               # four gateways of two workers; about 3 minutes of CPU
    python -m benchmarks.fleet --simulate                  # up to 100 gateways and 10,000 counters; about 15 minutes
    python -m benchmarks.fleet --faults                    # real gateways again, under faults; about 5 minutes

Exit code 1 when the bound or a goal is missed, a planted error is not found, the sum over the gateways is not within
0.95 and 1.05, or after a fault an answer was missing or members disagreed for more than five seconds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from benchmarks.fleet import faults, minutes, real, schedules, simulation
from testkit.faults.schedule import add_option

RESULTS: Final = Path(__file__).resolve().parent.parent / "results"


def main() -> int:
    """Run the requested measurement."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--gateways", type=int, default=2, help="real ones")
    parser.add_argument("--workers", type=int, default=1, help="of each gateway")
    parser.add_argument("--brokers", type=int, default=1, help="of Kafka")
    parser.add_argument("--seconds", type=float, default=60.0, help="that are averaged over")
    parser.add_argument("--warm-up", type=float, default=60.0, help="seconds before that")
    parser.add_argument("--quota", type=int, default=1_000_000, help="bytes per second")
    parser.add_argument("--schedules", type=int, help="play so many instead")
    parser.add_argument("--planted", action="store_true", help="with an error in each member")
    parser.add_argument(
        "--minutes", type=int, metavar="RUNS", help="play so many of a fleet of fixed size instead"
    )
    parser.add_argument("--simulate", action="store_true", help="a large fleet instead")
    parser.add_argument("--faults", action="store_true", help="of real gateways, their workers and a broker")
    add_option(parser, faults.KINDS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.schedules is not None:
        return schedules.run(options.schedules, planted=options.planted, output=options.output)
    if options.minutes is not None:
        return minutes.run(options.minutes, output=options.output)
    if options.simulate:
        return simulation.run(options.output)
    if options.faults:
        return faults.run(options.output, options.schedule)
    return real.run(
        options.gateways,
        options.workers,
        options.brokers,
        seconds=options.seconds,
        warm_up_s=options.warm_up,
        quota=options.quota,
        output=options.output,
    )


if __name__ == "__main__":
    sys.exit(main())
