"""Fails a pytest run that leaves a process, a socket or a temporary folder behind.

tests/conftest.py imports these hooks. All processes of the run inherit a variable by which they are found, and are
then ended. Temporary folders are found because the run has its own directory for them. Sockets are checked only in
the process that runs tests, at its end: those of other processes end with them.

Files that Java programs write below /tmp are not checked.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

_RUN: Final = "SLUICE_TEST_RUN"
_GRACE_S: Final = 15.0
"""Time for processes that end by themselves after their parent."""
_LISTENS: Final = "0A"
_TMPDIRS: Final = ("TMPDIR", "TEMP", "TMP")
_FOUND: Final = pytest.StashKey[list[str]]()
_FOLDER: Final = pytest.StashKey[Path]()
_BEFORE: Final = pytest.StashKey[list[str]]()
_began: Final[list[tuple[int, str]]] = []
"""Process id and mark of the run that began here. Forks and runs inside a test inherit the mark."""


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    """Marks all processes of the run, and gives it a directory for temporary files."""
    config.stash[_FOUND] = []
    if _is_worker(config):
        return
    os.environ[_RUN] = uuid.uuid4().hex
    _began.append((os.getpid(), os.environ[_RUN]))
    # Folders of tests stay where pytest keeps those of its last runs.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="sluice-run-"))
    os.environ.update(dict.fromkeys(_TMPDIRS, str(folder)))
    tempfile.tempdir = None
    config.stash[_FOLDER] = folder


def pytest_sessionstart(session: pytest.Session) -> None:
    """Records the sockets of plugins, which are not leftovers."""
    session.config.stash[_BEFORE] = sockets(os.getpid())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Reports what a worker of pytest-xdist has found in its own process."""
    node.config.stash[_FOUND] += getattr(node, "workeroutput", {}).get("left", [])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Searches for leftovers. Workers of pytest-xdist have ended by now."""
    config = session.config
    found = config.stash[_FOUND]
    # Spark listens for callbacks of its streams until the process ends.
    if "pyspark" not in sys.modules:
        found += [f"a socket: {each}" for each in sockets(os.getpid()) if each not in config.stash[_BEFORE]]
    if _is_worker(config):
        config.workeroutput["left"] = found  # type: ignore[attr-defined]
        return
    for pid, command in left_after(_GRACE_S):
        found.append(f"process {pid}: {command}")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    folder = config.stash[_FOLDER]
    if session.exitstatus == pytest.ExitCode.OK:
        found += [f"a temporary file: {path}" for path in sorted(folder.iterdir())]
        shutil.rmtree(folder, ignore_errors=True)
    # Folders that failed tests keep for inspection stay.
    with suppress(OSError):
        folder.rmdir()
    if found and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Names the leftovers."""
    if found := config.stash[_FOUND]:
        terminalreporter.section("left by the run", red=True)
        for line in found:
            terminalreporter.line(line)


def end_processes() -> None:
    """Ends all other processes with the mark of the run, if it began in this one."""
    if (os.getpid(), os.environ.get(_RUN)) in _began:
        for pid, _ in _processes():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def left_after(grace_s: float) -> list[tuple[int, str]]:
    """Process ids and command lines of the run's processes that live longer than this."""
    end_s = time.monotonic() + grace_s
    while (found := list(_processes())) and time.monotonic() < end_s:
        time.sleep(0.05)
    return found


def _processes() -> Iterator[tuple[int, str]]:
    mark = f"{_RUN}={os.environ[_RUN]}".encode()
    for path in Path("/proc").iterdir():
        # Processes of other users, and those that have just ended, are not part of this run.
        with suppress(OSError):
            if not path.name.isdigit() or int(path.name) == os.getpid():
                continue
            is_child = _parent_of(path) == os.getpid()
            if is_child or mark in (path / "environ").read_bytes().split(b"\0"):
                command = (
                    (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                )
                if command:  # a process without one has ended, and its parent has not read its exit code yet
                    yield int(path.name), command[:300]


def _parent_of(path: Path) -> int:
    return int((path / "stat").read_text().rpartition(")")[2].split()[1])


def sockets(pid: int) -> list[str]:
    """The addresses on which a process listens, and its names of abstract sockets."""
    own = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            own.add(os.readlink(each))
    found = []
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                _, address, _, state, *rest = line.split()
                if state == _LISTENS and f"socket:[{rest[5]}]" in own:
                    found.append(f"port {int(address.rpartition(':')[2], 16)}")
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        columns = line.split(maxsplit=7)
        if len(columns) == 8 and columns[7].startswith("@") and f"socket:[{columns[6]}]" in own:
            found.append(columns[7])
    return found
