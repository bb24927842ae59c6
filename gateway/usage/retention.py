"""Deletes old usage files, so that a disk never fills because of them. [io]: called by a sink's thread.

All usage files of the directory count, including those of other gateways. Otherwise a gateway that gets a new name at
each start would leave its old files forever.

The wall clock may be wrong for a while, and then files have wrong times (hazard L05). So the files of one gateway are
ordered by the start and sequence in their names. Between gateways, a file counts as no newer than the files that its
gateway completed after it, and a file from the future comes before all others. `AgeClock` measures age.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gateway.usage.part_file import FILE_NAME, PART_NAME

_FASTEST: Final = 1.001  # a wall clock that is being corrected runs this much faster than time
_FUTURE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Retention:
    """How many files are kept.

    Attributes:
        keep_bytes: of complete files together.
        keep_s: since a file was completed.
    """

    keep_bytes: int
    keep_s: float


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A complete file: where, how large, and when it was completed (s since the epoch)."""

    path: Path
    bytes: int
    completed_s: float


class AgeClock:
    """The clock for the age of files: the wall clock, unless that runs faster than time.

    If the wall clock is set forward, no file gets older: this clock then follows the monotonic clock. If it is set
    back, this clock follows it. If the files found at a start have a gap that is longer than files are kept, gateways
    were not running or the clock is wrong. Then the time of the gap does not count.
    """

    def __init__(self, clock: Callable[[], float], wall_s: Callable[[], float]) -> None:
        """Begins with the wall clock's time.

        Args:
            clock: seconds, monotonic.
            wall_s: seconds since the epoch.
        """
        self._clock = clock
        self._wall_s = wall_s
        self._latest_s = wall_s()
        self._read_s = clock()

    def begin(self, files: Sequence[KeptFile], *, keep_s: float) -> None:
        """Leave out a long gap between the files that a start finds.

        Args:
            files: in any order.
            keep_s: see `Retention`.
        """
        times = sorted([*(each.completed_s for each in files), self._latest_s])
        for before_s, after_s in itertools.pairwise(times):
            if after_s - before_s > keep_s:
                self._latest_s = min(self._latest_s, before_s)
                return

    def now_s(self) -> float:
        """The present time; to be called often. It catches up with the wall clock by a thousandth of the time."""
        read_s, wall_s = self._clock(), self._wall_s()
        self._latest_s = min(wall_s, self._latest_s + (read_s - self._read_s) * _FASTEST)
        self._read_s = read_s
        return self._latest_s


def latest_boot(directory: Path, gateway: str) -> int:
    """The latest start of a gateway in the names of its files; 0: none. A new start must be later (hazard L05).

    Raises:
        OSError: the directory cannot be read.
    """
    names = (FILE_NAME.search(path.name) for path in directory.iterdir())
    return max((int(name["boot"]) for name in names if name and name["gateway"] == gateway), default=0)


def complete_files(directory: Path) -> list[KeptFile]:
    """The usage files of a directory, unordered; files that are deleted meanwhile are left out.

    Raises:
        OSError: the directory cannot be read.
    """
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if FILE_NAME.fullmatch(entry.name):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    found.append(KeptFile(Path(entry.path), status.st_size, status.st_mtime))
    return found


def in_order(files: Iterable[KeptFile], *, now_s: float) -> list[KeptFile]:
    """The files, oldest first, with completion times that are corrected as far as possible.

    Args:
        files: in any order.
        now_s: seconds since the epoch.
    """
    by_gateway = defaultdict(list)
    for each in files:
        name = FILE_NAME.fullmatch(each.path.name)
        assert name is not None
        by_gateway[name["gateway"]].append((int(name["boot"]), int(name["seq"]), each))
    found = []
    for gateway, parts in by_gateway.items():
        # If all files are from the future, their order is known, but not their times.
        before_s = math.inf
        for boot, seq, each in sorted(parts, key=operator.itemgetter(0, 1), reverse=True):
            before_s = min(before_s, each.completed_s)
            known = before_s <= now_s + _FUTURE_S
            found.append(
                (known, before_s, gateway, boot, seq, replace(each, completed_s=min(before_s, now_s)))
            )
    return [each for *_, each in sorted(found, key=operator.itemgetter(slice(0, 5)))]


def left_parts(directory: Path) -> list[Path]:
    """Hidden files that are being written, or that were left by a process that ended.

    Raises:
        OSError: the directory cannot be read.
    """
    return sorted(path for path in directory.iterdir() if PART_NAME.fullmatch(path.name))


def to_remove(
    files: Iterable[KeptFile], retention: Retention, *, now_s: float, completed: Path | None = None
) -> list[KeptFile]:
    """The files to delete because of age or total size, oldest first.

    Args:
        files: oldest first.
        retention: the bounds.
        now_s: seconds since the epoch.
        completed: a file that stays in any case, because it was just completed.
    """
    files = list(files)
    total = sum(each.bytes for each in files)
    old = {each.path for each in files if now_s - each.completed_s > retention.keep_s}
    total -= sum(each.bytes for each in files if each.path in old)
    gone = []
    for each in files:
        if each.path == completed:
            continue
        if each.path not in old:
            if total <= retention.keep_bytes:
                continue
            total -= each.bytes
        gone.append(each)
    return gone
