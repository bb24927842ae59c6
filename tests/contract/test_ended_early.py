"""A run of pytest that is ended from outside says which tests were under way, and ends what they have started."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testkit.process_group import runs

ROOT = Path(__file__).parents[2]
CONFTEST = """\
from testkit import ended_early, leftovers
from testkit.ended_early import *

def pytest_configure(config) -> None:
    leftovers.pytest_configure(config)
    ended_early.pytest_configure(config)
"""
TESTS = """\
import pathlib, subprocess, time

def test_a() -> None:
    pass

def test_b() -> None:
    pass

def test_that_waits() -> None:
    started = subprocess.Popen(['sleep', '1000.7'], start_new_session=True)
    pathlib.Path('started').write_text(str(started.pid)); time.sleep(300)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_that_is_ended_names_what_was_under_way_and_ends_it(tmp_path: Path, workers: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    options = ["-v", "-n", workers, "--dist", "loadfile", "-p", "no:randomly", "-p", "no:cacheprovider"]
    with (tmp_path / "printed").open("w") as printed:
        run = subprocess.Popen(
            [sys.executable, "-u", "-m", "pytest", *options],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
            stdout=printed,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    # What a worker says comes in its order: with the third test the end of the first is known.
    started = tmp_path / "started"
    started.touch()
    while "test_that_waits" not in (tmp_path / "printed").read_text() or not started.read_text():
        assert run.poll() is None
        time.sleep(0.02)
    os.killpg(run.pid, signal.SIGTERM)
    _, said = run.communicate(timeout=60)
    assert run.returncode == -signal.SIGTERM, said
    named = said.partition("begun and not ended:\n")[2]
    assert "test_it.py::test_that_waits" in named
    assert "test_it.py::test_a" not in said
    assert 'test_it.py", line 11 in test_that_waits' in said
    while runs(int(started.read_text())):  # the kernel ends it soon
        time.sleep(0.02)
