"""The session in docs/quotas.md, typed in as it stands there: what a newcomer sees is what the page says."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.integration

PAGE: Final = Path(__file__).parents[2] / "docs" / "quotas.md"
SECTION: Final = "## From nothing to a throttled client"
MARK: Final = "-- end of a command --"
# Typed in another shell, or only to find the programs.
NOT_TYPED: Final = ("make run", "source ")


def session() -> list[tuple[str, list[str]]]:
    """Commands, each with the lines that it prints."""
    text = PAGE.read_text().split(SECTION)[1].split("\n## ")[0]
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line:
                found[-1][1].append(line)
    return [(command, lines) for command, lines in found if not command.startswith(NOT_TYPED)]


def plain(line: str) -> str:
    """A line without what differs from run to run: numbers and the width of columns."""
    return re.sub(r"\s+", " ", re.sub(r"-?\d[\d.:+-]*", "#", line)).strip()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[None]:
    """`make run`, ready for clients; the default ports have to be free."""
    program = subprocess.Popen(
        [str(Path(sys.executable).parent / "sluice"), "serve"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    giving_up = threading.Timer(240, program.kill)
    giving_up.start()
    assert program.stdout is not None
    assert program.stderr is not None
    # The log is small, but a full pipe would stop the gateway.
    complaints: list[str] = []
    reading = threading.Thread(target=lambda: complaints.extend(program.stderr or ()))
    reading.start()
    try:
        ready = any("Stop with Ctrl-C" in line for line in program.stdout)
        if not ready:
            reading.join(10)
            if any("cannot listen" in line for line in complaints):
                pytest.skip("the default ports are taken")
            pytest.fail("".join(complaints))
        yield
    finally:
        program.terminate()
        program.wait(30)
        giving_up.cancel()
        reading.join(10)
        program.stdout.close()
        program.stderr.close()


@pytest.mark.usefixtures("gateway")
def test_the_session_of_the_page_gives_what_the_page_shows(tmp_path: Path) -> None:
    commands = session()
    script = "shopt -s expand_aliases\n" + "".join(f"{command}\necho '{MARK}'\n" for command, _ in commands)
    done = subprocess.run(
        ["bash"],
        input=script,
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    printed = done.stdout.split(f"{MARK}\n")
    assert len(printed) == len(commands) + 1, done.stderr
    for (command, expected), output in zip(commands, printed, strict=False):
        lines = [plain(line) for line in output.splitlines()]
        missing = [line for line in expected if line != "..." and plain(line) not in lines]
        assert missing == [], f"{command}\n{output}\n{done.stderr}"
    assert sum(len(expected) for _, expected in commands) > 20
