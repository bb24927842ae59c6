"""TCP keepalive: the kernel detects a peer that is gone without a word (hazard B05).

Without it a connection to a dead peer would last until its idle deadline, and one that is muted or waits for a
broker longer still. The kernel gives such a connection up after about two minutes.
"""

from __future__ import annotations

import socket
from typing import Final, Protocol

IDLE_S: Final = 60
"""How long nothing may be heard from a peer before it is asked for a sign of life."""

INTERVAL_S: Final = 10
PROBES: Final = 6

UNACKNOWLEDGED_MS: Final = 120_000
"""Where this is set the kernel goes by it and not by the number of probes."""


class _HasOptions(Protocol):
    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def watch_connected(fd: int, family: int) -> None:
    """`watch_peer` for the descriptor of a transport, whose own object would be copied for each option.

    Raises:
        OSError: it is gone already.
    """
    connection = socket.socket(family, socket.SOCK_STREAM, 0, fd)
    try:
        watch_peer(connection)
    finally:
        connection.detach()


def watch_peer(connection: _HasOptions) -> None:
    """Ask a silent peer for a sign of life; a listening socket hands this on to those it accepts."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)


def limit_unacknowledged(connection: _HasOptions, *, write_timeout_ms: int) -> None:
    """Give up a peer that acknowledges nothing of what was sent to it.

    For clients only: the kernel also counts the time in which a peer does not let us send, which for a client is
    bounded by the deadline of writes anyway, while a broker that throttles us may do so for as long as it likes.

    Args:
        connection: see `watch_peer`.
        write_timeout_ms: of the session; our own deadline comes first.
    """
    limit_ms = max(UNACKNOWLEDGED_MS, 2 * write_timeout_ms)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(limit_ms, 2**31 - 1))
