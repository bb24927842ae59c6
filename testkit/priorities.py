"""Scheduling priorities on a shared core, so that a measurement does not include the kernel's time slices.

On Linux a running process finishes its slice of some milliseconds before a process that wakes up gets the core, at
any niceness. A process with real-time priority does not wait, but needs the permission (CAP_SYS_NICE).
"""

from __future__ import annotations

import os
from pathlib import Path


def run_first(*pids: int, priority: int = 1, all_threads: bool = True) -> bool:
    """Gives all present threads of some processes real-time priority. Threads that they start later inherit it.

    Args:
        pids: processes that this process has started.
        priority: the larger one runs first among threads with real-time priority.
        all_threads: not only the first thread.

    Returns:
        Whether this was allowed; otherwise nothing has changed.
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
    """Assigns cores to a process's first thread, and to all its other threads.

    Args:
        pid: the process.
        first: the cores of the first thread.
        others: the cores of the others.
    """
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), first if int(task.name) == pid else others)
