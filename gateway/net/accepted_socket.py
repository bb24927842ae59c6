"""An accepted socket with its address and listener."""

from __future__ import annotations

import socket


class AcceptedSocket:
    """An accepted socket: its peer, and the port that it came to (broker id, None for the bootstrap port).

    Attributes:
        sock: uvloop has it no longer block once it has a transport.
        proxy: the load balancer that it came through, once its header is read; `ip` and `port` are the client's then.
        connected_to: where the client connected to, as a load balancer says; None: to this socket's own address.
        recorded: whether the usage records have counted it.
    """

    # No dataclass, whose constructor stays one in Python where this is compiled.
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
