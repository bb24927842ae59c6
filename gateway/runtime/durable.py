"""Writes files so that they and their names survive a power cut. Everything here blocks."""

from __future__ import annotations

import os
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Make the names in it durable.

    Raises:
        OSError: they are not.
    """
    _sync(directory, os.O_RDONLY | os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Make durable what another descriptor has written to a file.

    Raises:
        OSError: it is not.
    """
    _sync(path, os.O_RDWR)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
