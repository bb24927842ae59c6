"""An ingest that goes on until it is told to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.batches import read_ledger
from tests.pipeline.usage_lines import line, place, row

pytestmark = pytest.mark.spark


def test_sigterm_ends_a_continuous_ingest_with_everything_it_has_read(tmp_path: Path) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", line(0, row()))
    out, log = tmp_path / "out", tmp_path / "log"
    command = [sys.executable, "-m", "tests.support.pipeline_victim", "none", "1", "--trigger", "1s"]
    command += ["--from", f"files:{tmp_path / 'in'}", "--out", str(out), "--master", "local[2]"]
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
    try:
        for lines in (1, 2):
            deadline = time.monotonic() + 120
            while read_ledger(str(out)).lines() < lines:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            if lines == 1:
                place(tmp_path / "in", "usage-a-1.jsonl.gz", line(1, row()))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert "2 batches: 2 lines with 2 rows" in log.read_text()
