"""Files with a secret of the gateway's own login: the secret in force, and checks for changes.

An unusable file leaves the earlier secret in force. No error shows the content of a file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from config import read_at_once
from gateway.tls.contexts import stamp_of

_MOST_BYTES: Final = 64 * 1024

_log = structlog.get_logger("gateway.login")


class SecretFault(Exception):
    """A file holds no usable secret; the text names the file and shows nothing of its content."""


class SecretFile:
    """One file; a `FileUser`.

    Attributes:
        key: of the configuration, such as ``upstream.sasl.password_file``.
        text: the secret in force; None: there was none yet.
        fault: why the present file is unusable; None: it is usable.
        reloads, failures: how often a changed file was read, with and without success.
    """

    def __init__(self, key: str, path: str, check: Callable[[str], object] = lambda text: None) -> None:
        """Read the file.

        Args:
            key: see above.
            path: of the file.
            check: raises ValueError for a text that is no such secret; its message shows nothing of the text.
        """
        self.key = key
        self.text: str | None = None
        self.fault: str | None = None
        self.reloads = self.failures = 0
        self._path = path
        self._check = check
        self._stamp = stamp_of((path,))
        try:
            self.text = self._read()
        except SecretFault as exc:
            self.fault = str(exc)

    def reload(self, *, only_if_changed: bool, by: str) -> bool:
        """Read the file again; see `FileUser`. May block on the file system."""
        # The stamp is taken before the file is read, so that a change meanwhile is found next time.
        stamp = stamp_of((self._path,))
        again = only_if_changed and stamp == self._stamp
        self._stamp = stamp
        try:
            if again and self.fault is None:
                assert self.text is not None
                self._checked(self.text)  # a token may have expired meanwhile
                return True
            text = self._read()
        except SecretFault as exc:
            if not again or self.fault != str(exc):
                self.failures += 1
                _log.error("login_secret_not_reloaded", key=self.key, by=by, fault=str(exc))
            self.fault = str(exc)
            return False
        self.fault = None
        if text != self.text:
            self.text = text
            # Last: when this number changes, other threads take the new text.
            self.reloads += 1
            _log.info("login_secret_reloaded", key=self.key, by=by)
        return True

    def _read(self) -> str:
        return self._checked(read_secret_text(self._path))

    def _checked(self, text: str) -> str:
        try:
            self._check(text)
        except ValueError as exc:
            raise SecretFault(f"{self._path}: {exc}") from None
        return text


def read_secret_text(path: str, *, most_bytes: int = _MOST_BYTES) -> str:
    """The text of a file, without the line end.

    Args:
        path: of the file.
        most_bytes: a larger file is refused.

    Raises:
        SecretFault: the file cannot be read, or is empty, too large or no text.
    """
    try:
        raw = read_at_once(path, most_bytes)
    except OSError as exc:
        raise SecretFault(f"{path}: {exc.strerror}") from None
    except ValueError as exc:
        raise SecretFault(f"{path}: {exc}") from None
    try:
        text = raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        # That exception contains the bytes, so it must not become the cause of this one.
        raise SecretFault(f"{path}: is not UTF-8") from None
    if not text or "\0" in text:
        raise SecretFault(f"{path}: {'has a NUL' if text else 'is empty'}")
    return text
