"""A client with one plain socket, which can do to the gateway what no client library does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from struct import pack, unpack
from typing import Any, Final

HOST: Final = "127.0.0.1"
PATIENCE_S: Final = 60.0
"""How long a test waits for an event that must happen. Only a hang takes that long, even on a busy machine."""


class Ended(Exception):
    """The gateway closed the connection.

    Attributes:
        rest: bytes that arrived before.
    """

    def __init__(self, rest: bytes) -> None:
        super().__init__(f"closed after {len(rest)} bytes")
        self.rest = rest


class RawClient:
    """One connection, which reads only on request."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()

    @classmethod
    async def connect(
        cls, port: int, *, host: str = HOST, receive_buffer_bytes: int | None = None, source: str = ""
    ) -> RawClient:
        """Connects, perhaps from a certain address. With a small receive buffer the kernel buffers little."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        if source:
            sock.bind((source, 0))
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.get_running_loop().sock_connect(sock, (host, port))
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    async def __aenter__(self) -> RawClient:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.close()

    async def send(self, data: bytes) -> None:
        """Sends all bytes."""
        await asyncio.sleep(0)  # gives other tasks a turn, even if the kernel accepts all bytes at once
        async with asyncio.timeout(PATIENCE_S):
            await self._loop.sock_sendall(self.sock, data)

    async def receive_frame(self) -> bytes:
        """The next whole reply frame.

        Raises:
            Ended: the connection has ended.
        """
        size = unpack(">i", await self._receive(4))[0]
        frame = await self._receive(4 + size)
        del self._received[: 4 + size]
        return frame

    async def receive_rest(self) -> bytes:
        """All bytes until the gateway closes the connection."""
        try:
            while True:
                await self._receive(len(self._received) + 1)
        except Ended as ended:
            return ended.rest

    async def silent_for(self, seconds: float) -> bool:
        """Whether no byte arrives and the connection stays open during this time."""
        try:
            async with asyncio.timeout(seconds):
                await self._receive(len(self._received) + 1)
        except TimeoutError:
            return True
        except Ended:
            return False
        return False

    async def _receive(self, count: int) -> bytes:
        while len(self._received) < count:
            await asyncio.sleep(0)  # as in `send`
            try:
                async with asyncio.timeout(PATIENCE_S):
                    data = await self._loop.sock_recv(self.sock, 1 << 20)
            except ConnectionResetError:
                data = b""
            if not data:
                raise Ended(bytes(self._received))
            self._received += data
        return bytes(self._received[:count])

    def half_close(self) -> None:
        """Sends FIN; replies can still arrive."""
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Sends RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        self.sock.close()

    def close(self) -> None:
        """Closes both directions."""
        self.sock.close()


async def until(fact: Callable[[], Any], *, seconds: float = PATIENCE_S, pause_s: float = 0.005) -> None:
    """Waits until a condition is true; fails if it is not true in time.

    Args:
        fact: the condition.
        seconds: how long to wait.
        pause_s: the time between two checks; more for a condition that takes CPU.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    looks = 0
    while not fact():
        # One iteration of the loop may take the whole time, so the condition also gets a number of checks.
        assert loop.time() < end or looks < 100, "waited in vain"
        looks += 1
        await asyncio.sleep(pause_s)


async def settled(count: Callable[[], int]) -> int:
    """Waits until a number no longer changes. Returns it."""
    seen = -1
    while seen != count():
        seen = count()
        await asyncio.sleep(0.05)
    return seen


async def refused(port: int) -> bool:
    """Whether no process listens on a port."""
    try:
        client = await RawClient.connect(port)
    except ConnectionRefusedError:
        return True
    client.close()
    return False
