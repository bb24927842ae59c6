"""Listening sockets for clients: opened here, or inherited from the old process.

An inherited port is never closed in between: connections wait in the kernel's backlog until the new process accepts.
Until then no port of the new process accepts.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any, Final

from gateway.upstream.keepalive import limit_unacknowledged, watch_peer
from gateway.upstream.topology import Address

BACKLOG: Final = 1024


class PlainSocket(socket.socket):
    """A TCP socket with plain numbers as family and type. The sockets that it accepts are of the same class.

    `socket.socket` converts family and type to enums at each access. That takes two microseconds, five times for each
    accepted connection, including the loop's own accesses. The class must derive from `socket.socket`: uvloop closes
    any other object a second time, when its descriptor may belong to another thread.
    """

    __slots__ = ()

    # The base class of `socket.socket`, which has the plain numbers.
    family = socket.SocketType.family  # type: ignore[assignment]
    type = socket.SocketType.type  # type: ignore[assignment]

    def accept(self) -> tuple[PlainSocket, Any]:
        """See `socket.socket.accept`; the accepted socket is always blocking."""
        descriptor, peer = self._accept()  # type: ignore[attr-defined]
        return PlainSocket(self.family, self.type, self.proto, fileno=descriptor), peer


class ListeningSockets:
    """The listening sockets of one gateway.

    Attributes:
        `held`: whether no port accepts yet.
    """

    def __init__(self) -> None:
        """Start without inherited sockets."""
        self.held = False
        self._inherited: dict[Address, socket.socket] = {}
        self._waiting: list[Callable[[], None]] = []

    def hold(self) -> None:
        """Let no port accept until `release`."""
        self.held = True

    def inherit(self, address: Address, sock: socket.socket) -> None:
        """Add a socket that already listens on this address."""
        self._inherited[address] = PlainSocket(int(sock.family), socket.SOCK_STREAM, 0, fileno=sock.detach())

    def open(self, address: Address, *, write_timeout_ms: int) -> socket.socket:
        """An inherited or new socket that listens on this address.

        Raises:
            OSError: the port cannot be bound; the message names it.
        """
        listening = self._inherited.pop(address, None)
        made = listening is None
        if listening is None:
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
            listening = PlainSocket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            watch_peer(listening)
            limit_unacknowledged(listening, write_timeout_ms=write_timeout_ms)
            listening.setblocking(False)
            if made:
                listening.bind(address)
            listening.listen(BACKLOG)
        except OSError as exc:
            listening.close()
            raise OSError(exc.errno, f"{exc.strerror}: {address[0]}:{address[1]}") from exc
        return listening

    def when_released(self, accept: Callable[[], None]) -> None:
        """Call `accept` once ports may accept."""
        self._waiting.append(accept)

    def release(self) -> None:
        """Let all ports accept, and close inherited sockets that were not used."""
        self.held = False
        for sock in self._left():
            sock.close()
        waiting, self._waiting = self._waiting, []
        for accept in waiting:
            accept()

    def _left(self) -> Iterator[socket.socket]:
        while self._inherited:
            yield self._inherited.popitem()[1]
