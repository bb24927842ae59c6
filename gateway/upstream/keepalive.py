"""TCP keepalive: the kernel detects a peer that is gone without closing its connection (hazard B05).

Without keepalive a connection to a dead peer would last until its idle deadline, and longer if it is muted or waits
for a broker. The kernel gives up such a connection after about two minutes.
"""

from __future__ import annotations

import socket
from typing import Final, Protocol

IDLE_S: Final = 60
"""How long a peer may be silent before the kernel probes it."""

INTERVAL_S: Final = 10
PROBES: Final = 6

UNACKNOWLEDGED_MS: Final = 120_000
"""If this is set, the kernel uses it instead of the number of probes."""


class _HasOptions(Protocol):
    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def watch_connected(fd: int, family: int) -> None:
    """`watch_peer` for the descriptor of a transport; the transport's own object would be copied for each option.

    Raises:
        OSError: the connection is gone already.
    """
    connection = socket.socket(family, socket.SOCK_STREAM, 0, fd)
    try:
        watch_peer(connection)
    finally:
        connection.detach()


def watch_peer(connection: _HasOptions) -> None:
    """Probe a silent peer; sockets accepted by a listening socket inherit this."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)


def limit_unacknowledged(connection: _HasOptions, *, write_timeout_ms: int) -> None:
    """Give up a peer that does not acknowledge sent data.

    For clients only: the kernel also counts the time in which a peer does not let us send. For a client the write
    deadline bounds that time anyway. A broker that throttles the gateway may take as long as it likes.

    Args:
        connection: see `watch_peer`.
        write_timeout_ms: of the session; that deadline comes first.
    """
    limit_ms = max(UNACKNOWLEDGED_MS, 2 * write_timeout_ms)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(limit_ms, 2**31 - 1))
