"""A run of pytest that is ended from outside says which tests were under way, and what their threads did."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_that_is_ended_names_what_was_under_way(tmp_path: Path, workers: str) -> None:
    (tmp_path / "conftest.py").write_text("from testkit.ended_early import *\n")
    (tmp_path / "test_it.py").write_text(
        "import pathlib, time\n\n\ndef test_a() -> None:\n    pass\n\n\ndef test_b() -> None:\n    pass\n\n\n"
        "def test_that_waits() -> None:\n    pathlib.Path('waits').touch(); time.sleep(300)\n"
    )
    options = ["-v", "-n", workers, "--dist", "loadfile", "-p", "no:randomly", "-p", "no:cacheprovider"]
    with (tmp_path / "printed").open("w") as printed:
        run = subprocess.Popen(
            [sys.executable, "-u", "-m", "pytest", *options],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=printed,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    # What a worker says comes in its order: with the third test the end of the first is known.
    while "test_that_waits" not in (tmp_path / "printed").read_text() or not (tmp_path / "waits").exists():
        assert run.poll() is None
        time.sleep(0.02)
    os.killpg(run.pid, signal.SIGTERM)
    _, said = run.communicate(timeout=60)
    assert run.returncode == -signal.SIGTERM, said
    named = said.partition("begun and not ended:\n")[2]
    assert "test_it.py::test_that_waits" in named
    assert "test_it.py::test_a" not in said
    assert 'test_it.py", line 13 in test_that_waits' in said
