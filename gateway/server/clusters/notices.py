"""Messages of the clusters' processes to the parent, in systemd's protocol (sd_notify(3)). [io]

The parent's side of `gateway.server.systemd`. The kernel names the process that sent a message. Messages of other
users are ignored, since every user of this machine can reach the socket.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from typing import Final

_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group
_SPACE: Final = socket.CMSG_SPACE(_CREDENTIALS.size)
_MOST_BYTES: Final = 4096
_MOST_AT_ONCE: Final = 1_000
"""So that a flood of messages does not keep the loop."""


class Notices:
    """The socket for these messages."""

    def __init__(self, on_notice: Callable[[int, str], None], inherited: int | None = None) -> None:
        """Listen; needs the running loop.

        Args:
            on_notice: called with the id of the sending process, and a line.
            inherited: the descriptor of the same socket, from the program that ran in this process before.
        """
        if inherited is None:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self.sock.bind("")  # the kernel chooses a name
        else:
            self.sock = socket.socket(fileno=inherited)
            self.sock.set_inheritable(False)
        self.sock.setblocking(False)
        self._on_notice = on_notice
        asyncio.get_running_loop().add_reader(self.sock.fileno(), self.read)

    @property
    def address(self) -> str:
        """The value of NOTIFY_SOCKET."""
        name: bytes = self.sock.getsockname()
        return f"@{name[1:].decode()}"

    def stop_reading(self) -> None:
        """Stop reading; later messages stay in the socket."""
        asyncio.get_running_loop().remove_reader(self.sock.fileno())

    def stop(self) -> None:
        """Listen no more."""
        self.stop_reading()
        self.sock.close()

    def read(self) -> None:
        """Read all messages that have come."""
        for _ in range(_MOST_AT_ONCE):
            try:
                data, ancillary, _, _ = self.sock.recvmsg(_MOST_BYTES, _SPACE)
            except BlockingIOError:
                return
            self._take(data, ancillary)

    def _take(self, data: bytes, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                pid, user, _ = _CREDENTIALS.unpack(content[: _CREDENTIALS.size])
                if user in (0, os.geteuid()):
                    for line in data.decode(errors="replace").splitlines():
                        self._on_notice(pid, line)
