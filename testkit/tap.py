"""A tap on the client side of the gateway: relays every byte and searches for forbidden ones (hazard E01).

Brokers of the tests live on a loopback address that nothing else has, so a leaked broker address is found by looking
for that text in everything that travels to clients, whatever message it is in. The tap sits on the advertised
address, the gateway behind it on another one; a client that learns the gateway's or a broker's own address would go
around the tap, which is why the gateway's address is looked for as well.
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
"""Is shown the next bytes of one stream."""

_CONTEXT_BYTES: Final = 60
_READ_BYTES: Final = 256 * 1024


@dataclass(slots=True)
class Scanner:
    """Finds texts in one stream, however it is cut into pieces.

    Attributes:
        hits: what was found, with some bytes around it.
    """

    needles: Sequence[bytes]
    hits: list[bytes]
    _tail: bytes = field(default=b"")

    def feed(self, data: bytes) -> None:
        """Look at the next piece."""
        window = self._tail + data
        for needle in self.needles:
            at = window.find(needle)
            while at >= 0:
                # A hit that lies in the tail alone has been reported with the piece before.
                if at + len(needle) > len(self._tail):
                    self.hits.append(window[max(0, at - _CONTEXT_BYTES) : at + _CONTEXT_BYTES])
                at = window.find(needle, at + 1)
        keep = max(len(needle) for needle in self.needles) - 1
        self._tail = window[-keep:] if keep else b""


class Tap:
    """Relays between clients and a gateway on any number of ports; runs on a thread of its own.

    Attributes:
        hits: forbidden texts seen on their way to clients.
        bytes_to_clients: how much was looked at.
        delay_s: of each piece that is relayed.
    """

    def __init__(self, host: str, forbidden: Sequence[str]) -> None:
        """Make it; nothing is bound yet.

        Args:
            host: where clients connect to.
            forbidden: texts that no client may receive.
        """
        self.host = host
        self.hits: list[bytes] = []
        self.bytes_to_clients = 0
        self.delay_s = 0.0
        self._needles = [text.encode() for text in forbidden]
        # asyncio's own loop, debugged as the suite is, takes four times the CPU, all of it from the test's thread.
        self._loop = uvloop.new_event_loop()
        self._loop.set_debug(False)
        self._servers: dict[int, asyncio.Server] = {}
        self._relays: dict[asyncio.Task[Any], int] = {}  # with the port that each came in by
        self._thread = threading.Thread(target=self._loop.run_forever, name="tap", daemon=True)
        self._thread.start()

    def relay(self, port: int, target: tuple[str, int]) -> None:
        """Accept clients on one more port and connect each to `target`."""

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
        """Close these ports; connections that came in by them stay."""

        async def stop() -> None:
            for port in ports:
                self._servers.pop(port).close()

        self._call(stop())

    def hang_up(self, ports: Sequence[int]) -> None:
        """End the connections that came in by these ports."""

        async def end() -> None:
            for task, port in self._relays.items():
                if port in ports:
                    task.cancel()

        self._call(end())

    def close(self) -> None:
        """Close all ports and connections, end the thread."""

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
        """What is shown the bytes of a new connection to a port: from the client, and to it; None: nothing is."""
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
            # Hung up meanwhile: a client whose connection stays open would wait for its answer.
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
