"""Reads files with a secret of the gateway."""

from __future__ import annotations

from pathlib import Path
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
        ConfigError: it can't be read, or holds too little to be a secret.
    """
    try:
        with Path(file).open("rb") as opened:
            secret = opened.read(_MOST_BYTES).rstrip(b"\r\n")
    except OSError as exc:
        raise ConfigError([f"{key}: {file}: {exc.strerror}"]) from None
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError([f"{key}: {file}: a secret has at least {MIN_SECRET_BYTES} bytes"])
    return secret
