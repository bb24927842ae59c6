"""Scheduling priorities on a shared core, so that a measurement does not show the kernel's turns.

Linux lets a process that is awake finish its slice of some milliseconds before one that wakes up gets the core, at
whatever niceness. Real-time priority does not wait, and needs the right to it (CAP_SYS_NICE).
"""

from __future__ import annotations

import os
from pathlib import Path


def run_first(*pids: int, priority: int = 1, all_threads: bool = True) -> bool:
    """Give all threads that each process has now real-time priority; what they start later inherits it.

    Args:
        pids: processes that were started from here.
        priority: among those that have it; the greater one goes first.
        all_threads: not only the first one.

    Returns:
        Whether that was allowed; nothing has changed if not.
    """
    try:
        for pid in pids:
            tasks = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
            for task in tasks if all_threads else [pid]:
                os.sched_setscheduler(task, os.SCHED_FIFO, os.sched_param(priority))
    except PermissionError:
        return False
    return True


def part_threads(pid: int, *, first: set[int], others: set[int]) -> None:
    """Give a process's first thread some cores, and all its other threads some.

    Args:
        pid: of the process.
        first: the cores of the first thread.
        others: the cores of the others.
    """
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), first if int(task.name) == pid else others)
