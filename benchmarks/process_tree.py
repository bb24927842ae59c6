"""CPU time of a program and everything it started: what a shared machine does not make longer."""

from __future__ import annotations

import os
from pathlib import Path


def cpu_s() -> float:
    """CPU seconds so far of this process and its descendants, those it has waited for included."""
    parents, ticks = {}, {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        # The name before the parenthesis may hold anything.
        fields = stat.rpartition(")")[2].split()
        parents[int(folder.name)] = int(fields[1])
        ticks[int(folder.name)] = sum(map(int, fields[11:15]))
    own = os.getpid()
    return sum(count for pid, count in ticks.items() if _descends(pid, own, parents)) / os.sysconf(
        "SC_CLK_TCK"
    )


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid not in (0, ancestor):
        pid = parents.get(pid, 0)
    return pid == ancestor
