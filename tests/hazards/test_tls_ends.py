"""What holds for muted, slow and leaving clients holds for those with TLS too (hazards B07, B11, C08, C16)."""

import asyncio
from contextlib import suppress

import pytest

from gateway.net.channel import HIGH_WATER_BYTES
from gateway.observability.events import CloseCause
from gateway.session.mute import MuteReason
from testkit import broker as scripts
from testkit.broker import FETCH, PRODUCE
from testkit.frames import fetch, heartbeat, produce, produce_to
from testkit.gateway import RunningGateway
from testkit.raw_client import until
from testkit.tls import Pki, RawTlsClient, tls_gateway

MIB = 1024 * 1024
QUOTA = {"default_client_id": True, "producer_byte_rate": 1_000}


def throttled(running: RunningGateway) -> bool:
    return any(channel.session.muted & MuteReason.THROTTLED for channel in running.channels)


@pytest.mark.parametrize("fin", [False, True], ids=["goodbye", "goodbye and fin"])
async def test_b07_client_that_ends_its_direction_of_tls_gets_the_replies_it_is_owed(pki: Pki, fin: bool) -> None:
    async with tls_gateway(pki.keys()) as (broker, running):
        broker.script(FETCH, scripts.slow(0.1))
        client = await RawTlsClient.connect(running, pki.trusting())
        async with client.raw:
            await client.send(fetch(1) + fetch(2))
            await client.say_goodbye()
            if fin:
                client.raw.half_close()
            for number in (1, 2):
                head = await client.receive(8)
                assert head[4:] == number.to_bytes(4, "big")
                await client.receive(int.from_bytes(head[:4], "big") - 4)
            assert await client.receive(1) == b"", "and then the gateway's goodbye"
            await running.ended_by(CloseCause.CLIENT_CLOSED)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fin", "reset"])
async def test_c08_c16_throttled_client_that_leaves_is_found_out_and_its_held_requests_are_dropped(
    pki: Pki, how: str
) -> None:
    async with tls_gateway(pki.keys(), quotas=[QUOTA]) as (broker, running):
        client = await RawTlsClient.connect(running, pki.trusting())
        await client.send(produce(1, size=60_000))
        await until(lambda: throttled(running) and broker.client_connections)
        asked = broker.client_connections[-1]
        await client.send(produce(2, size=600) * 3)
        if how == "fin":
            client.raw.close()
        else:
            client.raw.reset()
        await running.ended_by(CloseCause.CLIENT_CLOSED)
        assert [request.api_key for request in asked.requests] == [PRODUCE]


@pytest.mark.slow
async def test_b11_broker_that_never_reads_stops_the_reading_of_a_client_with_tls(pki: Pki) -> None:
    async with tls_gateway(pki.keys()) as (broker, running):
        broker.never_reads = True
        client = await RawTlsClient.connect(running, pki.trusting())
        frame = produce(1, size=MIB)

        async def send_all() -> None:
            for _ in range(64):
                await client.send(frame)

        sending = asyncio.create_task(send_all())
        assert await running.stops_reading(MIB) < 32 * MIB
        upstream = running.channels[0]._upstream
        assert upstream is not None
        assert upstream.get_write_buffer_size() <= HIGH_WATER_BYTES + MIB
        sending.cancel()
        client.raw.reset()
        await running.ended_by(CloseCause.CLIENT_CLOSED)


async def test_k17_large_requests_for_a_used_up_topic_fill_no_memory_with_tls(pki: Pki) -> None:
    quota = {"topic": "t", "producer_byte_rate": 1_000}
    async with tls_gateway(pki.keys(), quotas=[quota], queued_max_request_bytes=8 * MIB) as (_, running):
        using_up = await RawTlsClient.connect(running, pki.trusting())
        await using_up.send(produce_to(t=500_000))
        await until(lambda: throttled(running))

        clients = [await RawTlsClient.connect(running, pki.trusting()) for _ in range(8)]
        for client in clients:
            with suppress(OSError):
                await client.send(produce_to(other=3 * MIB, t=30_000))
        await running.ended_by(CloseCause.MEMORY_FULL, 6)
        assert running.gateway.memory.used_bytes <= 8 * MIB
        honest = await RawTlsClient.connect(running, pki.trusting())
        await honest.send(heartbeat(1))
        assert len(await honest.receive(8)) == 8
        for each in (using_up, honest, *clients):
            each.raw.reset()
