"""A broker that insists on PROXY headers: the header is taken off, the rest is relayed to a scripted broker."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Any, Final

from protocol.proxy_protocol import ProxyHeader, ProxyHeaderReader, ProxyProtocolError

HOST: Final = "127.0.0.1"


class HeaderRelay:
    """A relay to one port; a connection that does not begin with a header is closed.

    Attributes:
        port: where it listens.
        headers: as read, in the order of accept.
        refused: connections that began otherwise.
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
        """Close everything; once more does nothing."""
        assert self._server is not None
        self._server.close()
        for task in self._relays:
            task.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        # A stream's task that ends as cancelled is an error to asyncio of Python 3.11.
        with contextlib.suppress(asyncio.CancelledError):
            await self._relay(reader, writer)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header = ProxyHeaderReader()
        try:
            while header.header is None:
                # Byte by byte, so that nothing behind it is taken.
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
