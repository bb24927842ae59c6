"""Runs in fresh clones: what is committed runs, and each run is kept."""

import subprocess
import sys
from pathlib import Path

import pytest

from campaigns.fresh_clones import Run, keep, run

# Fails unless its parent has started that many processes that compute.
COUNTS = """
import os, sys
from pathlib import Path
children = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
lines = [Path(f"/proc/{each}/cmdline").read_bytes() for each in children]
sys.exit(sum(b"while os.getppid() == parent" in line for line in lines) != int(sys.argv[1]))
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "counts.py").write_text(COUNTS)
    identity = ("-c", "user.name=Sluice", "-c", "user.email=sluice@localhost")
    for arguments in (("init",), ("add", "."), (*identity, "commit", "--message", "first")):
        subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("busy", [0, 2])
def test_a_run_is_of_what_is_committed_beside_that_many_busy_processes(
    repository: Path, tmp_path: Path, busy: int
) -> None:
    (repository / "counts.py").write_text("raise SystemExit(1)")
    found = run([sys.executable, "counts.py", str(busy)], repository, busy=busy, log=tmp_path / "log")
    assert (found.passed, found.busy) == (True, busy)
    assert found.cpu_s > 0
    assert not run([sys.executable, "-c", "exit(3)"], repository, busy=0, log=tmp_path / "log").passed


def test_each_run_is_kept(tmp_path: Path) -> None:
    keep(Run("2026-11-30T10:00+00:00", "abc", 2, 0, 540.0, 1000.0, True), tmp_path)
    keep(Run("2026-11-30T11:00+00:00", "abd", 2, 2, 1080.0, 1200.0, False), tmp_path)
    rows = (tmp_path / "fresh-clones.md").read_text().splitlines()[-2:]
    assert rows == [
        "| 2026-11-30T11:00+00:00 | abd | 2 | 2 | 18.0 | 1,200 | **failed** |",
        "| 2026-11-30T10:00+00:00 | abc | 2 | 0 | 9.0 | 1,000 | passed |",
    ]
