"""Many clients at once, each with its own address if needed."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from testkit import wire
from testkit.frames import fetch
from testkit.raw_client import HOST, Ended, RawClient

_crowd: list[RawClient] = []


def leave_all() -> None:
    """Closes the clients of `connect`; called at the end of each test."""
    while _crowd:
        _crowd.pop().close()


async def connect(port: int, source: str = HOST) -> RawClient:
    """A client with this address. It is closed at the end of the test at the latest."""
    sock = socket.socket()
    client = RawClient(sock)
    _crowd.append(client)
    sock.setblocking(False)
    sock.bind((source, 0))
    # A reset may arrive before this line; the connection was made nevertheless.
    with suppress(ConnectionResetError):
        async with asyncio.timeout(60):
            await asyncio.get_running_loop().sock_connect(sock, (HOST, port))
    return client


async def connect_all(port: int, count: int, source: str = HOST) -> list[RawClient]:
    """Connects several clients at the same time."""
    return list(await asyncio.gather(*(connect(port, source) for _ in range(count))))


async def is_served(client: RawClient) -> bool:
    """Whether a request of the client is answered."""
    try:
        await client.send(fetch(3))
        return wire.correlation_id_of(await client.receive_frame()) == 3
    except (Ended, OSError):
        return False
