"""Reads files with a secret of the gateway."""

from __future__ import annotations

import os
import stat
from typing import Final

from config.loader import ConfigError
from quotas.record_signature import MIN_SECRET_BYTES

_MOST_BYTES: Final = 4_096


def read_secret(key: str, file: str) -> bytes:
    """What is in a file, without the line end.

    Args:
        key: where the configuration names it.
        file: its name.

    Raises:
        ConfigError: it can't be read, or holds too little or too much to be a secret.
    """
    try:
        secret = read_at_once(file, _MOST_BYTES).rstrip(b"\r\n")
    except OSError as exc:
        raise ConfigError([f"{key}: {file}: {exc.strerror}"]) from None
    except ValueError as exc:
        raise ConfigError([f"{key}: {file}: {exc}"]) from None
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError([f"{key}: {file}: a secret has at least {MIN_SECRET_BYTES} bytes"])
    return secret


def read_at_once(file: str, most_bytes: int) -> bytes:
    """The content of a regular file. A FIFO is refused: to open it would wait for its writer.

    Args:
        file: its name.
        most_bytes: a larger file is refused.

    Raises:
        OSError: it can't be read.
        ValueError: it is no regular file, or too large.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("is no regular file")
        content = os.read(descriptor, most_bytes + 1)
    finally:
        os.close(descriptor)
    if len(content) > most_bytes:
        raise ValueError(f"has more than {most_bytes} bytes")
    return content
