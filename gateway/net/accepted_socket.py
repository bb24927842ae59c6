"""The sockets of an acceptor: the listening one, and what is known of an accepted one."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any


class PlainSocket(socket.socket):
    """A TCP socket that tells its family and its type as plain numbers; what it accepts is of the same kind.

    The base class makes members of enums of them at each question: two microseconds each time, five times for each
    accepted connection, the loop's own questions among them.
    """

    __slots__ = ()

    # The base class's base, whose attributes the enums are made of.
    family = socket.SocketType.family  # type: ignore[assignment]
    type = socket.SocketType.type  # type: ignore[assignment]

    def accept(self) -> tuple[PlainSocket, Any]:
        """See `socket.socket.accept`; the accepted socket blocks, whatever this one does."""
        descriptor, peer = self._accept()  # type: ignore[attr-defined]
        return PlainSocket(self.family, self.type, self.proto, fileno=descriptor), peer


@dataclass(slots=True, eq=False)
class AcceptedSocket:
    """An accepted socket: its peer, and the port that it came to (broker id, None for the bootstrap port).

    Attributes:
        sock: uvloop has it no longer block once it has a transport.
        proxy: the load balancer that it came through, once its header is read; `ip` and `port` are the client's then.
        connected_to: where the client connected to, as a load balancer tells it; None: to this socket's own address.
        recorded: whether the usage records have counted it.
    """

    sock: socket.socket
    ip: str
    port: int
    broker_id: int | None
    proxy: str | None = None
    connected_to: tuple[str, int] | None = None
    recorded: bool = False

    @property
    def peer(self) -> str:
        """For logs."""
        return f"{self.ip}:{self.port}"

    @property
    def endpoints(self) -> tuple[tuple[str, int], tuple[str, int]] | None:
        """Where the client is and where it connected to; None when the connection was reset already."""
        reached = self.connected_to
        if reached is None:
            try:
                reached = self.sock.getsockname()[:2]
            except OSError:  # the next thing that is tried on it ends this connection
                return None
        return ((self.ip, self.port), reached)
