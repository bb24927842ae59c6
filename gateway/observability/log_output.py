"""Where finished log lines go: a reader that stops reading costs lines, and never the loop's time (hazard F11).

A pipe or a socket that is not read is full after some 64 KiB, and a write to it would wait for as long as its reader
likes. So it is written without waiting. Lines that find no room are counted, and the next one that is written
says how many there were. A file and a terminal are written as they are.
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
    """What structlog calls with a finished line.

    Attributes:
        lost: lines that found no room since the last one that was written.
    """

    def __init__(self, stream: TextIO) -> None:
        self.lost = 0
        self._stream = stream
        self._write = _without_waiting(self, stream)
        self._rest = b""

    def msg(self, line: str) -> None:
        """Write one line; one that there is no room or place for is counted."""
        try:
            if self._write is None:
                self._stream.write(f"{line}\n")
                self._stream.flush()
            elif self._rest and not self._put(self._rest):  # the end of the line before
                self.lost += 1
                return
            else:
                self._put(f"{line}\n".encode())
        except BlockingIOError:
            self.lost += 1
        except (OSError, ValueError):
            pass  # the reader of our log is gone, or the stream is closed: there is no place to report it
        else:
            self.lost = 0

    debug = info = warning = error = critical = exception = warn = fatal = log = msg

    def _put(self, data: bytes) -> bool:
        """Write what there is room for and keep the rest of it; whether all was written.

        Raises:
            BlockingIOError: there is room for nothing.
        """
        assert self._write is not None
        self._rest = data[self._write(data) :]
        return not self._rest


def _without_waiting(owner: LogOutput, stream: TextIO) -> _Write | None:
    """How to write to a pipe or a socket without waiting; None: it is neither, or cannot be opened again.

    The pipe is opened again, since others share what we were given, and would not expect that it does not wait.
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
    weakref.finalize(owner, os.close, own).atexit = False  # there may be lines until the very end
    return lambda data: os.write(own, data)


_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


def _to_socket(owner: LogOutput, own: int) -> _Write:
    sock = socket.socket(fileno=own)
    weakref.finalize(owner, sock.close).atexit = False
    return lambda data: sock.send(data, _FLAGS)
