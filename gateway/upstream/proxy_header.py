"""PROXY headers towards the brokers: what they see in front of TLS and Kafka is the client, not the gateway."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from protocol.proxy_protocol import Endpoint, ProxyVersion, build_header

if TYPE_CHECKING:
    from gateway.net.acceptor import AcceptedSocket
    from gateway.upstream.channel import UpstreamUser


class ProxyHeaderSender:
    """Opens connections that begin with a header.

    Clients that nobody told of, such as discovery, are the gateway's own: their header names nobody.
    """

    def __init__(self, version: ProxyVersion) -> None:
        """Make it.

        Args:
            version: of the header.
        """
        self._version = version
        self._clients: dict[UpstreamUser, tuple[Endpoint, Endpoint]] = {}

    def remember(self, user: UpstreamUser, accepted: AcceptedSocket) -> None:
        """Tell whose connection to a broker it will be; `forget` must follow."""
        reached = accepted.connected_to
        if reached is None:
            try:
                reached = accepted.sock.getsockname()[:2]
            except OSError:  # reset already: the next thing that is tried on it ends this connection
                return
        self._clients[user] = ((accepted.ip, accepted.port), reached)

    def forget(self, user: UpstreamUser) -> None:
        """The client has gone."""
        self._clients.pop(user, None)

    @property
    def clients(self) -> int:
        """How many are remembered."""
        return len(self._clients)

    async def connect(self, user: UpstreamUser, host: str, port: int) -> socket.socket:
        """A connected socket to whom the header has been sent.

        Args:
            user: whose connection it is.
            host: a numeric address.
            port: of a broker.

        Raises:
            OSError: there is no connection; nothing stays open.
        """
        loop = asyncio.get_running_loop()
        connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, (host, port))
            source, destination = self._clients.get(user, (None, None))
            await loop.sock_sendall(connection, build_header(self._version, source, destination))
        except BaseException:
            connection.close()
            raise
        return connection
