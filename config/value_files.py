"""Files whose text may be a value of the configuration: ``${file:/run/secrets/x}``. [io]

The author of the configuration need not have the gateway's rights on the file system. So files are read only below
directories that the gateway's own start allows, and links out of them are not followed. Messages about a file contain
nothing of its content, and nothing about files outside of these directories.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from config.faults import value_text

DIRECTORIES: Final = ("/run/secrets", "/etc/sluice")
"""Always allowed."""

MORE_DIRECTORIES: Final = "SLUICE_SECRET_DIRS"
"""The variable with further directories, separated by colons. It is no key of the file, because the file's author
could set that."""

_OF_SYSTEMD: Final = "CREDENTIALS_DIRECTORY"  # systemd sets it for a unit with LoadCredential=
_MOST_BYTES: Final = 4_096


class ValueFiles:
    """Reads each file once, so that all keys of one configuration get the same text."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Reads nothing yet.

        Args:
            environment: the variables, which may allow more directories.
        """
        more = [*environment.get(MORE_DIRECTORIES, "").split(":"), environment.get(_OF_SYSTEMD, "")]
        self._directories = [*DIRECTORIES, *(each for each in more if os.path.isabs(each))]
        self._texts: dict[str, str] = {}

    def read(self, path: str) -> str:
        """The text of a file, without its line end.

        Args:
            path: an absolute path.

        Raises:
            ValueError: the file cannot or may not be read, or its text is no value.
        """
        if path not in self._texts:
            if not os.path.isabs(path) or not path.isprintable():
                raise ValueError(f"the file {value_text(path)} is no absolute path")
            try:
                self._texts[path] = _text(self._content(path))
            except OSError as exc:
                raise ValueError(f"the file {value_text(path)} cannot be read: {exc.strerror}") from None
            except ValueError as exc:
                raise ValueError(f"the file {value_text(path)} {exc}") from None
        return self._texts[path]

    def _content(self, path: str) -> bytes:
        # The path's text is checked first, because resolving links may wait for a disk or mount one.
        named = Path(os.path.normpath(path))
        allowed = [directory for directory in self._directories if _may_hold(directory, named)]
        found = Path(os.path.realpath(path)) if allowed else named
        for directory in allowed:
            real = Path(os.path.realpath(directory))
            if found.is_relative_to(real):
                return _read_below(real, found.relative_to(real).parts)
        raise ValueError(
            f"is below none of the directories with values: {', '.join(self._directories)}; "
            f"{MORE_DIRECTORIES} names more of them"
        )


def _may_hold(directory: str, path: Path) -> bool:
    return path.is_relative_to(os.path.normpath(directory)) or path.is_relative_to(
        os.path.realpath(directory)
    )


def _read_below(directory: Path, parts: tuple[str, ...]) -> bytes:
    """The content of a file. No part of its path may be a link; one created after the check causes an error."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            below = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        # The type is checked first: opening a device may have an effect, and opening a FIFO waits.
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("is not a regular file")
        with open(f"/proc/self/fd/{descriptor}", "rb", buffering=0) as opened:
            content = b""
            while len(content) <= _MOST_BYTES and (more := opened.read(_MOST_BYTES + 1 - len(content))):
                content += more
    finally:
        os.close(descriptor)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"is larger than {_MOST_BYTES:,} bytes")
    return content


def _text(content: bytes) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise ValueError("is empty")
    if not text.isprintable():
        raise ValueError("is not one line of printable characters")
    return text
