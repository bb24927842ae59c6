"""A shell and other programs, for tests that type in the commands of a page."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from testkit.page_commands import ROOT, Block
from testkit.process_group import kill_all

END: Final = "-- end of a command --"
START_S: Final = 240.0
COMMAND_S: Final = 240.0
"""Well below the time after which pytest ends a test without naming its command."""
PATH: Final = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
# `make` runs in the checkout; files that a page writes go to another folder.
_PREAMBLE: Final = (
    f'shopt -s expand_aliases\nmake() {{ command make -C "{ROOT}" --no-print-directory "$@"; }}\n'
)


def plain(line: str) -> str:
    """A line without the parts that differ from run to run: numbers and the width of columns."""
    return re.sub(r"\s+", " ", re.sub(r"-?\d[\d.:+e-]*", "#", line)).strip()


def fits(expected: str, printed: str) -> bool:
    """Whether a line of the page matches a line of the output."""
    parts = (re.escape(plain(part)) for part in expected.split("..."))
    return re.fullmatch(r"\s*.*\s*".join(parts), plain(printed)) is not None


@contextmanager
def staying(command: str, ready: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Runs a command in a terminal of its own, and waits until it has printed `ready`."""
    program = subprocess.Popen(
        ["bash", "-c", f"{_PREAMBLE}{command}"],
        cwd=folder,
        env={**os.environ, "PATH": PATH, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert program.stdout is not None
    printed: list[str] = []
    is_ready = threading.Event()

    def read() -> None:
        for line in program.stdout or ():
            printed.append(line)
            if ready in line:
                is_ready.set()
        is_ready.set()

    reading = threading.Thread(target=read)
    reading.start()
    try:
        is_ready.wait(START_S)
        if not any(ready in line for line in printed):
            pytest.fail(f"{command} did not print {ready!r}:\n{''.join(printed)}")
        yield program
    finally:
        os.killpg(program.pid, signal.SIGTERM)
        program.wait(60)
        reading.join(60)  # until the programs that it has started have ended and released ports
        assert not reading.is_alive()
        program.stdout.close()


class Shell:
    """A shell that runs typed commands, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._program = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env={**os.environ, "PATH": PATH, "TMPDIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._type(_PREAMBLE)

    def output(self, command: str) -> list[str]:
        """The lines that a command prints."""
        # A command that reads standard input must not read the next commands.
        self._type(f"{{ {command}\n}} </dev/null\necho '{END}'\n")
        # Kills all programs that it has started too: as long as one has the pipe open, the loop below would wait.
        giving_up = threading.Timer(COMMAND_S, kill_all, [self._program.pid])
        giving_up.start()
        lines: list[str] = []
        try:
            assert self._program.stdout is not None
            for line in self._program.stdout:
                if line.endswith(f"{END}\n"):
                    return [*lines, line.removesuffix(f"{END}\n")]
                lines.append(line.rstrip("\n"))
        finally:
            giving_up.cancel()
        pytest.fail(f"{command}: no end within {COMMAND_S:.0f} s\n" + "\n".join(lines))

    def close(self) -> None:
        """Ends the shell and the programs that it has started."""
        kill_all(self._program.pid)
        self._program.communicate()

    def _type(self, text: str) -> None:
        assert self._program.stdin is not None
        self._program.stdin.write(text)
        self._program.stdin.flush()


def type_in(
    blocks: Iterable[Block],
    folder: Path,
    *,
    setup: str = "",
    written_as: Callable[[str], str] = lambda text: text,
) -> None:
    """Types in the commands of a page, and checks their output.

    Args:
        blocks: files and commands of the page, in order.
        folder: the folder for files and commands.
        setup: commands before all others.
        written_as: replacements for texts of the page, such as the address of an existing broker.
    """
    with ExitStack() as stack:
        shell = Shell(folder)
        stack.callback(shell.close)
        if setup:
            shell.output(setup)
        for block in blocks:
            if block.title is not None:
                (folder / block.title).write_text(written_as(block.text))
                continue
            for command in block.commands():
                text = written_as(command.text)
                if block.ready_text is not None:
                    stack.enter_context(staying(text, block.ready_text, folder))
                    continue
                printed = shell.output(text)
                missing = [
                    line
                    for line in map(written_as, command.output)
                    if line != "..." and not any(fits(line, each) for each in printed)
                ]
                assert missing == [], f"{block.place}: {text}\n" + "\n".join(printed)
