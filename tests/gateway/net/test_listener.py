import asyncio
import socket
from typing import Any

import pytest

from gateway.net.accepted_socket import AcceptedSocket
from gateway.net.listening import PlainSocket
from gateway.observability.events import CloseCause
from gateway.upstream.topology import Found
from testkit import wire
from testkit.frames import fetch
from testkit.gateway import LISTENER, RunningGateway, broker_and_gateway, free_ports
from testkit.raw_client import HOST, RawClient, refused, until


def connect_now(port: int) -> socket.socket:
    """A connection that the kernel has accepted and the gateway has not seen."""
    return socket.create_connection((HOST, port), timeout=60)


def accept(running: RunningGateway, listening: object) -> None:
    """One turn of the listener on a listening socket."""
    running.listener._acceptor._accept(listening, None)  # type: ignore[arg-type]


async def test_ipv6_clients_are_let_in() -> None:
    async with broker_and_gateway() as (_, running):
        try:
            running.listener.listen(("::1", free_ports(1)), 3)
        except OSError:
            pytest.skip("this machine has no IPv6")
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET6) as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, ("::1", running.listener.ports[3]))
            await until(lambda: running.channels)
            assert running.channels[0].session.peer.startswith("::1")


async def test_a_process_that_was_replaced_binds_no_port_of_a_broker_that_joins() -> None:
    async with broker_and_gateway() as (_, running), await running.connect() as client:
        running.gateway._listeners.close_ports()
        found = Found(None, {2: ("127.0.0.1", 9_092)})
        # Its clients hear of the port, which the process that replaced it binds.
        assert running.gateway._listeners.open_port(LISTENER, 2, found)
        with socket.create_server((HOST, running.broker_port(2))):
            await client.send(fetch(1))
            await client.receive_frame()


async def test_closed_port_refuses_new_connections_and_keeps_open_ones() -> None:
    async with broker_and_gateway() as (_, running), await running.connect() as client:
        port = running.port
        await client.send(fetch(1))
        await client.receive_frame()
        running.listener.stop_listening(None)
        assert await refused(port)
        await client.send(fetch(2))
        assert wire.correlation_id_of(await client.receive_frame()) == 2


async def test_b20_port_scan_makes_no_upstream_connection_and_is_counted_out() -> None:
    async with broker_and_gateway() as (broker, running):
        for _ in range(200):
            connect_now(running.port).close()
            await asyncio.sleep(0)
        await running.ended_by(CloseCause.CLIENT_CLOSED, 200)
        assert broker.client_connections == []
        assert running.channels == []


class BrokenLoop:
    """A loop that makes no transports."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def connect_accepted_socket(self, *_of: object) -> None:
        raise RuntimeError("bug")


async def test_connection_that_gets_no_transport_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_and_gateway() as (_, running):
        with connect_now(running.port) as late, monkeypatch.context() as patched:
            patched.setattr(running.listener, "loop", BrokenLoop(running.listener.loop))
            with pytest.raises(RuntimeError, match="bug"):
                accept(running, running.listener._acceptor._sockets[None])
            assert late.recv(1) == b""
        assert running.channels == []
        await running.ended_by(CloseCause.CLIENT_CLOSED)


async def test_connection_that_arrives_while_the_listener_begins_to_drain_is_closed() -> None:
    async with broker_and_gateway() as (_, running):
        late = connect_now(running.port)
        accept(running, running.listener._acceptor._sockets[None])
        running.listener.drain()
        late.setblocking(False)
        async with RawClient(late) as client:
            assert await client.receive_rest() == b""
        await running.ended_by(CloseCause.DRAINED)


async def test_connection_that_is_handed_over_to_a_listener_that_drains_is_closed() -> None:
    async with broker_and_gateway() as (_, running):
        client, accepted = socket.socketpair()
        client.setblocking(False)
        running.gateway.connections.admit(LISTENER, HOST, now_ms=running.listener.now_ms())
        running.listener.drain()
        running.listener.adopt(AcceptedSocket(PlainSocket(fileno=accepted.detach()), HOST, 1, None))
        async with RawClient(client) as late:
            assert await late.receive_rest() == b""
        assert running.channels == []
        await running.ended_by(CloseCause.DRAINED)
