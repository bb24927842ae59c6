"""`python -m simulation`: runs seeds, finds laws that break, and shrinks the plans that break them."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final

from simulation.attacks import ATTACKS, run_attack
from simulation.plan import KINDS, Plan, hour, make
from simulation.run import Outcome, run
from simulation.shares import run_shares
from simulation.shrink import shrink
from simulation.world import Stuck
from testkit.faults.schedule import Schedule, add_option

ROOT: Final = Path(__file__).parents[1]
COMPILED: Final = ROOT / "build" / "compiled" / "sluice"
_AT_ONCE: Final = 25


def line_of(seed: int) -> str:
    """The digest of a seed and the laws that it breaks, in one line."""
    try:
        outcome = run(make(seed))
    except Stuck as exc:
        return f"{seed} stuck {exc}"
    except Exception as exc:  # noqa: BLE001  (a seed that cannot be run is a finding too)
        return f"{seed} failed {type(exc).__name__}: {exc}"
    return " ".join(
        [str(seed), outcome.digest, *(str(each).replace("\n", " ") for each in outcome.violations)]
    )


def _lines(seeds: Sequence[int]) -> list[str]:
    return [line_of(seed) for seed in seeds]


def lines(seeds: Sequence[int], jobs: int) -> Iterator[str]:
    """The lines of many seeds, in order.

    Args:
        seeds: the seeds.
        jobs: the number of processes.
    """
    parts = [seeds[at : at + _AT_ONCE] for at in range(0, len(seeds), _AT_ONCE)]
    if jobs == 1:
        for part in parts:
            for seed in part:
                yield line_of(seed)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for found in pool.map(_lines, parts):
            yield from found


def is_broken(line: str) -> bool:
    """Whether the line of a seed reports a broken law."""
    return len(line.split(" ", 2)) > 2


def as_test(plan: Plan, outcome: Outcome) -> str:
    """The text of a test that runs a plan; the plan is for `tests/simulation/findings.py`."""
    law = outcome.violations[0].law if outcome.violations else "fails"
    body = str(plan).replace("\n", "\n    ")
    return f"def test_{law}() -> None:\n    plan = {body}\n    assert run(plan).violations == []\n"


def _one(seed: int, *, smaller: bool, schedule: Schedule | None = None) -> int:
    plan = make(seed)
    if schedule is not None:
        plan = replace(plan, faults=tuple(chain.from_iterable(schedule.rounds.values())))
    print(Schedule(seed, {0: plan.faults}), end="")
    outcome = run(plan)
    print(f"seed {seed}: {outcome.events:,} events, {outcome.counts}, digest {outcome.digest}")
    for each in outcome.violations:
        print(f"  {each}")
    if outcome.violations:
        plan = shrink(plan) if smaller else plan
        print(as_test(plan, run(plan)))
    return 1 if outcome.violations else 0


def _many(seeds: Sequence[int], jobs: int, *, at_first: bool, smaller: bool) -> int:
    began_s, broken = time.monotonic(), []
    for line in lines(seeds, jobs):
        if is_broken(line):
            print(line[:600], flush=True)
            broken.append(int(line.split(" ", 1)[0]))
            if at_first:
                break
    print(
        f"{len(seeds):,} seeds, {len(broken)} with a law that was broken, {time.monotonic() - began_s:.0f} s"
    )
    if broken and smaller:
        return _one(broken[0], smaller=True)
    return 1 if broken else 0


def _hour() -> int:
    began_s = time.process_time()
    outcome = run(hour())
    took_s = time.process_time() - began_s
    counts = ", ".join(f"{count:,} {what}" for what, count in outcome.counts.items())
    print(f"a simulated hour: {outcome.events:,} events, {counts}, {took_s:.1f} s of CPU time")
    for each in outcome.violations:
        print(f"  {each}")
    return 1 if outcome.violations else 0


def _shares(seeds: Sequence[int], jobs: int) -> int:
    broken = 0
    with ProcessPoolExecutor(jobs) as pool:
        for seed, found in zip(seeds, pool.map(run_shares, seeds), strict=True):
            broken += bool(found)
            for each in found[:3]:
                print(f"{seed} {each}", flush=True)
    print(f"{len(seeds):,} seeds that divide a capacity, {broken} with a promise that was broken")
    return 1 if broken else 0


def _attacks(names: Sequence[str], seeds: Sequence[int], jobs: int) -> int:
    broken = 0
    plays = [(name, seed) for seed in seeds for name in names]
    with ProcessPoolExecutor(jobs) as pool:
        for play, found in zip(plays, pool.map(run_attack, *zip(*plays, strict=True)), strict=True):
            broken += bool(found)
            for each in found[:3]:
                print(*play, each, flush=True)
    print(f"{len(plays):,} attacks on shares, {broken} with a bound that was broken")
    return 1 if broken else 0


def _compare(packages: Path, seeds: Sequence[int]) -> int:
    """Runs seeds with the sources and with other packages; both must have the same results."""
    found = []
    for each in (ROOT, packages):
        path = os.pathsep.join(map(str, dict.fromkeys((each, ROOT))))
        command = [
            sys.executable,
            "-P",
            "-m",
            "simulation",
            "--seeds",
            f"{seeds[0]}:{seeds[-1] + 1}",
            "--digests",
        ]
        found.append(
            subprocess.Popen(
                command, env={**os.environ, "PYTHONPATH": path}, cwd=ROOT, stdout=subprocess.PIPE, text=True
            )
        )
    outputs = [each.communicate()[0].splitlines() for each in found]
    sources, other = outputs
    print(f"{sources[0]} and {other[0]}: {len(seeds):,} seeds")
    for first, second in zip(sources[1:], other[1:], strict=True):
        if first != second or is_broken(first):
            print(f"  {sources[0]}: {first[:400]}\n  {other[0]}: {second[:400]}")
            return 1
    return 0


def _range(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end))


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed and show what it does")
    add_option(parser, KINDS)
    parser.add_argument("--seeds", type=_range, default=range(100), help="run these, as 0:100 (the default)")
    parser.add_argument("--jobs", type=int, default=1, help="processes to run them in (1)")
    parser.add_argument(
        "--hour", action="store_true", help="run two gateways with two workers each and 50 clients"
    )
    parser.add_argument("--shares", action="store_true", help="run seeds that divide a capacity")
    parser.add_argument(
        "--attacks",
        nargs="*",
        choices=list(ATTACKS),
        help="run attacks on shares with the seeds (all of them)",
    )
    parser.add_argument(
        "--compare", type=Path, metavar="PACKAGES", help="run the seeds on other packages as well"
    )
    parser.add_argument("--digests", action="store_true", help="print the digest of each seed")
    parser.add_argument("--at-first", action="store_true", help="end at the first seed that breaks a law")
    parser.add_argument(
        "--no-shrink", action="store_true", help="do not make the first plan that breaks a law smaller"
    )
    arguments = parser.parse_args()
    smaller, schedule = not arguments.no_shrink, arguments.schedule
    if arguments.seed is not None or schedule is not None:
        seed = schedule.seed if arguments.seed is None else arguments.seed
        return _one(seed, smaller=smaller, schedule=schedule)
    if arguments.hour:
        return _hour()
    if arguments.shares:
        return _shares(arguments.seeds, arguments.jobs)
    if arguments.attacks is not None:
        return _attacks(arguments.attacks or list(ATTACKS), arguments.seeds, arguments.jobs)
    if arguments.compare is not None:
        return _compare(arguments.compare, arguments.seeds)
    if arguments.digests:
        from gateway.runtime.compiled_core import core_name

        print(core_name())
        for line in lines(arguments.seeds, arguments.jobs):
            print(line, flush=True)
        return 0
    return _many(arguments.seeds, arguments.jobs, at_first=arguments.at_first, smaller=smaller)


if __name__ == "__main__":
    sys.exit(main())
