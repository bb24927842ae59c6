"""Limits reads from a broker to what the client's socket can take now.

A chunk that was read stays in memory until the client takes it. uvloop reads 256 KiB at once, which is cheapest
as long as the kernel takes it all. For a slow client the size of each read is fitted, so that at most
`LEAST_READ_BYTES` of it are kept. The size follows the room that the kernel reports. Because the kernel may lack that
room when its memory for TCP runs out, it also follows the reads that the client has lately taken completely.

The kernel may keep 4 MiB for each socket, and also bytes that the broker sends meanwhile. For a client with large
replies it keeps at most `MOST_UNSENT_BYTES` of unsent bytes (TCP_NOTSENT_LOWAT, Linux). Bytes that are sent and not
acknowledged are not bounded.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from contextlib import suppress
from typing import Final, Protocol

from gateway.net.stalled_write import queued_bytes
from gateway.upstream.connector import UpstreamUser

LEAST_READ_BYTES: Final = 32 * 1024

MOST_READ_BYTES: Final = 256 * 1024
"""The size of uvloop's own reads."""

MOST_UNSENT_BYTES: Final = 1024 * 1024

FULL_READS_PER_TURN: Final = 8
"""After so many full reads other connections have their turn; the loop itself would read 32 times."""

_TAKEN_BYTES: Final = 1024 * 1024
"""If the kernel does not report its room: a client that has taken this much completely is no longer slow."""

_SO_MEMINFO: Final = 55
_MEMINFO: Final = struct.Struct("=9I")  # linux/sock_diag.h, SK_MEMINFO_*
_SNDBUF: Final = 3
_WMEM_QUEUED: Final = 5
_SIOCOUTQNSD: Final = 0x894B  # linux/sockios.h: bytes that were not sent
_TCP_NOTSENT_LOWAT: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)

_BUFFER: Final = memoryview(bytearray(MOST_READ_BYTES))
"""Shared by all connections: the bytes are copied before the next read."""


class _Client(Protocol):
    """The part of a client's transport that this module uses."""

    def get_extra_info(self, name: str) -> socket.socket | None:
        """See asyncio's transports."""

    def get_write_buffer_size(self) -> int:
        """See asyncio's transports."""


class FittedUser(UpstreamUser, Protocol):
    """The part of the client channel that these reads use."""

    def read_full(self) -> None:
        """Let other connections have their turn, after many full reads in this one."""

    def client_has_room(self) -> None:
        """Stop fitting reads: the client's socket has room for more than the largest read."""


def bound_unsent(client: _Client) -> None:
    """Make the kernel keep at most `MOST_UNSENT_BYTES` of unsent bytes for the client, if it supports that."""
    connection = client.get_extra_info("socket")
    if connection is not None and _TCP_NOTSENT_LOWAT is not None:
        with suppress(OSError):  # closed, or not a TCP socket
            connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, MOST_UNSENT_BYTES)


def room_bytes(client: _Client) -> int | None:
    """How many bytes the client's socket takes completely now; 0 if closed; None: the kernel does not report it."""
    connection = client.get_extra_info("socket")
    if connection is None:
        return 0
    told: tuple[int, ...]
    try:
        told = _MEMINFO.unpack(connection.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))
        # The kernel's count includes overhead of up to a fifth.
        room = (told[_SNDBUF] - told[_WMEM_QUEUED]) * 3 // 4
        if room > 0:
            room = min(room, MOST_UNSENT_BYTES - queued_bytes(connection.fileno(), _SIOCOUTQNSD))
    except OSError as exc:
        return None if exc.errno == errno.ENOPROTOOPT else 0
    except struct.error:
        return None
    return max(0, room)


class FittedReads(asyncio.BufferedProtocol):
    """Replaces `UpstreamChannel` at the broker's transport while the client is slow.

    It ends when the client's socket has room for two of the largest reads. If the socket's buffer cannot grow that
    far, it stays: reads are then as large as the buffer, since the rest of larger ones would stay in memory.
    """

    __slots__ = ("_client", "_full_reads", "_most_bytes", "_room_bytes", "_size", "_taken_bytes", "_user")

    def __init__(self, user: FittedUser, client: _Client) -> None:
        """Fit reads to what `client` takes."""
        self._user = user
        self._client = client
        self._size = self._full_reads = self._taken_bytes = 0
        self._most_bytes = LEAST_READ_BYTES
        self._room_bytes: int | None = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next read."""
        self._room_bytes = room = room_bytes(self._client)
        self._size = min(max(room or 0, LEAST_READ_BYTES), self._most_bytes)
        return _BUFFER[: self._size]

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on the bytes that were read, and fit the size of the next reads."""
        user = self._user
        room = self._room_bytes
        if self._taken_bytes >= _TAKEN_BYTES if room is None else room >= 2 * MOST_READ_BYTES:
            user.client_has_room()
        elif nbytes == self._size:
            self._full_reads += 1
            if self._full_reads % FULL_READS_PER_TURN == 0:
                user.read_full()
        user.upstream_received(bytes(_BUFFER[:nbytes]))
        if not self._client.get_write_buffer_size():
            self._taken_bytes += nbytes
            if room is not None and self._taken_bytes >= MOST_UNSENT_BYTES:
                self._taken_bytes = 0
                self._most_bytes = min(2 * self._most_bytes, MOST_READ_BYTES)
        elif room is None or room >= nbytes:  # the kernel took less than it had reported
            self._taken_bytes = 0
            self._most_bytes = LEAST_READ_BYTES

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the broker's leg, whichever side ended it."""
        self._user.upstream_lost()

    def pause_writing(self) -> None:
        """Report the begin of back pressure."""
        self._user.upstream_writable(False)

    def resume_writing(self) -> None:
        """Report the end of back pressure."""
        self._user.upstream_writable(True)
