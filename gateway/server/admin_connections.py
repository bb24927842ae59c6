"""Connections to the admin port: a fixed number; the longest silent one is closed for a new one (hazard K20).

This module accepts by itself, as for clients: the loop would accept without limit. When all places are taken, a new
connection replaces the one that has waited longest for its peer. A connection whose request is being worked on stays.
If all are, nothing is accepted. Further connections wait in the kernel's queue, where they cost no descriptor.

A new peer has a grace period to send its request before it can be replaced, so that each of many simultaneous
scrapers gets its response. The period is `GRACE_S` times the share of the latest connections that sent a request. So
a flood of silent connections makes it shorter, until each of them can be replaced at once.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol, cast

from aiohttp.web_protocol import RequestHandler

from gateway.server.control import user_of

MAX_CONNECTIONS: Final = 32
ACCEPTS_PER_TURN: Final = 4
"""Few, so that a new connection's request is read before as many others come as there are places."""
BACKLOG: Final = 128

FIRST_REQUEST_S: Final = 10.0
"""The most time from accept to a complete head."""
IDLE_S: Final = 75.0
"""The longest wait for a body, for a reply to be read, or for the next request: above scrapers' usual minute."""
GRACE_S: Final = 0.5
"""How long a new peer may be silent before it can be replaced, while all connections send requests."""
_LOOK_S: Final = 1.0
_LOOK_WHEN_FULL_S: Final = 0.05


class _Wait(NamedTuple):
    """When a connection began to wait for its peer, and how long it may (s, by the loop's clock)."""

    since: float
    until: float


class Handshake(Protocol):
    """The protocol of a socket during its TLS handshake."""

    def abort(self) -> None:
        """Close the socket at once."""


class Handshakes(Protocol):
    """See `gateway.server.admin_tls.AdminTls`."""

    def transport_for(self, handler: RequestHandler, ip: str) -> Handshake:
        """The protocol of an accepted socket."""

    def under_way(self, handler: RequestHandler) -> Handshake | None:
        """The handshake of a connection; None: it is done."""


