"""``python -m campaigns.stalls``: the tests, while random processes of the run stand still, brokers too.

A process on a busy or paused machine may stop for a second between any two instructions. So one process after the
other is stopped (SIGSTOP) for up to a second and continued. A test that fails has a bound that such a machine
reaches, or a race in the gateway: one between two messages needs no more than the wrong moment.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from testkit.process_group import children, runs


def main() -> int:
    """Run, and return the exit code of the tests."""
    parser = argparse.ArgumentParser(prog="python -m campaigns.stalls", description=__doc__)
    parser.add_argument(
        "targets", nargs="*", default=["unit", "integration"], help="of make, one after the other"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="the longest stop")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two stops")
    options = parser.parse_args()
    command = [
        "make",
        "--no-print-directory",
        "--keep-going",
        "-j1",
        *options.targets,
        f"ORDER={options.seed}",
    ]
    code, stops = run(command, longest_s=options.seconds, every_s=options.every, seed=options.seed)
    print(f"{stops} stops of up to {options.seconds:g} s, and {'a' if code else 'no'} test failed")
    return code


def run(command: Sequence[str], *, longest_s: float, every_s: float, seed: int) -> tuple[int, int]:
    """Run a command whose processes stand still now and then.

    Args:
        command: to run.
        longest_s: the longest stop; the shortest is a third of it.
        every_s: the average time between two stops.
        seed: of moments and processes.

    Returns:
        The exit code, and the number of stops.
    """
    dice, stops = random.Random(seed), 0
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            time.sleep(every_s * dice.uniform(0.5, 1.5))
            running = [pid for pid in _descendants(process.pid) if runs(pid)]
            if running:
                with suppress(ProcessLookupError):
                    _stop(dice.choice(running), longest_s * dice.uniform(0.3, 1.0))
                    stops += 1
    return process.returncode, stops


def _stop(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(FileNotFoundError):  # it has ended
        for child in children(pid):
            found += [child, *_descendants(child)]
    return found


if __name__ == "__main__":
    sys.exit(main())
