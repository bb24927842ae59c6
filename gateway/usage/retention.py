"""Deletes old usage files, so that a disk never fills because of them. [io]: called by a sink's thread.

All usage files of the directory count, also those of other gateways: a gateway that gets a new name at each start
would else leave its old ones for ever.

The wall clock may be wrong for a while, and then files have its times (hazard L05). So the files of one gateway are
in the order of their names, start and sequence; of different gateways a file is no newer than those that its gateway
completed after it, and one from the future comes before all others. Age is counted by `AgeClock`.
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

_FASTEST: Final = 1.001  # a wall clock that is being corrected goes this much faster than time
_FUTURE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept.

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
    """Seconds since the epoch by which files get old: the wall clock, as long as it goes as fast as time does.

    A wall clock that is set forward makes no file old: from then on this one follows the monotonic clock. It
    follows one that is set back. Where a start finds no file for longer than files are kept, gateways were away or
    the clock is wrong: that time does not count.
    """

    def __init__(self, clock: Callable[[], float], wall_s: Callable[[], float]) -> None:
        """It goes by the wall clock from now on.

        Args:
            clock: seconds, monotonic.
            wall_s: seconds since the epoch.
        """
        self._clock = clock
        self._wall_s = wall_s
        self._latest_s = wall_s()
        self._read_s = clock()

    def begin(self, files: Sequence[KeptFile], *, keep_s: float) -> None:
        """Look at what a start finds.

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
        """To be asked often: what the wall clock is behind for a moment is made good by a thousandth of the time."""
        read_s, wall_s = self._clock(), self._wall_s()
        self._latest_s = min(wall_s, self._latest_s + (read_s - self._read_s) * _FASTEST)
        self._read_s = read_s
        return self._latest_s


def latest_boot(directory: Path, gateway: str) -> int:
    """The latest start of a gateway that there are files of; 0: none. A new start has to be later (hazard L05).

    Raises:
        OSError: the directory cannot be read.
    """
    names = (FILE_NAME.search(path.name) for path in directory.iterdir())
    return max((int(name["boot"]) for name in names if name and name["gateway"] == gateway), default=0)


def complete_files(directory: Path) -> list[KeptFile]:
    """The usage files of a directory, in no order; one that goes meanwhile is left out.

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
    """Oldest first, with the time when each was completed as far as it can be believed.

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
        # All of them from the future: they were completed in this order, and it is not known when.
        before_s = math.inf
        for boot, seq, each in sorted(parts, key=operator.itemgetter(0, 1), reverse=True):
            before_s = min(before_s, each.completed_s)
            known = before_s <= now_s + _FUTURE_S
            found.append(
                (known, before_s, gateway, boot, seq, replace(each, completed_s=min(before_s, now_s)))
            )
    return [each for *_, each in sorted(found, key=operator.itemgetter(slice(0, 5)))]


def left_parts(directory: Path) -> list[Path]:
    """Hidden files that are written, or were when a process ended.

    Raises:
        OSError: the directory cannot be read.
    """
    return sorted(path for path in directory.iterdir() if PART_NAME.fullmatch(path.name))


def to_remove(
    files: Iterable[KeptFile], retention: Retention, *, now_s: float, completed: Path | None = None
) -> list[KeptFile]:
    """What is too old or too much; oldest first.

    Args:
        files: oldest first.
        retention: what is kept.
        now_s: seconds since the epoch.
        completed: a file that stays in any case: it was completed a moment ago.
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
