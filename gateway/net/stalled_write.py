"""Closes a peer that reads too slowly: a client (hazards B08, B10) or a broker (B11).

What waits is here and in the kernel, which takes bytes in large pieces: of a socket with 4 MiB of buffer none for as
long as a client needs for a third of that, though it reads all the time. So what counts is what the peer has not
acknowledged.
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
"""Of SO_LINGER."""

_SETTLES_MS: Final = 1_000

_COUNT: Final = memoryview(bytearray(4)).cast("i")
"""The kernel writes into it; with `bytes`, Python fails to do so first."""


class _Owner(Protocol):
    """A listener, as far as this watch is concerned."""

    loop: asyncio.AbstractEventLoop
    settings: SessionSettings


class _Buffer(Protocol):
    """A transport, as far as this watch is concerned."""

    def get_write_buffer_size(self) -> int:
        """Bytes that have not left."""

    def get_extra_info(self, name: str) -> Any:
        """Of asyncio's transports."""


class StalledWriteDetector:
    """Looks at one transport for as long as it is full: each period some of its bytes must leave."""

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
        """Begin to look.

        Args:
            owner: its settings say how long a period is and how much must leave; they may change meanwhile.
            transport: full; nothing is added to it by more than replies that are made here.
            on_stalled: called once, when too little has left.
            upstream: it is a broker's: it gets longer than any client waits, and any byte is enough.
        """
        self._owner = owner
        self._transport = transport
        self._on_stalled = on_stalled
        self._upstream = upstream
        self._due_ms = owner.loop.time() * 1000 + self._period_ms()
        # What is under way when the transport fills reaches the kernel of a peer that reads nothing, too.
        settles_ms = min(_SETTLES_MS, self._period_ms() / 10)
        self._timer = owner.loop.call_later(settles_ms / 1000, self._look)

    def _period_ms(self) -> float:
        settings = self._owner.settings
        return float(settings.upstream_write_timeout_ms if self._upstream else settings.write_timeout_ms)

    def _look(self) -> None:
        self._looked_ms = self._owner.loop.time() * 1000
        left_ms = self._due_ms - self._looked_ms
        if left_ms < self._period_ms() / 2:
            # The loop stood still meanwhile, and what was read in that time is not known.
            left_ms = self._period_ms()
            self._due_ms = self._looked_ms + left_ms
        self._left_bytes = unacknowledged_bytes(self._transport)
        self._timer = self._owner.loop.call_later(left_ms / 1000, self._check)

    def _start(self) -> None:
        self._due_ms = self._owner.loop.time() * 1000 + self._period_ms()
        self._look()

    def stop(self) -> None:
        """Look no more."""
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
    """What the kernel holds for the peer goes with the connection, and not minutes later."""
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)


def unacknowledged_bytes(transport: _Buffer) -> int:
    """Bytes that the peer has not acknowledged; a FIN that was sent counts as one."""
    connection = transport.get_extra_info("socket")
    return transport.get_write_buffer_size() + (
        0 if connection is None else unsent_bytes(connection.fileno())
    )


def unsent_bytes(descriptor: int) -> int:
    """Of those, the ones that the kernel has; 0 of a descriptor that is closed."""
    return queued_bytes(descriptor, termios.TIOCOUTQ)


def unread_bytes(descriptor: int) -> int:
    """Bytes that have come and were not read."""
    return queued_bytes(descriptor, termios.FIONREAD)


def queued_bytes(descriptor: int, request: int) -> int:
    """What the kernel answers to an ioctl(2) that asks for a number of bytes; 0 of a descriptor that is closed."""
    if descriptor < 0:
        return 0
    fcntl.ioctl(descriptor, request, _COUNT)
    return _COUNT[0]
