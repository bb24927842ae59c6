"""``python -m campaigns.fresh_clones``: the tests, as the README has them, in fresh clones one after the other.

In some runs a busy process per processor competes with the tests. A test that fails there and not in an idle run has
a bound on real time, or a race. Each run is kept in benchmarks/results/fresh-clones.md, also one that failed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from campaigns.__main__ import RESULTS, ROOT, commit_of
from pinned_jars import cache_dir

_TITLE: Final = """\
# Tests in fresh clones

Each run of `.ci/run` in a new clone, the last one first. `make campaigns ONLY=fresh-clones` adds runs. Kafka and
other downloads are in the cache already. "Busy" is the number of processes that compute without end beside the tests.
The CPU time is that of processes whose parents have waited for them. `.ci/run` ends after 45 minutes.

| Date | Commit | Processors | Busy | Minutes | CPU seconds | Result |
|---|---|---|---|---|---|---|
"""
_COMPUTES: Final = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
"""Computes until the process that started it has ended, however that ended."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run.

    Attributes:
        date: when it began, in UTC.
        commit: what was cloned.
        processors: of this machine.
        busy: how many processes computed beside it.
        seconds: how long it took, with the installation of packages.
        cpu_s: user and system time of its processes, without those for which no parent waited.
        passed: whether all tests passed.
    """

    date: str
    commit: str
    processors: int
    busy: int
    seconds: float
    cpu_s: float
    passed: bool


def run(command: Sequence[str], source: Path, *, busy: int, log: Path) -> Run:
    """Run a command in a new clone of a repository.

    Args:
        command: to run in the clone.
        source: the repository. What is not committed is not in the clone.
        busy: how many processes compute meanwhile.
        log: the file for its output.
    """
    date = datetime.now(UTC).isoformat(timespec="minutes")
    # The clone writes bytecode and uses its own packages, as that of a newcomer.
    left_out = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "VIRTUAL_ENV"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment["SLUICE_CACHE_DIR"] = str(cache_dir())
    folder = Path(tempfile.mkdtemp(prefix="fresh-clone-"))
    try:
        clone = folder / "sluice"
        subprocess.run(["git", "clone", "--quiet", source, clone], check=True)
        commit = commit_of(clone)
        with log.open("wb") as output, _busy(busy):
            begun_s, cpu_s = time.monotonic(), _cpu_s()
            done = subprocess.run(
                command, cwd=clone, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
            )
            seconds, cpu_s = time.monotonic() - begun_s, _cpu_s() - cpu_s
    finally:
        shutil.rmtree(folder)
    return Run(date, commit, os.cpu_count() or 1, busy, seconds, cpu_s, done.returncode == 0)


def _cpu_s() -> float:
    """CPU time of child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def _busy(count: int) -> Iterator[None]:
    burners = [subprocess.Popen([sys.executable, "-c", _COMPUTES]) for _ in range(count)]
    try:
        yield
    finally:
        for each in burners:
            each.kill()
            each.wait()


def page(runs: Iterable[Run]) -> str:
    """The page with these runs, the last one first."""
    rows = [
        f"| {each.date} | {each.commit} | {each.processors} | {each.busy} | {each.seconds / 60:.1f} "
        f"| {each.cpu_s:,.0f} | {'passed' if each.passed else '**failed**'} |\n"
        for each in runs
    ]
    return _TITLE + "".join(reversed(rows))


def keep(run: Run, folder: Path) -> None:
    """Add a run to both files, the page and its raw data."""
    raw = folder / "fresh-clones.json"
    runs = [*(Run(**each) for each in (json.loads(raw.read_text()) if raw.exists() else [])), run]
    raw.write_text("[\n " + ",\n ".join(json.dumps(asdict(each)) for each in runs) + "\n]\n")
    (folder / "fresh-clones.md").write_text(page(runs))


def main() -> int:
    """Run, and return 1 if a run failed."""
    parser = argparse.ArgumentParser(prog="python -m campaigns.fresh_clones", description=__doc__)
    parser.add_argument("--idle", type=int, default=3, help="runs without busy processes (3)")
    parser.add_argument(
        "--beside-busy", type=int, default=1, help="runs beside a busy process per processor (1)"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder of the page")
    options = parser.parse_args()
    logs = cache_dir() / "campaigns"
    logs.mkdir(parents=True, exist_ok=True)
    processors = os.cpu_count() or 1
    runs: list[Run] = []
    for busy in (*[0] * options.idle, *[processors] * options.beside_busy):
        log = logs / f"fresh-clones-{len(runs) + 1}.log"
        runs.append(run([".ci/run"], ROOT, busy=busy, log=log))
        keep(runs[-1], options.output)
        print(page(runs[-1:]).splitlines()[-1], flush=True)
        if not runs[-1].passed:
            print("".join(log.read_text(errors="replace").splitlines(keepends=True)[-40:]), flush=True)
    passed = sum(each.passed for each in runs)
    minutes = ", ".join(f"{each.seconds / 60:.1f}" + (" (busy)" if each.busy else "") for each in runs)
    print(f"**{passed} of {len(runs)} runs passed, in minutes: {minutes}**")
    return int(passed < len(runs))


if __name__ == "__main__":
    sys.exit(main())
