"""Processes of a run stand still, and continue."""

import sys
from pathlib import Path

import pytest

from campaigns.stalls import run

# A child of the command measures for how long it stood still, until that was long enough.
MEASURES = """
import subprocess, sys, time
if len(sys.argv) > 1:
    before = time.monotonic()
    while time.monotonic() - before < 0.25:
        before = time.monotonic()
        time.sleep(0.001)
    sys.exit(7)
sys.exit(subprocess.run([sys.executable, __file__, "child"]).returncode)
"""


@pytest.mark.slow
def test_a_process_below_the_command_stands_still_and_goes_on(tmp_path: Path) -> None:
    program = tmp_path / "measures.py"
    program.write_text(MEASURES)
    code, stops = run([sys.executable, str(program)], longest_s=1.0, every_s=0.05, seed=1)
    assert code == 7
    assert stops >= 1
