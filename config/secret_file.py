"""Reads files with a secret of the gateway."""

from __future__ import annotations

from typing import Final

from config.loader import ConfigError
from config.regular_file import read_at_once
from quotas.record_signature import MIN_SECRET_BYTES

_MOST_BYTES: Final = 4_096


def read_secret(key: str, file: str) -> bytes:
    """The content of a file, without the line end.

    Args:
        key: the configuration's key that names the file.
        file: the file's name.

    Raises:
        ConfigError: the file can't be read, or is too short or too long to be a secret.
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
