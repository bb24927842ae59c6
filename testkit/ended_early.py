"""Says where a run of pytest stood when something outside ends it: a bound of the whole, or a person.

The hooks here are imported by tests/conftest.py. On SIGTERM every process of the run writes what its threads do, and
the one that gives out the tests writes which of them had begun and not ended.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from types import FrameType
from typing import Final

import pytest

_stderr: Final[list[int]] = []
_under_way: Final[dict[str, None]] = {}


def pytest_configure(config: pytest.Config) -> None:
    """Listen for SIGTERM; workers of pytest-xdist only write their threads."""
    # While tests run, pytest has another file in its place.
    _stderr.append(os.dup(2))
    if not hasattr(config, "workerinput"):
        signal.signal(signal.SIGTERM, _tell)
    faulthandler.register(signal.SIGTERM, file=_stderr[0], chain=True)


def pytest_runtest_logstart(nodeid: str) -> None:
    """A test has begun, here or in a worker."""
    _under_way[nodeid] = None


def pytest_runtest_logfinish(nodeid: str) -> None:
    """It has ended."""
    _under_way.pop(nodeid, None)


def _tell(number: int, frame: FrameType | None) -> None:
    os.write(_stderr[0], "\n  ".join(["\nended by SIGTERM; begun and not ended:", *_under_way, ""]).encode())
    faulthandler.unregister(number)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
