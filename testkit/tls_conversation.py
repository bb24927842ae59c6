"""TLS without sockets: a server's `TlsTransport` between fake socket and channel, with a client in memory."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, cast

import pytest

from gateway.observability.events import TlsFailure
from gateway.tls.handshake_steps import HandshakeSteps
from gateway.tls.records import ReceiveBuffer
from gateway.tls.transport import HandshakeRefused, StreamProtocol, TlsTransport
from testkit.clock import FakeClock
from testkit.fake_loop import FakeLoop
from testkit.tls import Pki


class Socket:
    """The transport of the socket, below TLS."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.reading = True
        self.ended = ""
        self.half_closed = False
        self.unsent = 0
        self.limits: Any = None

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def write_eof(self) -> None:
        self.half_closed = True

    def is_closing(self) -> bool:
        return bool(self.ended)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("192.0.2.1", 5)}.get(name, default)


class Loop(FakeLoop):
    """A fake loop that records calls for the next iteration."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.soon: list[Any] = []

    def call_soon(self, call: Any) -> None:
        self.soon.append(call)

    def turn_once(self) -> None:
        soon, self.soon = self.soon, []
        for call in soon:
            call()


class User(asyncio.Protocol):
    """The channel, above TLS."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.received = bytearray()
        self.chunks: list[bytes] = []
        self.said: list[str] = []
        self.keeps_open = True

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.chunks.append(data)

    def eof_received(self) -> bool:
        self.said.append("eof")
        return self.keeps_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.said.append("lost")

    def pause_writing(self) -> None:
        self.said.append("full")

    def resume_writing(self) -> None:
        self.said.append("writable")


class TlsServer:
    """A server's TLS with a client in memory.

    Attributes:
        transport: the transport under test.
        socket, user: the layers below and above it.
        failures: failures that its owner was notified of.
        hellos: the number of ClientHellos that its owner was notified of.
        other_user: gets the connection instead of `user`.
        waits, refuses: the owner's decision: the handshake must wait; the connection is refused.
        loop, steps: those of another server that runs beside this one, if there is one.
    """

    def __init__(
        self,
        pki: Pki,
        *,
        user: StreamProtocol | None = None,
        waits: bool = False,
        refuses: bool = False,
        trust: bool = True,
        beside: TlsServer | None = None,
        newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    ) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki.server.certificate, pki.server.key)
        self.loop: Loop = Loop() if beside is None else beside.loop
        self.socket, self.user = Socket(), User()
        self.other_user = user
        self.failures: list[TlsFailure] = []
        self.hellos = 0
        self.waits, self.refuses = waits, refuses
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.steps: HandshakeSteps = HandshakeSteps(loop, threaded=False) if beside is None else beside.steps
        self.transport = TlsTransport(
            context,
            self,
            loop=loop,
            buffer=ReceiveBuffer(),
            steps=self.steps,
            timeout_ms=10_000,
        )
        self.transport.connection_made(cast(asyncio.Transport, self.socket))
        client = pki.trusting() if trust else ssl.create_default_context()
        client.maximum_version = newest
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client.wrap_bio(self._in, self._out, server_hostname="localhost")

    def hello(self, transport: TlsTransport, hello: bytes) -> None:
        self.hellos += 1
        if not self.waits:
            transport.proceed()

    def secured(self, transport: TlsTransport) -> StreamProtocol:
        if self.refuses:
            raise HandshakeRefused(TlsFailure.NO_PRINCIPAL, "nobody")
        return self.other_user or self.user

    def failed(self, transport: TlsTransport, failure: TlsFailure, detail: str) -> None:
        self.failures.append(failure)

    def broken(self, transport: TlsTransport, failure: TlsFailure, detail: str) -> None:
        self.failures.append(failure)

    def deliver(self, data: bytes, *, pieces: int = 0, turns: bool = True) -> None:
        """Delivers bytes from the network, each piece in an iteration of the loop of its own."""
        at = 0
        while at < len(data):
            view = self.transport.get_buffer(-1)
            count = min(len(view), len(data) - at, pieces or len(data))
            view[:count] = data[at : at + count]
            self.transport.buffer_updated(count)
            if turns:
                self.loop.turn_once()
            at += count

    def arrive(self, *, said: bytes = b"") -> None:
        """Delivers the client's bytes in the present iteration, after the bytes `said` by the server."""
        self._in.write(said)
        self.deliver(self._out.read(), turns=False)

    def client_sent(self) -> bytes:
        """The bytes that the client has for the server."""
        return self._out.read()

    def shake_hands(self, *, pieces: int = 0) -> TlsServer:
        for _ in range(4):
            try:
                self.client.do_handshake()
            except ssl.SSLWantReadError:
                pass
            else:
                break
            finally:
                self.exchange(pieces=pieces)
        return self

    def exchange(self, *, pieces: int = 0) -> None:
        """Delivers the bytes of each side to the other."""
        self.deliver(self._out.read(), pieces=pieces)
        self._in.write(bytes(self.socket.sent))
        self.socket.sent.clear()

    def encrypted(self, data: bytes) -> bytes:
        """The bytes that the client would send for this data."""
        self.client.write(data)
        return self._out.read()

    def client_sends(self, data: bytes, *, pieces: int = 0) -> None:
        if data:
            self.client.write(data)
        self.deliver(self._out.read(), pieces=pieces)

    def client_sees(self) -> bytes:
        """The decrypted bytes that were sent to the client, up to close_notify."""
        self._in.write(bytes(self.socket.sent))
        self.socket.sent.clear()
        seen = bytearray()
        try:
            while data := self.client.read(1 << 16):
                seen += data
        except ssl.SSLWantReadError:
            pass
        return bytes(seen)

    def client_says_goodbye(self) -> None:
        with pytest.raises(ssl.SSLWantReadError):
            self.client.unwrap()
        self.deliver(self._out.read())
