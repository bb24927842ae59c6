"""A TCP socket that tells its family and its type as plain numbers.

The base class makes members of enums of them for whoever asks: two microseconds each time, five times for each
accepted connection, the loop's own questions among them.
"""

from __future__ import annotations

import socket
from typing import Any


class PlainSocket(socket.socket):
    """See the module; what it accepts is of the same kind."""

    __slots__ = ()

    # The base class's base, whose attributes the enums are made of.
    family = socket.SocketType.family  # type: ignore[assignment]
    type = socket.SocketType.type  # type: ignore[assignment]

    def accept(self) -> tuple[PlainSocket, Any]:
        """See `socket.socket.accept`; the accepted socket blocks, whatever this one does."""
        descriptor, peer = self._accept()  # type: ignore[attr-defined]
        return PlainSocket(self.family, self.type, self.proto, fileno=descriptor), peer
