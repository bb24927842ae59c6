"""The processes of a gateway that a test starts, none of which may be left when the test ends.

A gateway forks workers and starts the process that replaces it. These are not children of the test. They are in the
process group of the first process, if that was started with a session of its own (`start_new_session=True`).
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def members(leader: int) -> list[int]:
    """The living processes of a group, in the order of their ids.

    Args:
        leader: the first process of the group, which may have ended.
    """
    found = (int(each.name) for each in Path("/proc").glob("[0-9]*"))
    return sorted(pid for pid in found if _group(pid) == leader)


def lives(pid: int) -> bool:
    """Whether a process has not ended. An ended one may remain as a zombie until its exit code is read."""
    return _group(pid) is not None


def runs(pid: int) -> bool:
    """Whether a process has neither ended nor been stopped."""
    return _state_and_group(pid)[0] in "RSD"


def _group(pid: int) -> int | None:
    state, group = _state_and_group(pid)
    return None if state in "ZX" else group


def _state_and_group(pid: int) -> tuple[str, int]:
    try:
        state, _, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return "X", 0
    return state, int(group)


def children(pid: int) -> list[int]:
    """The processes that a process has started and that have not ended, in the order of their starts."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def kill_all(leader: int) -> None:
    """Sends SIGKILL to every process of a group; see `members`."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
