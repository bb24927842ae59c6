"""The key of hashed names: a file that only the gateway may read. [io]

The owner of the salt can find out whether a hash belongs to a given name. Records of gateways with different salts
cannot be joined, so gateways whose records belong together share one file.
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
    """The salt in a file; the file is created if it does not exist, and never overwritten.

    Raises:
        OSError: the file cannot be read or created.
        ValueError: the file is too short.
    """
    with contextlib.suppress(FileExistsError):
        _make(path)
    salt = path.read_bytes()
    if len(salt) < SALT_BYTES:
        raise ValueError(f"{path}: has {len(salt)} bytes; a salt has at least {SALT_BYTES}")
    return salt


def _make(path: Path) -> None:
    """Create the file under another name first, so that two gateways that start together use the same salt."""
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
