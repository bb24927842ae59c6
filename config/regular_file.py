"""Reads files that the configuration names. [io]"""

from __future__ import annotations

import os
import stat


def read_at_once(file: str, most_bytes: int) -> bytes:
    """The content of a regular file. A FIFO is refused, because opening it would wait for its writer.

    Args:
        file: the file's name.
        most_bytes: a larger file is refused.

    Raises:
        OSError: the file can't be read.
        ValueError: the file is no regular file, or is too large.
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
