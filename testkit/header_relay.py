"""A broker that requires PROXY headers: removes the header and relays the rest to a scripted broker."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Any, Final

from protocol.proxy_protocol import ProxyHeader, ProxyHeaderReader, ProxyProtocolError

HOST: Final = "127.0.0.1"


class HeaderRelay:
    """A relay to one port. It closes connections that do not begin with a header.

    Attributes:
        port: the port on which it listens.
        headers: the headers, in the order of accepted connections.
        refused: the number of connections without a header.
    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self.headers: list[ProxyHeader] = []
        self.refused = 0
        self._target = target
        self._server: asyncio.Server | None = None
        self._relays: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> HeaderRelay:
        self._server = await asyncio.start_server(self._accepted, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Closes everything; further calls do nothing."""
        assert self._server is not None
        self._server.close()
        for task in self._relays:
            task.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        # In Python 3.11 asyncio reports a cancelled task of a stream as an error.
        with contextlib.suppress(asyncio.CancelledError):
            await self._relay(reader, writer)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header = ProxyHeaderReader()
        try:
            while header.header is None:
                # Byte by byte, so that no byte after the header is read.
                header.feed(await reader.readexactly(1))
        except (ProxyProtocolError, asyncio.IncompleteReadError, ConnectionError):
            self.refused += 1
            writer.close()
            return
        self.headers.append(header.header)
        inner_reader, inner_writer = await asyncio.open_connection(HOST, self._target)
        with contextlib.suppress(ConnectionError):
            try:
                await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))
            finally:
                writer.close()
                inner_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
