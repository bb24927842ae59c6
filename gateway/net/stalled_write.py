"""Closes a peer that reads too slowly: a client (hazards B08, B10) or a broker (B11).

Unsent bytes wait in the gateway and in the kernel. The kernel takes bytes in large pieces: with a buffer of 4 MiB it
takes none until the client has read a third of that, although the client reads all the time. So the detector counts
the bytes that the peer has not acknowledged.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from typing import Any, Final, Protocol

from gateway.runtime.lateness import LATE_MS
from gateway.session.settings import SessionSettings

RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""A value for SO_LINGER that resets the connection at `close()`."""

_SETTLES_MS: Final = 1_000

_COUNT: Final = memoryview(bytearray(4)).cast("i")
"""The kernel writes into it. With `bytes`, Python would first try to do so and fail."""


class _Owner(Protocol):
    """The part of a listener that the detector uses."""

    loop: asyncio.AbstractEventLoop
    settings: SessionSettings


class _Buffer(Protocol):
    """The part of a transport that the detector uses."""

    def get_write_buffer_size(self) -> int:
        """See asyncio's transports."""

    def get_extra_info(self, name: str) -> Any:
        """See asyncio's transports."""


class StalledWriteDetector:
    """Watches one transport while it is full: in each period the peer must take some of its bytes."""

    __slots__ = (
        "_due_ms",
        "_left_bytes",
        "_looked_ms",
        "_on_stalled",
        "_owner",
        "_timer",
        "_transport",
        "_upstream",
    )

    def __init__(
        self, owner: _Owner, transport: _Buffer, on_stalled: Callable[[], None], *, upstream: bool = False
    ) -> None:
        """Begin to watch.

        Args:
            owner: its settings have the period and the least rate; they may change meanwhile.
            transport: the full transport. Only the gateway's own replies may be added to it.
            on_stalled: called once, when the peer has taken too few bytes.
            upstream: whether the peer is a broker. Its period is longer than clients wait, and one byte is enough.
        """
        self._owner = owner
        self._transport = transport
        self._on_stalled = on_stalled
        self._upstream = upstream
        self._due_ms = owner.loop.time() * 1000 + self._period_ms()
        # Bytes in flight when the transport fills are acknowledged even if the peer reads nothing, so wait for them.
        settles_ms = min(_SETTLES_MS, self._period_ms() / 10)
        self._timer = owner.loop.call_later(settles_ms / 1000, self._look)

    def _period_ms(self) -> float:
        settings = self._owner.settings
        return float(settings.upstream_write_timeout_ms if self._upstream else settings.write_timeout_ms)

    def _look(self) -> None:
        self._looked_ms = self._owner.loop.time() * 1000
        left_ms = self._due_ms - self._looked_ms
        if left_ms < self._period_ms() / 2:
            # The loop was blocked meanwhile, so the progress in that time is not known.
            left_ms = self._period_ms()
            self._due_ms = self._looked_ms + left_ms
        self._left_bytes = unacknowledged_bytes(self._transport)
        self._timer = self._owner.loop.call_later(left_ms / 1000, self._check)

    def _start(self) -> None:
        self._due_ms = self._owner.loop.time() * 1000 + self._period_ms()
        self._look()

    def stop(self) -> None:
        """Stop watching."""
        self._timer.cancel()

    def _check(self) -> None:
        if self._owner.loop.time() * 1000 - self._due_ms >= LATE_MS:
            self._start()
            return
        progress = self._left_bytes - unacknowledged_bytes(self._transport)
        span_ms = self._due_ms - self._looked_ms
        enough = 1 if self._upstream else self._owner.settings.min_write_bytes_per_s * span_ms / 1000
        if progress < enough:
            self._on_stalled()
        else:
            self._start()


def reset_on_close(transport: _Buffer) -> None:
    """Make the kernel drop the peer's unsent bytes when the connection is closed, and not minutes later."""
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)


def unacknowledged_bytes(transport: _Buffer) -> int:
    """Number of bytes that the peer has not acknowledged; a sent FIN counts as one."""
    connection = transport.get_extra_info("socket")
    return transport.get_write_buffer_size() + (
        0 if connection is None else unsent_bytes(connection.fileno())
    )


def unsent_bytes(descriptor: int) -> int:
    """Number of unacknowledged bytes in the kernel; 0 for a closed descriptor."""
    return queued_bytes(descriptor, termios.TIOCOUTQ)


def unread_bytes(descriptor: int) -> int:
    """Number of received bytes that were not read."""
    return queued_bytes(descriptor, termios.FIONREAD)


def queued_bytes(descriptor: int, request: int) -> int:
    """The result of an ioctl(2) that returns a number of bytes; 0 for a closed descriptor."""
    if descriptor < 0:
        return 0
    fcntl.ioctl(descriptor, request, _COUNT)
    return _COUNT[0]
