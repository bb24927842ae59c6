"""CPU time and memory of a program and everything it started: what a shared machine does not make longer."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Final

_LOOK_S: Final = 0.5


def cpu_s() -> float:
    """CPU seconds so far of this process and its descendants, those it has waited for included."""
    parents, ticks = _processes()
    own = os.getpid()
    return sum(count for pid, count in ticks.items() if _descends(pid, own, parents)) / os.sysconf(
        "SC_CLK_TCK"
    )


def children(pid: int) -> list[int]:
    """The processes that a process has started and that have not ended."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cpu_of(pid: int) -> float:
    """CPU seconds of one process so far, as exactly as the scheduler counts; see `PinnedProcess.cpu_s`."""
    return time.clock_gettime((~pid << 3) | 2)


def family(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *(each for child in children(pid) for each in family(child))]


def cpu_of_each(pid: int) -> dict[int, float]:
    """CPU seconds so far of a process and of each one below it."""
    return {each: cpu_of(each) for each in family(pid)}


def _processes() -> tuple[dict[int, int], dict[int, int]]:
    """Of each process its parent, and its clock ticks with those of the children that it has waited for."""
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
    return parents, ticks


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid not in (0, ancestor):
        pid = parents.get(pid, 0)
    return pid == ancestor


class LargestProcesses:
    """The memory of a program's processes while it runs, and its CPU time.

    Attributes:
        cpu_s: of the program with all that it started, at the last look.
    """

    def __init__(self, pid: int) -> None:
        """Args: pid: of the program."""
        self.cpu_s = 0.0
        self._pid = pid
        self._largest_kb: dict[str, int] = {}

    def follow(self, process: subprocess.Popen[str]) -> None:
        """Looks twice a second until the program ends."""
        while True:
            self.look()
            try:
                process.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                continue
            return

    def look(self) -> None:
        """Takes in what is there now."""
        parents, ticks = _processes()
        own = [pid for pid in parents if _descends(pid, self._pid, parents)]
        # A JVM is not waited for by what started it, so nothing reports its time when it has ended.
        self.cpu_s = max(self.cpu_s, sum(map(ticks.__getitem__, own)) / os.sysconf("SC_CLK_TCK"))
        for pid in own:
            try:
                name = Path(f"/proc/{pid}/comm").read_text(encoding="ascii", errors="replace").strip()
                status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
            except OSError:
                continue
            largest = next((line for line in status.splitlines() if line.startswith("VmHWM:")), "VmHWM: 0 kB")
            kind = "python" if name.startswith(("python", "pt_main")) else name
            self._largest_kb[kind] = max(self._largest_kb.get(kind, 0), int(largest.split()[1]))

    def largest_mb(self, kind: str) -> int:
        """The most that one process of this name ever had resident."""
        return self._largest_kb.get(kind, 0) // 1024
