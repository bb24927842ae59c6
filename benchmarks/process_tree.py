"""CPU time and memory of a program and its descendants. These hardly depend on other load of a shared machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from testkit.process_group import children


def cpu_s() -> float:
    """CPU seconds so far of this process and its descendants, including ended children that it has waited for."""
    parents, ticks, _ = _processes()
    own = os.getpid()
    return sum(count for pid, count in ticks.items() if _descends(pid, own, parents)) / os.sysconf(
        "SC_CLK_TCK"
    )


def cpu_of(pid: int) -> float:
    """CPU seconds of one process so far, as exactly as the scheduler counts; see `PinnedProcess.cpu_s`."""
    return time.clock_gettime((~pid << 3) | 2)


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    return [pid, *(each for child in children(pid) for each in family(child))]


def cpu_of_each(pid: int) -> dict[int, float]:
    """CPU seconds so far of a process and of each descendant."""
    return {each: cpu_of(each) for each in family(pid)}


def _processes() -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
    """For each process its parent, and its clock ticks with and without the children that it has waited for."""
    parents, ticks, own = {}, {}, {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        # The name in parentheses may contain any character.
        fields = stat.rpartition(")")[2].split()
        pid = int(folder.name)
        parents[pid] = int(fields[1])
        ticks[pid] = sum(map(int, fields[11:15]))
        own[pid] = sum(map(int, fields[11:13]))
    return parents, ticks, own


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid not in (0, ancestor):
        pid = parents.get(pid, 0)
    return pid == ancestor


class ProcessKinds:
    """CPU time and peak memory of running programs and their descendants, by kind of process."""

    def __init__(self, roots: Sequence[int], kind_of: Callable[[int, str], str]) -> None:
        """Earlier CPU time of the programs does not count.

        Args:
            roots: the programs.
            kind_of: gives the kind of a process from its id and name.
        """
        self._roots = roots
        self._kind_of = kind_of
        self._kinds: dict[int, str] = {}
        self._before = self._own_ticks()
        self._ticks: dict[int, int] = {}
        self._largest_kb: dict[str, int] = {}

    def look(self) -> None:
        """Sample all current processes. CPU time between a process's last sample and its end is lost."""
        for pid, ticks in self._own_ticks().items():
            try:
                name = Path(f"/proc/{pid}/comm").read_text(encoding="ascii", errors="replace").strip()
                status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
            except OSError:
                continue
            kind = self._kinds[pid] = self._kind_of(pid, name)
            self._ticks[pid] = ticks - self._before.get(pid, 0)
            largest = next((line for line in status.splitlines() if line.startswith("VmHWM:")), "VmHWM: 0 kB")
            self._largest_kb[kind] = max(self._largest_kb.get(kind, 0), int(largest.split()[1]))

    def cpu_s(self, kind: str) -> float:
        """CPU seconds of all processes of a kind."""
        ticks = sum(ticks for pid, ticks in self._ticks.items() if self._kinds[pid] == kind)
        return ticks / os.sysconf("SC_CLK_TCK")

    def largest_mb(self, kind: str) -> int:
        """Peak resident memory of a single process of a kind."""
        return self._largest_kb.get(kind, 0) // 1024

    def _own_ticks(self) -> dict[int, int]:
        parents, _, own = _processes()
        return {
            pid: own[pid] for pid in parents if any(_descends(pid, root, parents) for root in self._roots)
        }
