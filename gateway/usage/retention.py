"""Which files of usage records go, so that a disk never fills because of them. [io]: called by a sink's thread.

All usage files of the directory count, also those of other gateways: a gateway that gets a new name at each start
would else leave its old ones for ever.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gateway.usage.part_file import FILE_NAME, PART_NAME


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


def complete_files(directory: Path) -> list[KeptFile]:
    """The usage files of a directory, oldest first; one that goes meanwhile is left out.

    Raises:
        OSError: the directory can not be read.
    """
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if FILE_NAME.fullmatch(entry.name):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    found.append(KeptFile(Path(entry.path), status.st_size, status.st_mtime))
    return sorted(found, key=lambda each: (each.completed_s, each.path.name))


def left_parts(directory: Path) -> list[Path]:
    """Hidden files that are written, or were when a process ended.

    Raises:
        OSError: the directory can not be read.
    """
    return sorted(path for path in directory.iterdir() if PART_NAME.fullmatch(path.name))


def to_remove(files: Iterable[KeptFile], retention: Retention, *, now_s: float) -> list[KeptFile]:
    """What is too old or too much; oldest first.

    Args:
        files: oldest first.
        retention: what is kept.
        now_s: seconds since the epoch.
    """
    files = list(files)
    total = sum(each.bytes for each in files)
    gone = []
    for each in files:
        if total <= retention.keep_bytes and now_s - each.completed_s <= retention.keep_s:
            break
        gone.append(each)
        total -= each.bytes
    return gone
