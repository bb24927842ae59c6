"""Limits reads from a broker to what the client's socket can take now.

A chunk that was read stays in memory until the client takes it. uvloop reads 256 KiB at once, which is cheapest
as long as the kernel takes it all. For a client that is slow the size of each read is fitted, so that at most
`LEAST_READ_BYTES` of it are kept: to the room that the kernel reports, which it may not have when its memory for TCP
runs out, and to what the client has lately taken whole.

The kernel itself may keep 4 MiB for each socket, and more of what the broker sends meanwhile. Of what it has not
sent to a client of large answers it keeps `MOST_UNSENT_BYTES` (TCP_NOTSENT_LOWAT, Linux); what is under way is not
bounded.
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
"""As much as uvloop reads."""

MOST_UNSENT_BYTES: Final = 1024 * 1024

FULL_READS_PER_TURN: Final = 8
"""Then other connections have their turn; the loop itself would read 32 times."""

_TAKEN_BYTES: Final = 1024 * 1024
"""Where the kernel does not report its room: a client that has taken so much whole is not slow any more."""

_SO_MEMINFO: Final = 55
_MEMINFO: Final = struct.Struct("=9I")  # linux/sock_diag.h, SK_MEMINFO_*
_SNDBUF: Final = 3
_WMEM_QUEUED: Final = 5
_SIOCOUTQNSD: Final = 0x894B  # linux/sockios.h: bytes that were not sent
_TCP_NOTSENT_LOWAT: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)

_BUFFER: Final = memoryview(bytearray(MOST_READ_BYTES))
"""For all connections: what is read is copied out before the next read."""


class _Client(Protocol):
    """A client's transport, as far as it is looked at here."""

    def get_extra_info(self, name: str) -> socket.socket | None:
        """Of asyncio's transports."""

    def get_write_buffer_size(self) -> int:
        """Of asyncio's transports."""


class FittedUser(UpstreamUser, Protocol):
    """The client channel, as far as these reads are concerned."""

    def read_full(self) -> None:
        """So much was read in this turn that others should have theirs."""

    def client_has_room(self) -> None:
        """The client's socket takes more than the largest read: reads need not be fitted."""


def bound_unsent(client: _Client) -> None:
    """Has the kernel keep no more than `MOST_UNSENT_BYTES` for the client, where it can."""
    connection = client.get_extra_info("socket")
    if connection is not None and _TCP_NOTSENT_LOWAT is not None:
        with suppress(OSError):  # gone, or not of TCP
            connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, MOST_UNSENT_BYTES)


def room_bytes(client: _Client) -> int | None:
    """What the client's socket takes at once, without a part of it left over; 0 when it is gone.

    None: this kernel does not report it.
    """
    connection = client.get_extra_info("socket")
    if connection is None:
        return 0
    told: tuple[int, ...]
    try:
        told = _MEMINFO.unpack(connection.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))
        # The kernel counts up to a fifth more than the bytes.
        room = (told[_SNDBUF] - told[_WMEM_QUEUED]) * 3 // 4
        if room > 0:
            room = min(room, MOST_UNSENT_BYTES - queued_bytes(connection.fileno(), _SIOCOUTQNSD))
    except OSError as exc:
        return None if exc.errno == errno.ENOPROTOOPT else 0
    except struct.error:
        return None
    return max(0, room)


class FittedReads(asyncio.BufferedProtocol):
    """Stands in for `UpstreamChannel` at the broker's transport while the client is slow.

    It ends when the client's socket has room for two of the largest reads. A socket whose buffer cannot grow so far
    keeps it: then reads are as large as the buffer, since of larger ones the rest would stay in memory.
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
        """Where to read into."""
        self._room_bytes = room = room_bytes(self._client)
        self._size = min(max(room or 0, LEAST_READ_BYTES), self._most_bytes)
        return _BUFFER[: self._size]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have been read."""
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
        elif room is None or room >= nbytes:  # the kernel took less than it had said
            self._taken_bytes = 0
            self._most_bytes = LEAST_READ_BYTES

    def connection_lost(self, exc: Exception | None) -> None:
        """The leg is gone, whichever side ended it."""
        self._user.upstream_lost()

    def pause_writing(self) -> None:
        """Back pressure begins."""
        self._user.upstream_writable(False)

    def resume_writing(self) -> None:
        """Back pressure ends."""
        self._user.upstream_writable(True)
