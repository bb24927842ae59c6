"""Reports the state of a pytest run that is ended from outside, by a time limit or a person.

tests/conftest.py imports these hooks. On SIGTERM every process of the run writes the stacks of its threads. The
process that distributes tests writes which of them had begun and not ended. Workers of pytest-xdist write to files,
which are then shown one after the other: written to one place at the same time, their lines would mix. Then it ends
all processes with the mark of its run (`testkit/leftovers.py`).
"""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from testkit import leftovers

_GRACE_S: Final = 5.0
"""Time for a worker to end. A worker without a signal does not end."""

_fds: Final[list[int]] = []
"""The file for this process's output. While tests run, pytest replaces stderr."""
_under_way: Final[dict[str, None]] = {}
_workers: Final[list[int]] = []


def pytest_configure(config: pytest.Config) -> None:
    """Handles SIGTERM."""
    if hasattr(config, "workerinput"):
        _fds.append(os.open(_file(os.getpid()), os.O_WRONLY | os.O_CREAT))
    else:
        _fds.append(os.dup(2))
        signal.signal(signal.SIGTERM, _tell)
    faulthandler.register(signal.SIGTERM, file=_fds[0], chain=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the file of a worker."""
    if hasattr(config, "workerinput"):
        _file(os.getpid()).unlink(missing_ok=True)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready(node: Any) -> None:
    """A worker of pytest-xdist has started."""
    _workers.append(node.gateway._rinfo().pid)


def pytest_runtest_logstart(nodeid: str) -> None:
    """A test has begun, here or in a worker."""
    _under_way[nodeid] = None


def pytest_runtest_logfinish(nodeid: str) -> None:
    """A test has ended."""
    _under_way.pop(nodeid, None)


def _file(worker: int) -> Path:
    return Path(tempfile.gettempdir(), f"threads-of-{worker}")


def _tell(number: int, frame: FrameType | None) -> None:
    os.write(_fds[0], "\n  ".join(["\nended by SIGTERM; begun and not ended:", *_under_way, ""]).encode())
    until_s = time.monotonic() + _GRACE_S
    for worker in _workers:
        while not _has_ended(worker) and time.monotonic() < until_s:
            time.sleep(0.02)
        if (file := _file(worker)).exists():
            os.write(_fds[0], f"\nworker {worker}:\n".encode() + file.read_bytes())
            file.unlink()
    leftovers.end_processes()
    faulthandler.unregister(number)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _has_ended(worker: int) -> bool:
    try:
        return os.waitpid(worker, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return True
