"""Attacks through the admin port: on its descriptors, on the loop, and by web pages (hazards K20 to K22, L04)."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from gateway.server.admin_connections import GRACE_S, MAX_CONNECTIONS
from testkit.frames import create_topics
from testkit.gateway import RunningGateway, broker_and_gateway, running_gateway
from testkit.raw_client import HOST, RawClient, until

pytestmark = pytest.mark.asyncio

# Three times what is promised, for a machine that does something else; 50,000 quotas at once would be 2.6 and 5.7 s.
MAX_LOOP_CPU_S = 0.06
LINES = {"Content-Type": "application/x-ndjson"}


class LoopTime:
    """The longest CPU time that one turn of the loop took; wall time would be the machine's load as well."""

    def __init__(self) -> None:
        self.worst_s = 0.0


@asynccontextmanager
async def loop_time() -> AsyncIterator[LoopTime]:
    found = LoopTime()

    async def watch() -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            found.worst_s = max(found.worst_s, time.thread_time() - before)

    gc.collect()
    gc.freeze()
    watching = asyncio.create_task(watch())
    try:
        yield found
    finally:
        watching.cancel()


async def request(running: RunningGateway, text: bytes) -> bytes:
    """The answer to a request, by a client that does nothing by itself."""
    async with await RawClient.connect(running.gateway.admin.port) as client:
        await client.send(text)
        return await client.receive_rest()


async def healthy(running: RunningGateway) -> bool:
    answer = await asyncio.wait_for(
        request(running, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"), 5
    )
    return answer.startswith(b"HTTP/1.1 200")


@pytest.mark.slow
async def test_i08_k20_silent_connections_take_few_descriptors_and_healthz_and_clients_are_answered() -> None:
    async with broker_and_gateway() as (_, running):
        port = running.gateway.admin.port
        silent = []
        for _ in range(10 * MAX_CONNECTIONS):
            silent.append(await asyncio.open_connection(HOST, port))
            assert running.gateway.admin.connections.count <= MAX_CONNECTIONS
        assert await healthy(running)
        async with await running.connect() as client:
            await client.send(create_topics(1, ("t", 1), version=4))
            assert await client.receive_frame()
        for _, writer in silent:
            writer.close()


async def test_k20_scrapers_beyond_the_places_wait_and_each_is_answered() -> None:
    async with running_gateway(9) as running:
        port = running.gateway.admin.port
        scrapers = [await RawClient.connect(port) for _ in range(3 * MAX_CONNECTIONS)]
        await asyncio.sleep(0.05)  # all places are taken before the first request comes
        for scraper in scrapers:
            await scraper.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        for scraper in scrapers:
            assert (await scraper.receive_rest()).startswith(b"HTTP/1.1 200")
            scraper.close()


async def test_k20_peers_that_have_been_answered_make_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.admin_connections.GRACE_S", 1e9)
    async with running_gateway(9) as running:
        peers = [await RawClient.connect(running.gateway.admin.port) for _ in range(MAX_CONNECTIONS)]
        for peer in peers:
            await peer.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await peer._receive(1)
        assert await healthy(running)
        for peer in peers:
            peer.close()


@pytest.mark.slow
async def test_k20_flood_of_silent_connections_takes_the_moment_that_each_has() -> None:
    async with running_gateway(9) as running:
        connections = running.gateway.admin.connections
        silent = [await RawClient.connect(running.gateway.admin.port) for _ in range(MAX_CONNECTIONS)]
        await until(lambda: connections.count == MAX_CONNECTIONS)
        assert connections.grace_s == GRACE_S
        for client in silent:
            client.close()
        await until(lambda: connections.count == 0)
        assert connections.grace_s == 0
        assert await healthy(running)
        assert connections.grace_s == GRACE_S / MAX_CONNECTIONS


@pytest.mark.slow
async def test_i08_k20_a_head_that_does_not_come_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_gateway(9) as running:
        monkeypatch.setattr(running.gateway.admin.connections, "_first_request_s", 0.0)
        async with await RawClient.connect(running.gateway.admin.port) as client:
            await client.send(b"GET /healthz HTTP/1.1\r\nHost: loc")
            assert await asyncio.wait_for(client.receive_rest(), 60) == b""


@pytest.mark.parametrize("method", [b"GET /quotas", b"GET /metrics", b"POST /reload"])
@pytest.mark.parametrize(
    ("host", "answered"),
    [
        (b"evil.example:9644", False),
        (b"localhost.evil.example", False),
        (b"127.0.0.1.evil.example", False),
        (b"", False),
        (b"localhost\r\nHost: evil.example", False),
        (b"localhost:9644", True),
        (b"[::1]:9644", True),
        (b"10.1.2.3", True),
    ],
)
async def test_k22_only_names_of_ours_are_answered(method: bytes, host: bytes, answered: bool) -> None:
    async with running_gateway(9) as running:
        answer = await request(running, method + b" HTTP/1.1\r\nConnection: close\r\nHost: " + host + b"\r\n\r\n")
        assert (answer[len("HTTP/1.1 ") :][:3] in (b"421", b"400")) != answered


@pytest.mark.parametrize(
    ("host", "answered"),
    [
        ("gw.example", True),
        ("GW.example.:9644", True),
        ("a.gw.example", False),
        ("sluice-0.kafka.svc", True),
        ("svc", False),
        (".svc", False),
        ("kafka.svc.evil.example", False),
        ("evilsvc", False),
    ],
)
async def test_k22_names_of_the_configuration_are_answered_and_those_below_a_star(host: str, answered: bool) -> None:
    async with running_gateway(9, admin={"allowed_hosts": ["gw.example", "*.svc"]}) as running:
        head = f"GET /healthz HTTP/1.1\r\nConnection: close\r\nHost: {host}\r\n\r\n"
        answer = await request(running, head.encode())
        assert answer.startswith(b"HTTP/1.1 200" if answered else b"HTTP/1.1 421")
        assert answered or b"admin.allowed_hosts" in answer


def quota(number: int, key: str = "producer_byte_rate") -> bytes:
    entity = [{"type": "user", "name": f"user-{number}"}]
    return json.dumps({"entity": entity, "quota": key, "limit": number + 1}).encode() + b"\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "status"),
    [
        (lambda: b"[" + b"[]," * 2_000_000, 413),
        (lambda: b"[]\n" * 300_000, 413),
        (lambda: b"".join(quota(at, "speed") for at in range(20_000)), 422),
        (lambda: (b"[" + b"[]," * 40_000 + b"[]]\n") * 20, 422),
    ],
    ids=["one long line", "many lines", "wrong entries", "long lines"],
)
async def test_k21_bodies_of_many_values_hold_nobody_up(make: Callable[[], bytes], status: int) -> None:
    body = make()
    async with running_gateway(9) as running, loop_time() as loop, aiohttp.ClientSession() as session:
        url = f"http://{HOST}:{running.gateway.admin.port}/quotas/import"
        async with session.post(url, data=pieces(body), headers=LINES) as answer:
            assert answer.status == status
            assert len(await answer.read()) < 60_000
        assert loop.worst_s < MAX_LOOP_CPU_S
        assert running.gateway.live_quotas.store.version == 0


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    """The client is on the same loop, so it must not hold it either."""
    for at in range(0, len(body), 65_536):
        yield body[at : at + 65_536]


