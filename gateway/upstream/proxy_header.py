"""PROXY headers to the brokers: they contain the client's address, before TLS and Kafka."""

from __future__ import annotations

import asyncio
import socket
from typing import TypeAlias

from protocol.proxy_protocol import Endpoint, ProxyVersion, build_header

Endpoints: TypeAlias = tuple[Endpoint, Endpoint]
"""The client's address, and the address that it connected to."""


class ProxyHeaderSender:
    """Opens connections that begin with a header."""

    def __init__(self, version: ProxyVersion) -> None:
        """Make it.

        Args:
            version: of the header.
        """
        self._version = version

    async def connect(self, host: str, port: int, endpoints: Endpoints | None) -> socket.socket:
        """A connected socket, on which the header is already sent.

        Args:
            host: a numeric address.
            port: of a broker.
            endpoints: None: the connection is the gateway's own, and its header names no client.

        Raises:
            OSError: there is no connection; nothing stays open.
        """
        loop = asyncio.get_running_loop()
        connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, (host, port))
            source, destination = endpoints or (None, None)
            await loop.sock_sendall(connection, build_header(self._version, source, destination))
        except BaseException:
            connection.close()
            raise
        return connection
