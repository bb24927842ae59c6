"""The lower bound for Python: a relay on uvloop that copies bytes and does not even know where a frame begins.

`python -m benchmarks.relay.uvloop_relay LISTEN_PORT UPSTREAM_PORT`, both on loopback. It pauses reading when the
other side is full, as any relay must. It has no timers and no metrics.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop


class Side(asyncio.Protocol):
    """One of the two connections of a relayed client."""

    def __init__(self, upstream_port: int, other: Side | None = None) -> None:
        self.transport: asyncio.Transport | None = None
        self._other = other
        self._upstream_port = upstream_port
        self._early: list[bytes] = []
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=512 * 1024)
        if self._other is None:
            self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        _, self._other = await loop.create_connection(
            lambda: Side(self._upstream_port, self), "127.0.0.1", self._upstream_port
        )
        assert self._other.transport is not None
        self._other.transport.writelines(self._early)

    def data_received(self, data: bytes) -> None:
        if self._other is None or self._other.transport is None:
            self._early.append(data)
        else:
            self._other.transport.write(data)

    def pause_writing(self) -> None:
        if self._other is not None and self._other.transport is not None:
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None and self._other.transport is not None:
            self._other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._other is not None and self._other.transport is not None:
            self._other.transport.close()


async def serve(listen_port: int, upstream_port: int) -> None:
    """Relay until killed."""
    server = await asyncio.get_running_loop().create_server(
        lambda: Side(upstream_port), "127.0.0.1", listen_port
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
