import asyncio
import socket
import ssl
from typing import Any

import pytest

from gateway.net.lingering import Lingering
from gateway.net.stalled_write import unacknowledged_bytes
from gateway.tls.handshake_steps import HandshakeSteps
from gateway.tls.records import ReceiveBuffer
from gateway.tls.transport import TlsTransport
from testkit.broker import BrokerConnection, ScriptedBroker
from testkit.raw_client import HOST, RawClient, until
from testkit.tls import Pki

MIB = 1024 * 1024


async def accepted(server: ScriptedBroker) -> tuple[RawClient, BrokerConnection]:
    """A client that reads only when asked to, and the server's end of its connection."""
    count = len(server.connections)
    client = await RawClient.connect(server.port, receive_buffer_bytes=65_536)
    await until(lambda: len(server.connections) > count)
    return client, server.connections[-1]


async def test_transport_whose_peer_has_everything_is_closed_at_once() -> None:
    lingering = Lingering(asyncio.get_running_loop())
    async with ScriptedBroker() as server:
        client, connection = await accepted(server)
        async with client:
            connection.send(b"all of it")
            assert await client.silent_for(0.05) is False
            lingering.close(connection.transport)
            assert not lingering.unsent
            assert await client.receive_rest() == b"all of it"


async def test_unsent_bytes_can_leave_after_the_close_though_the_peer_goes_on_sending() -> None:
    lingering = Lingering(asyncio.get_running_loop())
    async with ScriptedBroker() as server:
        client, connection = await accepted(server)
        async with client:
            connection.send(bytes(6 * MIB))
            lingering.close(connection.transport)
            await client.send(bytes(6 * MIB))
            assert lingering.unsent
            assert len(await client.receive_rest()) == 6 * MIB
            client.close()
            await until(lambda: not lingering.unsent)
            lingering.abort()  # its time is over; nothing happens to a transport that is gone


class TlsOwner:
    """Leaves each connection to a user that does nothing."""

    def hello(self, transport: TlsTransport, _hello: bytes) -> None:
        transport.proceed()

    def secured(self, _transport: TlsTransport) -> Any:
        return asyncio.Protocol()


async def tls_pair(pki: Pki) -> tuple[TlsTransport, socket.socket, ssl.SSLSocket]:
    """The server's transport and its socket, and a client whose kernel takes a quarter of a MiB."""
    loop = asyncio.get_running_loop()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki.server.certificate, pki.server.key)
    steps = HandshakeSteps(loop, threaded=False)
    owner: Any = TlsOwner()
    transport = TlsTransport(context, owner, loop=loop, buffer=ReceiveBuffer(), steps=steps, timeout_ms=60_000)
    with socket.create_server((HOST, 0)) as listening:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 262_144)
        client.connect(listening.getsockname())
        accepted, _ = listening.accept()
    await loop.connect_accepted_socket(lambda: transport, accepted)
    secured = await asyncio.to_thread(pki.trusting().wrap_socket, client, server_hostname=HOST)
    return transport, accepted, secured


async def test_l02_client_with_tls_that_has_not_read_everything_may_go_on_sending(
    monkeypatch: pytest.MonkeyPatch, pki: Pki
) -> None:
    monkeypatch.setattr("gateway.net.lingering._FIN_S", 60.0)
    lingering = Lingering(asyncio.get_running_loop())
    transport, accepted, client = await tls_pair(pki)
    with client:
        transport.write(bytes(MIB))
        lingering.close(transport, accepted)
        received = 0
        while unacknowledged_bytes(transport):
            received += len(await asyncio.to_thread(client.recv, 16_384))
            await asyncio.sleep(0.01)  # for the acknowledgement
        assert received < MIB, "the rest is in the client's kernel"
        for _ in range(3):  # the first one would be answered with a reset, and the next would fail
            await asyncio.sleep(0.1)
            await asyncio.to_thread(client.sendall, b"the next request")
        while data := await asyncio.to_thread(client.recv, 16_384):
            received += len(data)
        assert received == MIB
    await until(lambda: not lingering.unsent)


async def test_peer_that_has_everything_and_sends_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.net.lingering._FIN_S", 0.1)
    lingering = Lingering(asyncio.get_running_loop())
    async with ScriptedBroker() as server:
        client, connection = await accepted(server)
        async with client:
            connection.transport.pause_reading()
            await client.send(b"more")
            await asyncio.sleep(0.05)
            lingering.close(connection.transport)
            assert lingering.unsent
            await until(lambda: not lingering.unsent)


@pytest.mark.parametrize("most", [256, None])
async def test_peer_that_takes_nothing_is_given_up_after_a_while(
    monkeypatch: pytest.MonkeyPatch, most: int | None
) -> None:
    monkeypatch.setattr("gateway.net.lingering.LINGER_S", 0.2)
    lingering = Lingering(asyncio.get_running_loop())
    lingering.most = most
    async with ScriptedBroker() as server:
        client, connection = await accepted(server)
        async with client:
            connection.send(bytes(32 * MIB))
            closed = asyncio.get_running_loop().time()
            lingering.close(connection.transport)
            await until(lambda: not lingering.unsent)
            assert asyncio.get_running_loop().time() - closed > 0.15
            assert connection.transport.is_closing()


async def test_all_can_be_given_up_at_once_and_the_oldest_makes_way() -> None:
    lingering = Lingering(asyncio.get_running_loop(), most=2)
    async with ScriptedBroker() as server:
        ends = [await accepted(server) for _ in range(3)]
        for _, connection in ends:
            connection.send(bytes(32 * MIB))
            lingering.close(connection.transport)
        assert [connection.transport.is_closing() for _, connection in ends] == [True, False, False]
        lingering.abort()
        assert not lingering.unsent
        for client, connection in ends:
            assert connection.transport.is_closing()
            client.close()
