"""A tap on the client side of the gateway: relays every byte and searches for forbidden ones (hazard E01).

Brokers of the tests listen on a loopback address of their own. So a leaked broker address is found by searching for
this text in all bytes that travel to clients, in any message. The tap listens on the advertised address, and the
gateway behind it on another one. A client that learned the gateway's or a broker's own address would bypass the tap,
so the gateway's address is searched as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import uvloop

Look: TypeAlias = Callable[[bytes], None]
"""Called with the next bytes of one stream."""

_CONTEXT_BYTES: Final = 60
_READ_BYTES: Final = 256 * 1024


@dataclass(slots=True)
class Scanner:
    """Finds texts in one stream, even if they are split between pieces.

    Attributes:
        hits: the texts that were found, with some bytes around them.
    """

    needles: Sequence[bytes]
    hits: list[bytes]
    _tail: bytes = field(default=b"")

    def feed(self, data: bytes) -> None:
        """Searches the next piece."""
        window = self._tail + data
        for needle in self.needles:
            at = window.find(needle)
            while at >= 0:
                # A hit that is only in the tail was reported with the previous piece.
                if at + len(needle) > len(self._tail):
                    self.hits.append(window[max(0, at - _CONTEXT_BYTES) : at + _CONTEXT_BYTES])
                at = window.find(needle, at + 1)
        keep = max(len(needle) for needle in self.needles) - 1
        self._tail = window[-keep:] if keep else b""


class Tap:
    """Relays between clients and a gateway on any number of ports; runs on a thread of its own.

    Attributes:
        hits: forbidden texts on their way to clients.
        bytes_to_clients: the number of bytes that were searched.
        delay_s: delay of each relayed piece.
    """

    def __init__(self, host: str, forbidden: Sequence[str]) -> None:
        """Makes a tap without ports.

        Args:
            host: the address that clients connect to.
            forbidden: texts that no client may receive.
        """
        self.host = host
        self.hits: list[bytes] = []
        self.bytes_to_clients = 0
        self.delay_s = 0.0
        self._needles = [text.encode() for text in forbidden]
        # asyncio's own loop takes more CPU, from the test's thread; its debug mode four times as much.
        self._loop = uvloop.new_event_loop()
        self._loop.set_debug(False)
        self._servers: dict[int, asyncio.Server] = {}
        self._relays: dict[asyncio.Task[Any], int] = {}  # relays, with the port of each
        self._thread = threading.Thread(target=self._loop.run_forever, name="tap", daemon=True)
        self._thread.start()

    def relay(self, port: int, target: tuple[str, int]) -> None:
        """Accepts clients on a further port and connects each to `target`."""

        async def serve() -> None:
            async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = asyncio.current_task()
                assert task is not None
                self._relays[task] = port
                try:
                    await self._relay(reader, writer, port, target)
                finally:
                    self._relays.pop(task, None)

            self._servers[port] = await asyncio.start_server(
                accepted, self.host, port, limit=_READ_BYTES, backlog=512
            )

        self._call(serve())

    def stop_relaying(self, ports: Sequence[int]) -> None:
        """Closes these ports. Existing connections continue."""

        async def stop() -> None:
            for port in ports:
                self._servers.pop(port).close()

        self._call(stop())

    def hang_up(self, ports: Sequence[int]) -> None:
        """Ends the connections to these ports."""

        async def end() -> None:
            for task, port in self._relays.items():
                if port in ports:
                    task.cancel()

        self._call(end())

    def close(self) -> None:
        """Closes all ports and connections, and ends the thread."""

        async def stop() -> None:
            for server in self._servers.values():
                server.close()
            for task in list(self._relays):
                task.cancel()
            await asyncio.gather(*self._relays, return_exceptions=True)

        self._call(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def looks(self, port: int) -> tuple[Look | None, Look | None]:
        """The functions called with the bytes of a new connection, from and to the client; None: no function."""
        return None, Scanner(self._needles, self.hits).feed

    def _call(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _relay(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        port: int,
        target: tuple[str, int],
    ) -> None:
        try:
            gateway, to_gateway = await asyncio.open_connection(*target, limit=_READ_BYTES)
        except OSError:
            to_client.transport.abort()
            return
        except asyncio.CancelledError:
            # Hung up meanwhile. If the client's connection stayed open, the client would wait for a response.
            to_client.transport.abort()
            raise
        from_client, from_gateway = self.looks(port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._copy(client, to_gateway, from_client))
                both.create_task(self._copy(gateway, to_client, from_gateway, counted=True))
        except* OSError:
            # A reset of one side is passed on as a reset of the other.
            to_client.transport.abort()
            to_gateway.transport.abort()
        finally:
            to_client.close()
            to_gateway.close()
            for writer in (to_client, to_gateway):
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _copy(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        look: Look | None,
        *,
        counted: bool = False,
    ) -> None:
        while data := await source.read(_READ_BYTES):
            if counted:
                self.bytes_to_clients += len(data)
            if look is not None:
                look(data)
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            sink.write(data)
            await sink.drain()
        sink.write_eof()