async def test_k21_one_import_at_a_time() -> None:
    async with running_gateway(9) as running, aiohttp.ClientSession() as session:
        url = f"http://{HOST}:{running.gateway.admin.port}/quotas/import"
        begun, go = asyncio.Event(), asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            begun.set()
            yield quota(1)
            await go.wait()

        # The body begins when the gateway, which has the head, asks for it.
        first = asyncio.create_task(session.post(url, data=slow(), headers=LINES, expect100=True))
        await asyncio.wait_for(begun.wait(), 60)
        async with session.post(url, data=quota(2), headers=LINES) as second:
            assert second.status == 409
        go.set()
        async with await first as answer:
            assert answer.status == 200
        async with session.post(url, data=quota(2), headers=LINES) as third:
            assert third.status == 200


@pytest.mark.slow
@pytest.mark.parametrize("count", [10_000, pytest.param(50_000, marks=pytest.mark.campaign)])
async def test_l04_import_and_export_of_many_quotas_delay_no_client(count: int) -> None:
    body = b"".join(quota(at) for at in range(count))
    async with running_gateway(9) as running, loop_time() as loop, aiohttp.ClientSession() as session:
        url = f"http://{HOST}:{running.gateway.admin.port}/quotas"
        async with session.post(f"{url}/import", data=pieces(body), headers=LINES) as answer:
            assert answer.status == 200
            async for _ in answer.content.iter_any():
                pass
        assert running.gateway.limits.count == count
        imported_s, loop.worst_s = loop.worst_s, 0.0
        async with session.get(url) as answer:
            async for _ in answer.content.iter_any():
                pass
        assert max(imported_s, loop.worst_s) < MAX_LOOP_CPU_S
