"""Clients that use up what all share: counters (K08), handshakes (K09), the rate of connections (K19).

The gateway is real and so are the sockets; no broker decides anything here, so it is a scripted one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from gateway.observability.events import TlsFailure
from testkit import wire
from testkit.broker import PRODUCE, ScriptedBroker
from testkit.crowd import connect, is_served
from testkit.frames import produce, produce_reply
from testkit.gateway import RunningGateway, gateway_config, running_gateway
from testkit.raw_client import HOST, RawClient, until
from testkit.tls import Pki, failures, tls_gateway

pytestmark = pytest.mark.asyncio

ATTACKER, HONEST = "127.0.1.1", "127.0.2.1"


# -- K08 -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def with_few_counters(count: int) -> AsyncIterator[RunningGateway]:
    """A gateway whose quota is 1,000 bytes a second for each client id."""
    async with ScriptedBroker() as broker:
        broker.script(PRODUCE, lambda connection, request: connection.send(produce_reply(request.correlation_id)))
        config = gateway_config([broker.port], quotas=[{"default_client_id": True, "producer_byte_rate": 1_000}])
        few = config.client_quota.model_copy(update={"max_trackers": count})
        async with running_gateway(config=config.model_copy(update={"client_quota": few})) as running:
            await running.discovered()
            yield running


async def throttle_ms(client: RawClient, client_id: str, size: int) -> int:
    await client.send(produce(1, size=size, client_id=client_id))
    throttle_time_ms: int = wire.decode_response("Produce", 9, await client.receive_frame()).throttle_time_ms
    return throttle_time_ms


async def test_k08_client_ids_of_one_network_leave_others_their_counters() -> None:
    async with with_few_counters(200) as running:
        mallory, alice = await connect(running.port, ATTACKER), await connect(running.port, HONEST)
        for number in range(205):
            await throttle_ms(mallory, f"invented-{number}", 10)
        assert await throttle_ms(mallory, "overflowing", 21_000) > 10_000
        for number in range(3):
            assert await throttle_ms(alice, f"alice-{number}", 500) == 0
        again = await connect(running.port, ATTACKER)
        assert await throttle_ms(again, "of the same kind", 10) > 5_000


# -- K09 -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


def hello_of(context: ssl.SSLContext) -> bytes:
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=HOST).do_handshake()
    return outgoing.read()


@asynccontextmanager
async def storm(port: int, first_bytes: bytes) -> AsyncIterator[None]:
    """A hundred connections a second that begin a handshake and do not end it."""
    clients: list[asyncio.StreamWriter] = []

    async def attack() -> None:
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection(HOST, port, local_addr=(ATTACKER, 0))
                writer.write(first_bytes)
                clients.append(writer)
            await asyncio.sleep(0.01)

    task = asyncio.create_task(attack())
    try:
        await asyncio.sleep(0.5)
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for writer in clients:
            writer.transport.abort()


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True], ids=["one byte", "whole hellos"])
async def test_k09_honest_handshakes_go_on_beside_a_storm_of_begun_ones(pki: Pki, whole: bool) -> None:
    keys = pki.keys(handshake_timeout_ms=2_000)
    first_bytes = hello_of(pki.trusting()) if whole else b"\x16"
    async with (
        tls_gateway(keys, connections={"max_tls_handshakes_per_second": 20}) as (_, running),
        storm(running.port, first_bytes),
    ):
        limiter = running.gateway.tls.handshake_limiter
        for _ in range(8):
            _, writer = await asyncio.wait_for(
                asyncio.open_connection(
                    HOST, running.port, ssl=pki.trusting(), server_hostname=HOST, local_addr=(HONEST, 0)
                ),
                60,
            )
            writer.transport.abort()
        assert limiter.waiting <= (2 * 20 if whole else 0)
        if whole:
            await until(lambda: failures(running, TlsFailure.OVERLOADED) > 0)
        else:
            assert failures(running, TlsFailure.OVERLOADED) == 0


# -- K19 -----------------------------------------------------------------------------------------------------


async def test_k19_an_address_at_its_count_that_goes_on_connecting_leaves_others_the_rate() -> None:
    limits = {"max_connections_per_ip": 3, "max_connection_creation_rate": 2}
    async with ScriptedBroker() as broker, running_gateway(broker.port, connections=limits) as running:
        await running.discovered()
        # At two a second they would have the rate for 100 s.
        for _ in range(200):
            await connect(running.port, ATTACKER)
        for number in range(4):
            honest = await connect(running.port, f"127.0.2.{number + 1}")
            assert await asyncio.wait_for(is_served(honest), 60)