class AdminConnections:
    """See the module."""

    def __init__(
        self,
        make: Callable[[], RequestHandler],
        *,
        tls: Handshakes | None = None,
        most: int = MAX_CONNECTIONS,
        first_request_s: float = FIRST_REQUEST_S,
        idle_s: float = IDLE_S,
    ) -> None:
        """Nothing is bound yet; needs the running loop.

        Args:
            make: makes the HTTP side of a connection.
            tls: the handshakes; None: plain HTTP.
            most: the most connections at a time.
            first_request_s, idle_s: see the constants.
        """
        self._make = make
        self._tls = tls
        self._most = most
        self._first_request_s = first_request_s
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self.sockets: list[socket.socket] = []
        self._accepting = False
        # Connections that wait for their peer; the one that has waited longest comes first.
        self._waiting: dict[RequestHandler, _Wait] = {}
        self._working: set[RequestHandler] = set()
        self._asked: set[RequestHandler] = set()  # connections with a request
        self._attaching: dict[asyncio.Task[None], RequestHandler] = {}
        self._look: asyncio.TimerHandle | None = None
        self._look_when_full: asyncio.TimerHandle | None = None
        # Whether each of the latest connections that had a place sent a request.
        self._latest: deque[bool] = deque([True] * most, most)
        self._new: set[RequestHandler] = set()  # connections that have not sent a request yet

    async def listen(self, host: str, port: int, inherited: Sequence[socket.socket] = ()) -> int:
        """Bind every address of a host name, and accept.

        Args:
            host: the host name.
            port: 0 is any free one.
            inherited: sockets that listen there already; then nothing is bound.

        Returns:
            The port.

        Raises:
            OSError: an address cannot be bound; nothing stays open.
        """
        if inherited:
            self.sockets += inherited
            self._resume()
            self._close_late()
            return self.port
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((each[0], each[4]) for each in found):
                # With port 0, all addresses get the same port.
                self._bind(family, (address[0], port or self.port, *address[2:]))
        except OSError:
            self.stop()
            raise
        self._resume()
        self._close_late()
        return self.port

    @property
    def port(self) -> int:
        """The bound port; 0: none is bound."""
        if not self.sockets or self.sockets[0].family == socket.AF_UNIX:
            return 0
        return int(self.sockets[0].getsockname()[1])

    @property
    def count(self) -> int:
        """The number of connections."""
        begun = sum(
            each not in self._waiting and each not in self._working for each in self._attaching.values()
        )
        return len(self._waiting) + len(self._working) + begun

    @property
    def grace_s(self) -> float:
        """How long a new peer may be silent before it can be replaced."""
        return GRACE_S * sum(self._latest) / len(self._latest)

    def deadline(self) -> float:
        """The time by which a body that begins now must have arrived (s, by the loop's clock)."""
        return self._loop.time() + self._idle_s

    @contextmanager
    def working(self, connection: RequestHandler) -> Iterator[None]:
        """The gateway works on a request in this context: the connection is not closed."""
        self._waiting.pop(connection, None)
        self._working.add(connection)
        self._asked.add(connection)
        self._came_to_something(connection, asked=True)
        try:
            yield
        finally:
            self._asked.discard(connection)
            self._working.discard(connection)
            if connection.transport is not None:
                self._waiting[connection] = self._wait(self._idle_s)
            self._resume()

    @contextmanager
    def waiting(self, connection: RequestHandler, until: float) -> Iterator[None]:
        """Within `working`: the connection waits for its peer, which sends a body or reads a reply.

        Args:
            connection: of the request.
            until: a `deadline`, the same for a whole body.

        Raises:
            ConnectionError: the peer is gone, or its connection was closed for another one.
        """
        if connection.transport is None:
            raise ConnectionResetError
        self._working.discard(connection)
        # A body that comes byte by byte counts as one wait.
        self._waiting[connection] = _Wait(until - self._idle_s, until)
        self._resume()
        try:
            yield
        finally:
            self._waiting.pop(connection, None)
            self._working.add(connection)

    def give_away(self) -> list[socket.socket]:
        """Accept no more; the caller owns the sockets from now on."""
        self._pause()
        given = list(self.sockets)
        self.sockets.clear()
        return given

    def end_each(self) -> None:
        """Close each connection after its response; close connections without a request at once."""
        for connection in self._asked:
            connection.close()
        for connection in [each for each in self._waiting if each not in self._asked]:
            if connection.transport is None:
                self._close(connection)  # in the TLS handshake
            else:
                connection.force_close()

    def stop(self) -> None:
        """Close the port; the HTTP server ends the connections."""
        self._pause()
        for look in (self._look, self._look_when_full):
            if look is not None:
                look.cancel()
        for listening in self.sockets:
            listening.close()
        self.sockets.clear()

    # -- accepting -------------------------------------------------------------------------------------------

    def _bind(self, family: int, address: tuple[object, ...]) -> None:
        listening = socket.socket(family, socket.SOCK_STREAM)
        self.sockets.append(listening)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        try:
            listening.bind(address)
        except OSError as exc:
            raise OSError(exc.errno, f"{exc.strerror}: {address[0]}:{address[1]}") from exc
        listening.listen(BACKLOG)

    def _resume(self) -> None:
        if not self._accepting and self.sockets:
            self._accepting = True
            for listening in self.sockets:
                self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            for listening in self.sockets:
                self._loop.remove_reader(listening.fileno())

    def _accept(self, listening: socket.socket) -> None:
        for nth in range(ACCEPTS_PER_TURN):
            if nth and self.count >= self._most:
                return  # room is made only for a connection that is certain to wait: then this is called again
            if self.count >= self._most and not self._make_room():
                self._pause()
                if self._look_when_full is not None:
                    self._look_when_full.cancel()
                self._look_when_full = self._loop.call_later(_LOOK_WHEN_FULL_S, self._resume)
                return
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError:
                # No descriptors: accept again at the next check, or after the next connection ends.
                self._pause()
                return
            if sock.family == socket.AF_UNIX and user_of(sock) not in (0, os.geteuid()):
                sock.close()  # every user of this machine can reach the socket
                continue
            sock.setblocking(False)
            connection = self._make()
            task = self._loop.create_task(self._attach(connection, sock, peer[0] if peer else ""))
            self._attaching[task] = connection
            task.add_done_callback(self._attached)

    def _attached(self, task: asyncio.Task[None]) -> None:
        del self._attaching[task]
        self._resume()

    async def _attach(self, connection: RequestHandler, sock: socket.socket, ip: str) -> None:
        self._new.add(connection)
        shaking_hands = None if self._tls is None else self._tls.transport_for(connection, ip)
        protocol = cast("asyncio.Protocol", shaking_hands or connection)
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, sock)
        except OSError:
            if shaking_hands is not None:
                shaking_hands.abort()
            sock.close()
            self._new.discard(connection)
            return
        if connection not in self._working and connection not in self._waiting:
            self._waiting[connection] = self._wait(self._first_request_s)

    def _transport(self, connection: RequestHandler) -> asyncio.Transport | Handshake | None:
        """The transport of a connection; None: it is closed."""
        shaking_hands = None if self._tls is None else self._tls.under_way(connection)
        return connection.transport or shaking_hands

    def _wait(self, seconds: float) -> _Wait:
        now = self._loop.time()
        return _Wait(now, now + seconds)

    def _came_to_something(self, connection: RequestHandler, *, asked: bool) -> None:
        if connection in self._new:
            self._new.discard(connection)
            self._latest.append(asked)

    def _make_room(self) -> bool:
        self._forget_closed()
        if self.count >= self._most:
            now, grace_s = self._loop.time(), self.grace_s
            for connection, wait in self._waiting.items():
                if connection not in self._new or now >= wait.since + grace_s:
                    self._close(connection)
                    break
        return self.count < self._most

    def _close_late(self) -> None:
        self._look = self._loop.call_later(_LOOK_S, self._close_late)
        self._forget_closed()
        now = self._loop.time()
        for connection in [each for each, wait in self._waiting.items() if wait.until <= now]:
            self._close(connection)
        self._resume()

    def _close(self, connection: RequestHandler) -> None:
        del self._waiting[connection]
        self._came_to_something(connection, asked=False)
        transport = self._transport(connection)
        if transport is not None:
            transport.abort()

    def _forget_closed(self) -> None:
        for connection in [each for each in self._waiting if self._transport(each) is None]:
            del self._waiting[connection]
            self._came_to_something(connection, asked=False)
