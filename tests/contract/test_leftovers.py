"""A run of pytest that leaves something behind fails, and says what."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFTEST = """\
from testkit import leftovers
leftovers._GRACE_S = 0.3
from testkit.leftovers import *
"""
LEAVES = {
    "subprocess.Popen(['sleep', '1000.5'], start_new_session=True)": "sleep 1000.5",
    "subprocess.run(['sh', '-c', 'sleep 1000.6 &'])": "sleep 1000.6",
    "kept.append(socket.create_server(('127.0.0.1', 0)))": "a socket: port ",
    "kept.append(socket.socket(socket.AF_UNIX)); kept[-1].bind(f'\\0left-by-{os.getpid()}')": "a socket: @left-by-",
    "tempfile.mkdtemp(prefix='left-')": "left-",
}
"""What a test does, and how what it leaves is named."""


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "leaves"), [("0", LEAVES), ("2", LEAVES), ("2", {})])
def test_a_run_that_leaves_something_fails_and_names_it(tmp_path: Path, workers: str, leaves: dict[str, str]) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(
        "import os, socket, subprocess, tempfile\nkept = []\n\ndef test_a(tmp_path) -> None:\n"
        + "\n".join(f"    {statement}" for statement in ("(tmp_path / 'a').touch()", *leaves))
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_DEBUG_TEMPROOT"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", workers, "-p", "no:randomly", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert ("left by the run" in done.stdout) is bool(leaves)
    assert [named for named in leaves.values() if named not in done.stdout] == []
    assert done.returncode == int(bool(leaves))
    assert list(tmp_path.glob("sluice-run-*")) == []
