"""Attacks through the status page and its stream: on the loop, on descriptors, by web pages and by names."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.server.admin_connections import MAX_CONNECTIONS
from gateway.server.status_routes import MAX_VIEWERS
from protocol.api_keys import ApiKey
from quotas.combine import ThrottledBy
from quotas.entities import client_name
from testkit.gateway import RunningGateway, broker_and_gateway, running_gateway
from testkit.raw_client import HOST, RawClient, until
from tests.attacks.test_admin_port import MAX_LOOP_CPU_S, healthy, loop_time

pytestmark = pytest.mark.asyncio

QUOTAS = [{"default_client_id": True, "producer_byte_rate": 1_000, "consumer_byte_rate": 1_000}]
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "\x1b]0;title\x07\x1b[31mred\x9b2J",
    "\u202egnp.exe\u2066",
    "שלום עולם",
    "\U0001f4a3" * 255,
    '{"a": "b"}\n\ndata: x',
)


def use(running: RunningGateway, client_id: str, *, size: int = 20_000) -> None:
    """A client produces more than it may and is asked to wait."""
    quotas, now_ms = running.gateway.client_quotas, running.gateway._now_ms()
    tracker = quotas.produce_tracker("ANONYMOUS", client_id, None, now_ms=now_ms)
    assert tracker is not None
    wait_ms = tracker.record(size, now_ms=now_ms)
    if wait_ms:
        client = {"user": "ANONYMOUS", "client_id": client_id}
        quotas.record_throttle(ApiKey.PRODUCE, ThrottledBy.PRODUCE, tracker, wait_ms, **client, now_ms=now_ms)


def url(running: RunningGateway, path: str) -> str:
    return f"http://{HOST}:{running.gateway.admin.port}{path}"


async def get(running: RunningGateway, path: str, **headers: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url(running, path), headers=headers) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize("path", ["/status.json", "/events", "/why?client_id=c"])
@pytest.mark.parametrize(
    "headers",
    [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "http://evil.example"}],
    ids=str,
)
async def test_k22_other_sites_learn_nothing(path: str, headers: dict[str, str]) -> None:
    async with running_gateway(9) as running:
        assert (await get(running, path, **headers))[0] == 403
        status, _ = await get(running, "/", **{"Sec-Fetch-Dest": "iframe"})
        assert status == 403


async def test_k22_no_answer_may_be_read_framed_or_included_elsewhere() -> None:
    async with running_gateway(9) as running, aiohttp.ClientSession() as session:
        for path in ("/", "/status.json", "/why"):
            async with session.get(url(running, path)) as answer:
                assert answer.status == 200
                assert not [name for name in answer.headers if name.startswith("Access-Control-")]
                assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                policy = answer.headers.get("Content-Security-Policy", "")
                if path == "/":
                    assert policy.startswith("default-src 'none'; script-src 'sha256-")
                    assert "frame-ancestors 'none'" in policy
                    assert "unsafe" not in policy


@pytest.mark.slow
async def test_k20_viewers_that_take_nothing_leave_room_for_others_and_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.server.status_routes.SEND_S", 0.5)
    monkeypatch.setattr("gateway.server.status_routes.LEAST_INTERVAL_S", 0.01)
    monkeypatch.setattr("gateway.server.status_routes.SHARE", 1.0)
    async with broker_and_gateway(quotas=QUOTAS) as (_, running):
        for at in range(500):
            use(running, f"{at}" + "x" * 200)
        viewers = []
        for _ in range(MAX_VIEWERS):
            viewer = await RawClient.connect(running.gateway.admin.port)
            await viewer.send(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            viewers.append(viewer)
        routes = running.gateway.status_routes
        await until(lambda: routes.viewers == MAX_VIEWERS)
        assert (await get(running, "/events"))[0] == 503
        assert (await get(running, "/status.json"))[0] == 200
        assert await healthy(running)
        # More than the socket's buffers hold, and no one reads.
        await until(lambda: routes.viewers == 0, seconds=20)
        assert running.gateway.admin.connections.count <= MAX_CONNECTIONS
        for viewer in viewers:
            viewer.close()


async def test_k21_the_snapshot_of_thousands_of_clients_holds_nobody_up_and_is_made_once_for_all() -> None:
    async with broker_and_gateway(quotas=QUOTAS) as (_, running):
        for at in range(5_000):
            use(running, f"{at}", size=at)
        built = 0
        build = running.gateway.status_routes.feed._build

        async def counted() -> Any:
            nonlocal built
            built += 1
            return await build()

        running.gateway.status_routes.feed._build = counted
        async with loop_time() as loop:
            texts = await asyncio.gather(*(get(running, "/status.json") for _ in range(20)))
            await get(running, "/metrics")
            assert loop.worst_s < MAX_LOOP_CPU_S
        assert built == 1
        assert len(set(texts)) == 1
        assert len(texts[0][1]) < 200_000


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
async def test_hostile_names_are_told_as_they_are_and_their_events_are_one_line(name: str) -> None:
    async with broker_and_gateway(quotas=QUOTAS) as (_, running):
        use(running, name)
        status, text = await get(running, "/status.json")
        (client,) = json.loads(text)["clients"]
        assert (status, text.isascii(), "\n" in text) == (200, True, False)
        assert client["client_id"][:100] == name[:100]
        assert client["name"] == client_name(client_id=client["client_id"])
        async with aiohttp.ClientSession() as session:
            params = {"client_id": name, "user": "ANONYMOUS"}
            async with session.get(url(running, "/why"), params=params) as answer:
                (told,) = (await answer.json())["throttles"]
        assert (told["client_id"], told["name"]) == (name, client_name("ANONYMOUS", name))
        assert told["entity"] == "client-id=<default>"


async def test_every_number_of_the_snapshot_is_that_of_metrics() -> None:
    async with broker_and_gateway(quotas=QUOTAS) as (_, running):
        now_ms = running.gateway._now_ms()
        running.gateway._quota_metrics._now_ms = lambda: now_ms + 1_000
        for at in range(300):
            use(running, f"c{at}", size=97 * at)
        _, text = await get(running, "/status.json")
        _, exposition = await get(running, "/metrics")
        snapshot = json.loads(text)
        at = {name: index for index, name in enumerate(snapshot["rate_fields"])}
        names = {
            "gateway_produce_byte_rate": "rate",
            "gateway_produce_byte_rate_limit": "limit",
            "gateway_produce_utilisation_ratio": "utilisation",
            "gateway_produce_throttled_requests_total": "throttled",
            "gateway_produce_throttle_time_seconds": "throttle_time_s",
        }
        scraped: dict[str, dict[str, float]] = {name: {} for name in names.values()}
        for family in text_string_to_metric_families(exposition):
            for sample in family.samples:
                if sample.name in names:
                    scraped[names[sample.name]][sample.labels["client_id"]] = sample.value
        told: dict[str, dict[str, float]] = {name: {} for name in names.values()}
        for client in snapshot["clients"]:
            for name, values in told.items():
                value = client["produce"][at[name]]
                if value is not None:
                    values[client["client_id"]] = value
        assert len(scraped["throttled"]) == 251  # with the row of all others
        scraped["limit"].pop("", None)
        assert told == scraped
