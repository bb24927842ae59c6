"""The key of hashed names: a file that only the gateway may read. [io]

Its owner can find out whether a hash belongs to a given name; without it no record can be joined with another
gateway's, so gateways whose records belong together share one file.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

SALT_NAME: Final = ".usage-salt"
"""In the records' directory, hidden from readers of records."""

SALT_BYTES: Final = 32


def load_salt(path: Path) -> bytes:
    """The salt in a file; made, and never overwritten, if there is none.

    Raises:
        OSError: it cannot be read or made.
        ValueError: it is too short to be one.
    """
    with contextlib.suppress(FileExistsError):
        _make(path)
    salt = path.read_bytes()
    if len(salt) < SALT_BYTES:
        raise ValueError(f"{path}: has {len(salt)} bytes; a salt has at least {SALT_BYTES}")
    return salt


def _make(path: Path) -> None:
    """Write a new one under another name first: two gateways that start together must agree on one."""
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    if path.exists():
        return
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.write(fd, secrets.token_bytes(SALT_BYTES))
            os.fsync(fd)
        finally:
            os.close(fd)
        os.link(draft, path)
    finally:
        draft.unlink()
