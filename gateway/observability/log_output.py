"""Writes finished log lines. If the reader stops, lines are lost, but the loop never waits (hazard F11).

A pipe or a socket that is not read is full after some 64 KiB, and a write would then block until its reader
continues. So writes do not wait. Lines without room are counted, and the next written line reports their number.
Files and terminals are written directly.
"""

from __future__ import annotations

import io
import os
import socket
import stat
import weakref
from collections.abc import Callable
from typing import Final, TextIO, TypeAlias

_Write: TypeAlias = Callable[[bytes], int]


class LogOutput:
    """Receives each finished line from structlog.

    Attributes:
        lost: lines without room since the last written one.
    """

    def __init__(self, stream: TextIO) -> None:
        self.lost = 0
        self._stream = stream
        self._write = _without_waiting(self, stream)
        self._rest = b""

    def msg(self, line: str) -> None:
        """Write one line, or count it if there is no room or the stream is closed."""
        try:
            if self._write is None:
                self._stream.write(f"{line}\n")
                self._stream.flush()
            elif self._rest and not self._put(self._rest):  # the end of the previous line
                self.lost += 1
                return
            else:
                self._put(f"{line}\n".encode())
        except BlockingIOError:
            self.lost += 1
        except (OSError, ValueError):
            pass  # the log's reader has closed, or the stream is closed: the fault cannot be reported anywhere
        else:
            self.lost = 0

    debug = info = warning = error = critical = exception = warn = fatal = log = msg

    def _put(self, data: bytes) -> bool:
        """Write as much as there is room for, and keep the rest.

        Returns:
            Whether all was written.

        Raises:
            BlockingIOError: there is no room at all.
        """
        assert self._write is not None
        self._rest = data[self._write(data) :]
        return not self._rest


def _without_waiting(owner: LogOutput, stream: TextIO) -> _Write | None:
    """A function that writes to a pipe or a socket without waiting; None: neither, or it can't be opened again.

    The pipe is opened again, because other processes share the given descriptor and do not expect it to be
    non-blocking.
    """
    try:
        fd = stream.fileno()
        mode = os.fstat(fd).st_mode
        if stat.S_ISSOCK(mode):
            return _to_socket(owner, os.dup(fd))
        if not stat.S_ISFIFO(mode):
            return None
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError, io.UnsupportedOperation):
        return None
    weakref.finalize(owner, os.close, own).atexit = False  # there may be lines until the process ends
    return lambda data: os.write(own, data)


_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


def _to_socket(owner: LogOutput, own: int) -> _Write:
    sock = socket.socket(fileno=own)
    weakref.finalize(owner, sock.close).atexit = False
    return lambda data: sock.send(data, _FLAGS)
