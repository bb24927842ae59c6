"""Hazards H of an exchange, over real sockets; what each message means is tested with the handlers."""

import asyncio
import gc
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from struct import pack
from typing import Any, Final

import pytest

from gateway.observability.events import CloseCause
from testkit import wire
from testkit.broker import BrokerConnection, Request, Script, ScriptedBroker
from testkit.gateway import RunningGateway, running_gateway
from testkit.raw_client import RawClient, until
from testkit.sasl import PLAIN_ALICE, handshake, token, token_reply

SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
SASL: Final = {"security_protocol": "SASL_PLAINTEXT"}
DELAY_MS: Final = 100


def takes_plain(connection: BrokerConnection, request: Request) -> None:
    """A broker that has every mechanism."""
    connection.send(handshake("PLAIN", request.correlation_id)[1])


def refuses(*, closes: bool) -> Script:
    """A broker that accepts no one."""

    def script(connection: BrokerConnection, request: Request) -> None:
        connection.send(token_reply(request.correlation_id, error_code=58))
        if closes:
            connection.transport.close()

    return script


def accepts(connection: BrokerConnection, request: Request) -> None:
    """A broker that accepts everybody."""
    connection.send(token_reply(request.correlation_id))


@asynccontextmanager
async def sasl_gateway(authenticate: Script, **options: Any) -> AsyncIterator[tuple[ScriptedBroker, RunningGateway]]:
    """A gateway before a broker with SASL; it has no login of its own, so it asks nothing itself."""
    async with ScriptedBroker() as broker:
        broker.script(SASL_HANDSHAKE, takes_plain)
        broker.script(SASL_AUTHENTICATE, authenticate)
        async with running_gateway(broker.port, upstream=SASL, listener=SASL, **options) as running:
            yield broker, running


async def log_in(client: RawClient) -> bytes:
    """Send a whole PLAIN exchange; returns the last reply."""
    await client.send(handshake("PLAIN", 1)[0])
    await client.receive_frame()
    await client.send(token(PLAIN_ALICE, 2))
    return await client.receive_frame()


@pytest.mark.parametrize("closes", [False, True])
async def test_h02_refusal_reaches_the_client_after_the_delay_though_the_broker_closes_at_once(closes: bool) -> None:
    async with sasl_gateway(refuses(closes=closes)) as (_, running), await running.connect() as client:
        start = time.monotonic()
        assert await log_in(client) == token_reply(2, error_code=58)
        assert await client.receive_rest() == b""
        assert (time.monotonic() - start) * 1000 >= DELAY_MS
        await running.ended_by(CloseCause.AUTHENTICATION_FAILED)


async def test_h10_other_requests_before_authentication_make_no_connection_to_a_broker() -> None:
    async with sasl_gateway(accepts) as (broker, running):
        for frame in (
            wire.request("Metadata", 4, topics=[], allow_auto_topic_creation=True),
            pack(">i", 100_000_000) + wire.request("Produce", 9, acks=1, timeout_ms=1, topic_data=[])[4:],
        ):
            async with await running.connect() as client:
                await client.send(frame)
                assert await client.receive_rest() == b""
        await running.ended_by(CloseCause.UNAUTHENTICATED, 2)
        assert broker.connections == []


@pytest.mark.slow
async def test_h16_storm_of_failures_keeps_nothing_behind_and_nobody_from_logging_in() -> None:
    """Each failure waits for the delay and is forgotten; a client with the right password is served meanwhile."""

    def honest(connection: BrokerConnection, request: Request) -> None:
        right = PLAIN_ALICE in request.frame
        connection.send(token_reply(request.correlation_id, error_code=0 if right else 58))

    async def fails(running: RunningGateway) -> float:
        async with await running.connect() as client:
            await client.send(handshake("PLAIN", 1)[0])
            await client.receive_frame()
            start = time.monotonic()
            await client.send(token(b"\0alice\0" + b"x" * 20_000, 2))
            await client.receive_frame()
            assert await client.receive_rest() == b""
            return (time.monotonic() - start) * 1000

    async def wave(running: RunningGateway, count: int) -> list[float]:
        waits = await asyncio.gather(*(fails(running) for _ in range(count)))
        await until(lambda: not running.channels)
        return waits

    async with sasl_gateway(honest) as (broker, running):
        await wave(running, 50)
        tracemalloc.start()
        try:
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(4):
                storm = asyncio.create_task(wave(running, 50))
                async with await running.connect() as client:
                    assert await log_in(client) == token_reply(2)
                assert min(await storm) >= DELAY_MS
                broker.connections.clear()
            await until(lambda: not running.channels)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert running.closed(CloseCause.AUTHENTICATION_FAILED) == 250
        # 200 tokens of 20 kB have gone by.
        assert after - before < 1_000_000


async def test_h02_refusal_reaches_the_client_though_the_gateway_drains_during_its_delay() -> None:
    async with sasl_gateway(refuses(closes=False)) as (_, running), await running.connect() as client:
        await client.send(handshake("PLAIN", 1)[0])
        await client.receive_frame()
        await client.send(token(PLAIN_ALICE, 2))
        await until(lambda: running.channels[0].session.closing_later)
        running.listener.drain()
        assert wire.correlation_id_of(await client.receive_frame()) == 2
        assert await client.receive_rest() == b""
        await running.ended_by(CloseCause.AUTHENTICATION_FAILED)


async def test_h16_client_that_leaves_during_the_delay_is_gone_with_it() -> None:
    async with sasl_gateway(refuses(closes=True)) as (_, running):
        async with await running.connect() as client:
            await client.send(handshake("PLAIN", 1)[0])
            await client.receive_frame()
            await client.send(token(PLAIN_ALICE, 2))
        await until(lambda: not running.channels)


async def test_authenticated_client_is_served_and_named() -> None:
    async with sasl_gateway(accepts) as (_, running), await running.connect() as client:
        assert await log_in(client) == token_reply(2)
        (channel,) = running.channels
        assert channel.session.user == "alice"
        fetch = wire.request("Fetch", 4, correlation_id=3, topics=[])
        await client.send(fetch)
        assert wire.correlation_id_of(await client.receive_frame()) == 3
