"""The same seeds on two cores: `python -m tests.fuzz.both_cores [--seconds N] [--seed N]`.

It ends with 0 when both did the same with all of them, and nothing that no core may do. Otherwise it names the first
seed that shows something, and prints where the two part.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

ROOT: Final = Path(__file__).parents[3]
COMPILED: Final = ROOT / "build" / "compiled" / "sluice"

_PROGRAM: Final = "tests.fuzz.both_cores.one_core"
_SEEDS_AT_ONCE: Final = 20
_LINES_BEFORE: Final = 6
_MOST_CHARS: Final = 500


class Core:
    """A process that plays seeds.

    Attributes:
        name: of the core that it has imported, and sources that are not those it was compiled from.
    """

    def __init__(self, packages: Path) -> None:
        """Start it; `packages` is the folder of the gateway's packages."""
        self._command = [sys.executable, "-P", "-m", _PROGRAM]
        path = os.pathsep.join(map(str, dict.fromkeys((packages, ROOT))))
        self._environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            self._command, env=self._environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.name = self._line()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the process has ended: {self._process.wait()}"
        return line.strip()

    def begin(self, seeds: list[int]) -> None:
        """Have these played; `ended` waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{seed}\n" for seed in seeds))
        self._process.stdin.flush()

    def ended(self, seeds: list[int]) -> list[str]:
        """For each seed a digest of all that happened, and the first thing that no core may do, if there was one."""
        return [self._line().removeprefix(f"{seed} ") for seed in seeds]

    def lines(self, seed: int) -> list[str]:
        """All that happens to one seed, in a process of its own."""
        run = subprocess.run(
            [*self._command, str(seed)],
            env=self._environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        return run.stdout.splitlines()


def compare(one: Core, other: Core, seeds: Iterable[int], *, seconds: float = float("inf")) -> str | None:
    """What is to be said of the first seed that the cores do not play alike, or that fails; None: there is none.

    Args:
        one, other: the cores.
        seeds: played in this order.
        seconds: after which no more are begun.
    """
    end_s = time.monotonic() + seconds
    left = iter(seeds)
    while time.monotonic() < end_s and (some := list(itertools.islice(left, _SEEDS_AT_ONCE))):
        for core in (one, other):
            core.begin(some)
        for seed, first, second in zip(some, one.ended(some), other.ended(some), strict=True):
            if first != second or " " in first:
                return explain(one, other, seed)
    return None


def explain(one: Core, other: Core, seed: int) -> str:
    """Where the cores part, or where both fail."""
    first, second = one.lines(seed), other.lines(seed)
    at = next((at for at, pair in enumerate(zip(first, second)) if pair[0] != pair[1]), min(len(first), len(second)))
    failed = next((at for at, line in enumerate(first) if line.startswith("FAILED")), at)
    at = min(at, failed)
    told = [f"seed {seed}; to repeat it: python -m tests.fuzz.both_cores --seed {seed}"]
    told += [f"  {line}" for line in first[max(0, at - _LINES_BEFORE) : at]]
    for core, lines in ((one, first), (other, second)):
        told.append(f"{core.name}: {lines[at] if at < len(lines) else 'nothing more'}")
    return "\n".join(line[:_MOST_CHARS] for line in told)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.both_cores")
    parser.add_argument("--seconds", type=float, default=60, help="how long (60)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seed", type=int, help="this one alone")
    arguments = parser.parse_args()
    seeds: Iterable[int] = itertools.count(arguments.first) if arguments.seed is None else [arguments.seed]
    played = itertools.count()
    with Core(ROOT) as sources, Core(COMPILED) as other:
        # Without a build, its process imports the sources, which do what the sources do.
        if other.name != "compiled core":
            print(f"{COMPILED} holds no core of these sources, but {other.name}; make compiled builds it")
            return 2
        found = compare(sources, other, (seed for seed in seeds if next(played) >= 0), seconds=arguments.seconds)
        print(found or f"{sources.name} and {other.name} did the same with {next(played):,} seeds")
    return 0 if found is None else 1


if __name__ == "__main__":
    sys.exit(main())
