"""Hazards of load balancers that say who the client is (H24 to H27), on a whole gateway."""

import asyncio
import random
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.observability.events import CloseCause
from testkit.broker import FETCH, ScriptedBroker, silence
from testkit.frames import fetch
from testkit.gateway import RunningGateway, broker_and_gateway
from testkit.packages import require_package
from testkit.raw_client import HOST, Ended, RawClient, until

HEADER: Final = b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 9092\r\n"


def header(ip: str, port: int = 40_000) -> bytes:
    return f"PROXY TCP4 {ip} 198.51.100.1 {port} 9092\r\n".encode()


def v2(ip: str) -> bytes:
    addresses = socket.inet_aton(ip) + socket.inet_aton("198.51.100.1") + b"\x9c\x40\x23\x84"
    return b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + addresses


def make_certificate(folder: Path) -> dict[str, str]:
    """[listeners.tls] with a certificate made for this test."""
    openssl = require_package("openssl")
    command = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 1 -subj /CN=localhost"
    subprocess.run([openssl, *command.split()], cwd=folder, check=True, capture_output=True, timeout=30)
    return {"certificate": str(folder / "cert.pem"), "key": str(folder / "key.pem")}


@asynccontextmanager
async def behind_balancer(
    listener: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[ScriptedBroker, RunningGateway]]:
    """A gateway that trusts this machine's 127.0.0.1 alone."""
    proxy = {"proxy_protocol": {"trusted": [HOST], "timeout_ms": 400, **options.pop("proxy", {})}}
    async with broker_and_gateway(listener={**proxy, **(listener or {})}, **options) as both:
        yield both


@pytest.mark.parametrize("first", [HEADER, v2("192.0.2.7")], ids=["v1", "v2"])
@pytest.mark.parametrize("together", [True, False])
async def test_h25_first_request_is_answered_whether_it_comes_with_the_header_or_later(
    first: bytes, together: bool
) -> None:
    async with behind_balancer() as (_, running), await RawClient.connect(running.port) as client:
        if together:
            await client.send(first + fetch(7))
        else:
            await client.send(first)
            await until(lambda: running.opened == 1)
            await client.send(fetch(7))
        assert (await client.receive_frame())[4:8] == b"\x00\x00\x00\x07"
        assert running.channels[0].session.peer == "192.0.2.7:40000"
        assert running.channels[0].ip == "192.0.2.7"


@pytest.mark.parametrize("second", [HEADER, v2("192.0.2.8")], ids=["v1", "v2"])
async def test_h25_second_header_is_no_kafka(second: bytes) -> None:
    async with behind_balancer() as (broker, running), await RawClient.connect(running.port) as client:
        await client.send(HEADER + second + fetch())
        assert await client.receive_rest() == b""
        await running.ended_by(CloseCause.NOT_KAFKA)
        assert broker.client_connections == []


@pytest.mark.parametrize("first", [HEADER, v2("192.0.2.7")], ids=["v1", "v2"])
async def test_h25_header_comes_before_tls(first: bytes, tmp_path: Path) -> None:
    tls = make_certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=tls["certificate"])
    async with behind_balancer({"security_protocol": "SSL", "tls": tls}) as (_, running):
        loop = asyncio.get_running_loop()
        plain = await RawClient.connect(running.port)
        await plain.send(first)
        reader = asyncio.StreamReader()
        transport, _ = await loop.create_connection(
            lambda: asyncio.StreamReaderProtocol(reader), sock=plain.sock, ssl=trusting, server_hostname="localhost"
        )
        transport.write(fetch(7))
        reply = await asyncio.wait_for(reader.readexactly(8), 60)
        assert reply[4:] == b"\x00\x00\x00\x07"
        assert running.channels[0].session.peer == "192.0.2.7:40000"
        transport.abort()
        await until(lambda: not running.channels)


async def test_h26_header_on_a_listener_without_balancer_changes_nothing() -> None:
    async with broker_and_gateway() as (broker, running), await RawClient.connect(running.port) as client:
        await client.send(HEADER + fetch())
        assert await client.receive_rest() == b""
        await running.ended_by(CloseCause.NOT_KAFKA)
        assert broker.client_connections == []


async def test_h27_clients_that_share_an_address_and_a_port_keep_their_own_replies() -> None:
    async with behind_balancer() as (broker, running):
        broker.script(FETCH, silence)
        clients = [await RawClient.connect(running.port) for _ in range(8)]
        for number, client in enumerate(clients):
            await client.send(HEADER + fetch(number, client_id=f"client-{number}"))
        await until(lambda: sum(len(each.waiting) for each in broker.connections) == 8)
        for connection in reversed(broker.client_connections):
            connection.send(broker.reply_to(connection.waiting[0]))
        for number, client in enumerate(clients):
            frame = await client.receive_frame()
            assert frame[4:8] == number.to_bytes(4)
            assert f"client-{number}".encode() in frame
            client.close()
        await until(lambda: not running.channels)
    assert running.closed(CloseCause.CLIENT_CLOSED) == 8


@pytest.mark.slow
async def test_h27_replies_never_reach_the_next_owner_of_the_descriptor() -> None:
    """Connections end at every stage while others take over their file descriptors."""
    dice = random.Random(27)
    async with behind_balancer() as (broker, running):
        answered = 0

        async def one(number: int) -> None:
            nonlocal answered
            name = f"client-{number}-"
            client = await RawClient.connect(running.port)
            stream = header(f"192.0.2.{number % 200}", number) + fetch(number, client_id=name)
            cut = dice.choice([0, 5, len(stream) - 3, len(stream), len(stream), len(stream)])
            await client.send(stream[:cut])
            if cut < len(stream) or dice.random() < 0.3:
                await asyncio.sleep(dice.random() * 0.005)
                client.reset()
                return
            try:
                frame = await client.receive_frame()
            except Ended:
                frame = b""
            client.close()
            assert frame[4:8] == number.to_bytes(4)
            assert frame.count(b"client-") == 1
            assert name.encode() in frame
            answered += 1

        for start in range(0, 600, 40):
            await asyncio.gather(*(one(number) for number in range(start, start + 40)))
        assert answered > 100
        await until(lambda: not running.channels and running.listener.awaiting_header == 0)
        assert len(broker.connections) >= answered
