"""Listening sockets of clients' ports: made here, or taken over from the process that this one replaces.

A port that goes over is never closed in between: connections wait in the kernel's backlog until the new process
accepts. Until then its ports are held.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any, Final

from gateway.net.accepted_socket import accepted_by
from gateway.upstream.keepalive import limit_unacknowledged, watch_peer
from gateway.upstream.topology import Address

BACKLOG: Final = 1024


class ListeningSocket(socket.socket):
    """A TCP socket that accepts sockets of the plainest kind.

    `socket.socket` is written in Python: to make, ask and close one takes longer than the system calls, two
    microseconds alone for each question of its family or type, whose answers are members of enums.
    """

    __slots__ = ("_family",)

    def __init__(self, family: int, *, fileno: int | None = None) -> None:
        super().__init__(family, socket.SOCK_STREAM, 0, fileno)
        self._family = int(family)

    def accept(self) -> tuple[Any, Any]:
        """See `socket.socket.accept`; the accepted socket blocks, whatever this one does."""
        descriptor, peer = self._accept()  # type: ignore[attr-defined]
        return accepted_by(self._family, descriptor), peer


class ListeningSockets:
    """Those of one gateway.

    Attributes:
        held: no port accepts yet.
    """

    def __init__(self) -> None:
        """None is taken over."""
        self.held = False
        self._inherited: dict[Address, socket.socket] = {}
        self._waiting: list[Callable[[], None]] = []

    def hold(self) -> None:
        """Let no port accept until `release`."""
        self.held = True

    def inherit(self, address: Address, sock: socket.socket) -> None:
        """Have a socket that listens there already."""
        self._inherited[address] = ListeningSocket(sock.family, fileno=sock.detach())

    def open(self, address: Address, *, write_timeout_ms: int) -> socket.socket:
        """A socket that listens on this address.

        Raises:
            OSError: the port cannot be bound; the message names it.
        """
        listening = self._inherited.pop(address, None)
        made = listening is None
        if listening is None:
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
            listening = ListeningSocket(family)
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
        """Call it once ports may accept."""
        self._waiting.append(accept)

    def release(self) -> None:
        """Let all ports accept; close what nothing has asked for."""
        self.held = False
        for sock in self._left():
            sock.close()
        waiting, self._waiting = self._waiting, []
        for accept in waiting:
            accept()

    def _left(self) -> Iterator[socket.socket]:
        while self._inherited:
            yield self._inherited.popitem()[1]
