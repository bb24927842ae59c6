"""An accepted socket with its address and listener."""

from __future__ import annotations

import socket


class AcceptedSocket:
    """An accepted socket: its peer, and the port that accepted it (broker id, None for the bootstrap port).

    Attributes:
        sock: the socket; uvloop makes it non-blocking when it creates the transport.
        proxy: the load balancer, once its header is read. From then on `ip` and `port` are the client's.
        connected_to: the address that the client connected to, from the load balancer; None: the socket's own.
        recorded: whether the usage records have counted the connection.
    """

    # No dataclass: its constructor would stay Python code in the compiled core.
    __slots__ = ("broker_id", "connected_to", "ip", "port", "proxy", "recorded", "sock")

    def __init__(
        self,
        sock: socket.socket,
        ip: str,
        port: int,
        broker_id: int | None,
        proxy: str | None = None,
        connected_to: tuple[str, int] | None = None,
        *,
        recorded: bool = False,
    ) -> None:
        self.sock = sock
        self.ip = ip
        self.port = port
        self.broker_id = broker_id
        self.proxy = proxy
        self.connected_to = connected_to
        self.recorded = recorded

    @property
    def peer(self) -> str:
        """The peer's address and port, for logs."""
        return f"{self.ip}:{self.port}"

    @property
    def endpoints(self) -> tuple[tuple[str, int], tuple[str, int]] | None:
        """The client's address and the address that it connected to; None if the connection was already reset."""
        reached = self.connected_to
        if reached is None:
            try:
                reached = self.sock.getsockname()[:2]
            except OSError:  # the next operation on the socket ends this connection
                return None
        return ((self.ip, self.port), reached)
