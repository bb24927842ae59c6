"""Coverage-guided fuzzing of what is parsed before anybody is known; campaigns fuzz longer and more targets."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.integration

RUNS: Final = 20_000
"""A few seconds of each target."""
HANGS_S: Final = 300


def start(target: str, corpus: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.fuzz.atheris_run", target]
    arguments = ["--seconds", str(HANGS_S), "--runs", str(RUNS), "--corpus", str(corpus)]
    return subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    try:
        output, _ = process.communicate(timeout=HANGS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        pytest.fail(f"did not end by itself:\n{output[-2000:]}")
    return output


def test_harness_finds_a_planted_bug(tmp_path: Path) -> None:
    process = start("planted", tmp_path)
    output = finish(process)
    assert process.returncode != 0
    assert "RuntimeError: the planted bug" in output
    (crash,) = tmp_path.glob("crash-*")
    assert crash.read_bytes().startswith(b"sluice")


@pytest.mark.campaign
def test_h04_sasl_and_h25_proxy_headers_are_fuzzed(tmp_path: Path) -> None:
    running = {name: start(name, tmp_path / name) for name in ("sasl", "proxy_protocol")}
    for name, process in running.items():
        output = finish(process)
        assert process.returncode == 0, f"{name}:\n{output[-4000:]}"
        (runs,) = (line for line in output.splitlines() if "number_of_executed_units" in line)
        assert int(runs.rpartition(":")[2]) >= RUNS, output[-1000:]
