import asyncio

import pytest

from gateway.net.lingering import Lingering
from testkit.broker import BrokerConnection, ScriptedBroker
from testkit.raw_client import RawClient, until

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
