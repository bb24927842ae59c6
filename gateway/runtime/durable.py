"""Writes files so that they and their names survive a power cut. Everything here blocks."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file, keeping its mode and its owner. Readers see the old or the new file.

    Raises:
        OSError: the old file is unchanged.
    """
    path = path.resolve()
    before = path.stat()
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, before.st_mode & 0o7777)
            if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(fd, before.st_uid, before.st_gid)
            file.write(content)
            file.flush()
            os.fsync(fd)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    # The new file is in place, so an error here is ignored: after a power cut the old file may be back.
    with suppress(OSError):
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable.

    Raises:
        OSError: they are not durable.
    """
    _sync(directory, os.O_RDONLY | os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Make the bytes durable that another descriptor has written to a file.

    Raises:
        OSError: they are not durable.
    """
    _sync(path, os.O_RDWR)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
