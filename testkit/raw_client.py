"""A client made of one plain socket: it can do to the gateway what no client library does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from struct import pack, unpack
from typing import Any, Final

HOST: Final = "127.0.0.1"
PATIENCE_S: Final = 60.0
"""How long a test waits for what must happen: only what hangs takes as long, on a busy machine too."""


class Ended(Exception):
    """The gateway closed the connection.

    Attributes:
        rest: what came before it did.
    """

    def __init__(self, rest: bytes) -> None:
        super().__init__(f"closed after {len(rest)} bytes")
        self.rest = rest


class RawClient:
    """One connection. Reads only when asked to."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()

    @classmethod
    async def connect(
        cls, port: int, *, host: str = HOST, receive_buffer_bytes: int | None = None
    ) -> RawClient:
        """Connect; a small receive buffer makes the kernel hold little for a client that does not read."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
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
        """Send everything."""
        await asyncio.sleep(0)  # others have their turn, also if the kernel takes all at once
        async with asyncio.timeout(PATIENCE_S):
            await self._loop.sock_sendall(self.sock, data)

    async def receive_frame(self) -> bytes:
        """The next whole reply frame.

        Raises:
            Ended: there is none.
        """
        size = unpack(">i", await self._receive(4))[0]
        frame = await self._receive(4 + size)
        del self._received[: 4 + size]
        return frame

    async def receive_rest(self) -> bytes:
        """Everything until the gateway closes the connection."""
        try:
            while True:
                await self._receive(len(self._received) + 1)
        except Ended as ended:
            return ended.rest

    async def silent_for(self, seconds: float) -> bool:
        """Whether nothing arrives and nothing is closed during this time."""
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
        """Send FIN; replies can still come."""
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Send RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        self.sock.close()

    def close(self) -> None:
        """Close both directions."""
        self.sock.close()


async def until(fact: Callable[[], Any], *, seconds: float = PATIENCE_S) -> None:
    """Wait until something is true; fails when it is not in time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    looks = 0
    while not fact():
        # One turn of the loop may take all the time there is: who comes after it needs turns of its own.
        assert loop.time() < end or looks < 100, "waited in vain"
        looks += 1
        await asyncio.sleep(0.005)


async def settled(count: Callable[[], int]) -> int:
    """Wait until a number changes no more; the number."""
    seen = -1
    while seen != count():
        seen = count()
        await asyncio.sleep(0.05)
    return seen


async def refused(port: int) -> bool:
    """Whether no one listens on a port."""
    try:
        client = await RawClient.connect(port)
    except ConnectionRefusedError:
        return True
    client.close()
    return False
