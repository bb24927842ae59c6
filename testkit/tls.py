"""TLS for tests: certificates of both sides, TLS clients, and a gateway with a TLS listener."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from struct import pack, unpack
from typing import Any, Self

from gateway.observability.events import TlsFailure
from testkit.broker import ScriptedBroker
from testkit.certificates import SERVER, Authority, KeyPair
from testkit.gateway import LISTENER, RunningGateway, running_gateway
from testkit.raw_client import HOST, PATIENCE_S, Ended, RawClient


class Pki:
    """An authority that both sides trust, and the server's certificate.

    Attributes:
        authority: signs further certificates.
        server: valid for 127.0.0.1 and localhost.
    """

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.server = self.authority.issue("server", "server", hosts=(HOST, "localhost"), usage=SERVER)

    def keys(self, **more: Any) -> dict[str, Any]:
        """Keys of a listener with TLS; `more` goes into [listeners.tls]."""
        return {
            "security_protocol": "SSL",
            "tls": {"certificate": str(self.server.certificate), "key": str(self.server.key), **more},
        }

    def mutual(self, client_auth: str = "required", **more: Any) -> dict[str, Any]:
        """Keys of a listener that requests client certificates."""
        return self.keys(client_auth=client_auth, client_ca=str(self.authority.certificate), **more)

    def trusting(self, own: KeyPair | None = None) -> ssl.SSLContext:
        """The context of a client that trusts the authority, with a certificate of its own if one is given."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        if own is not None:
            context.load_cert_chain(own.certificate, own.key)
        return context


class TlsClient:
    """One connection of a client that follows the protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, context: ssl.SSLContext, *, server_hostname: str = HOST) -> TlsClient:
        """Connects and completes the TLS handshake."""
        streams = asyncio.open_connection(HOST, port, ssl=context, server_hostname=server_hostname)
        async with asyncio.timeout(PATIENCE_S):
            return cls(*await streams)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    @property
    def tls(self) -> ssl.SSLObject:
        """The TLS object of the connection after the handshake."""
        found: ssl.SSLObject = self.writer.get_extra_info("ssl_object")
        return found

    def send(self, data: bytes) -> None:
        """Sends without waiting."""
        self.writer.write(data)

    async def receive_frame(self) -> bytes:
        """The next whole reply frame.

        Raises:
            Ended: the connection was closed.
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                head = await self.reader.readexactly(4)
                return head + await self.reader.readexactly(unpack(">i", head)[0])
        except (asyncio.IncompleteReadError, OSError) as exc:
            raise Ended(b"") from exc

    async def close(self) -> None:
        """Closes without waiting for the other side's close_notify."""
        self.writer.transport.abort()
        with suppress(OSError):
            await self.writer.wait_closed()


@asynccontextmanager
async def tls_gateway(
    keys: dict[str, Any], **options: Any
) -> AsyncIterator[tuple[ScriptedBroker, RunningGateway]]:
    """A scripted broker, and a gateway with one listener in front of it.

    Args:
        keys: of the listener.
        options: see `gateway_config`.
    """
    async with (
        ScriptedBroker() as broker,
        running_gateway(broker.port, listener=keys, **options) as running,
    ):
        await running.discovered()
        yield broker, running


def failures(running: RunningGateway, failure: TlsFailure) -> int:
    """The number of handshakes that have failed for this reason."""
    return _value(running, "gateway_tls_handshake_failures_total", listener=LISTENER, reason=failure.value)


def handshakes(running: RunningGateway, version: str) -> int:
    """The number of handshakes that have succeeded with this version."""
    return _value(running, "gateway_tls_handshakes_total", listener=LISTENER, version=version)


def upstream_failures(running: RunningGateway, failure: TlsFailure) -> int:
    """The number of handshakes with brokers that have failed for this reason."""
    return _value(running, "gateway_upstream_tls_failures_total", upstream="upstream", reason=failure.value)


def _value(running: RunningGateway, name: str, **labels: str) -> int:
    return int(running.gateway.registry.get_sample_value(name, labels) or 0)


class RawTlsClient:
    """TLS by hand on a raw client, which can end one direction, or stop at any point."""

    def __init__(self, raw: RawClient, context: ssl.SSLContext) -> None:
        self.raw = raw
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._in, self._out, server_hostname=HOST)

    @classmethod
    async def connect(cls, running: RunningGateway, context: ssl.SSLContext, **options: Any) -> RawTlsClient:
        """Connects and completes the TLS handshake."""
        client = cls(await running.connect(**options), context)
        await client._until_done(client.tls.do_handshake)
        return client

    async def _until_done(self, step: Callable[[], Any]) -> Any:
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                await self._flush()
                await asyncio.sleep(0)  # as in `RawClient.send`
                async with asyncio.timeout(PATIENCE_S):
                    received = await asyncio.get_running_loop().sock_recv(self.raw.sock, 1 << 16)
                if not received:
                    raise Ended(b"") from None
                self._in.write(received)
            else:
                await self._flush()
                return result

    async def _flush(self) -> None:
        if self._out.pending:
            await self.raw.send(self._out.read())

    async def send(self, data: bytes) -> None:
        """Sends all bytes."""
        self.tls.write(data)
        await self._flush()

    async def receive(self, count: int) -> bytes:
        """Receives `count` bytes; fewer if the gateway sends close_notify before."""
        received = bytearray()
        while len(received) < count:
            try:
                data = await self._until_done(partial(self.tls.read, count - len(received)))
            except ssl.SSLZeroReturnError:
                break  # this side has sent close_notify too, so the result is b""
            if not data:
                break
            received += data
        return bytes(received)

    async def say_goodbye(self) -> None:
        """Ends this side's direction with close_notify; the connection stays open."""
        try:
            self.tls.unwrap()
        except ssl.SSLWantReadError:
            await self._flush()


def server_name_extension(name: bytes) -> bytes:
    """The server_name extension of a ClientHello."""
    entry = b"\0" + pack(">H", len(name)) + name
    listed = pack(">H", len(entry)) + entry
    return b"\0\0" + pack(">H", len(listed)) + listed


def raw_hello(extensions: bytes | None) -> bytes:
    """A ClientHello in one record that no library writes; None: without the field for extensions."""
    body = b"\x03\x03" + bytes(32) + b"\0" + pack(">H", 2) + b"\x13\x01" + b"\x01\0"
    if extensions is not None:
        body += pack(">H", len(extensions)) + extensions
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + pack(">H", len(message)) + message
