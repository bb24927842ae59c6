from collections.abc import Iterator

import aiohttp
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from config.host_port import HostPort
from gateway.app import Gateway
from testkit import wire
from testkit.broker import ScriptedBroker
from testkit.frames import create_topics
from testkit.gateway import broker_and_gateway, free_ports, gateway_config, running_gateway
from testkit.raw_client import HOST, RawClient, until


async def get(port: int, path: str) -> tuple[int, str]:
    """Status and text of one answer."""
    async with aiohttp.ClientSession() as session, session.get(f"http://{HOST}:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_health_does_not_depend_on_readiness() -> None:
    async with running_gateway(broker := free_ports(1)) as running:
        port = running.gateway.admin.port
        assert await get(port, "/healthz") == (200, "ok\n")
        status, text = await get(port, "/readyz")
        assert (status, text[: text.index(")") + 1]) == (503, f"upstream ({HOST}:{broker})")
    async with broker_and_gateway() as (_, running):
        assert await get(running.gateway.admin.port, "/readyz") == (200, "ready\n")


async def test_metrics_are_served_with_the_type_that_prometheus_asks_for() -> None:
    async with (
        running_gateway(free_ports(1)) as running,
        aiohttp.ClientSession() as session,
        session.get(f"http://{HOST}:{running.gateway.admin.port}/metrics") as answer,
    ):
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        assert list(text_string_to_metric_families(await answer.text()))


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nothing", 404), ("POST", "/metrics", 405)])
async def test_i08_nothing_else_is_served(method: str, path: str, status: int) -> None:
    async with (
        running_gateway(free_ports(1)) as running,
        aiohttp.ClientSession() as session,
        session.request(method, f"http://{HOST}:{running.gateway.admin.port}{path}") as answer,
    ):
        assert answer.status == status


async def test_busy_port_is_an_error() -> None:
    async with ScriptedBroker() as squatter:
        config = gateway_config([squatter.port])
        taken = config.admin.model_copy(update={"bind": HostPort(HOST, squatter.port)})
        gateway = Gateway(config.model_copy(update={"admin": taken}))
        with pytest.raises(OSError, match=f"admin.bind: Address already in use: {HOST}:{squatter.port}"):
            await gateway.start()
        await gateway.stop()


async def test_i08_request_that_is_no_http_is_closed_without_an_error() -> None:
    async with running_gateway(free_ports(1)) as running:
        port = running.gateway.admin.port
        async with await RawClient.connect(port) as client:
            await client.send(wire.request("Fetch", 4, topics=[]) * 100 + b"\r\n\r\n")
            assert b"200" not in (await client.receive_rest())[:20]
        async with await RawClient.connect(port) as client:
            await client.send(b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n")
            assert b"200" not in (await client.receive_rest())[:20]
        assert await get(port, "/healthz") == (200, "ok\n")


async def test_caller_that_leaves_before_its_body_is_complete_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    head = f"POST /quotas/import HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/x-ndjson\r\n"
    async with broker_and_gateway() as (_, running):
        connections = running.gateway.admin.connections
        async with await RawClient.connect(running.gateway.admin.port) as client:
            await client.send(f"{head}Content-Length: 1000\r\n\r\nx".encode())
            await until(lambda: connections._asked)
            client.reset()
            await until(lambda: not connections._asked)
    assert [each for each in caplog.records if each.name == "aiohttp.server"] == []


async def test_f10_metrics_that_cannot_be_collected_are_an_error_of_the_scrape_alone() -> None:
    class Broken(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from ()
            raise RuntimeError("bug")

    async with broker_and_gateway() as (_, running), await running.connect() as client:
        running.gateway.registry.register(broken := Broken())
        assert (await get(running.gateway.admin.port, "/metrics"))[0] == 500
        await client.send(create_topics(1, ("t", 1), version=4))
        assert await client.receive_frame()
        assert await get(running.gateway.admin.port, "/healthz") == (200, "ok\n")
        running.gateway.registry.unregister(broken)
        assert (await get(running.gateway.admin.port, "/metrics"))[0] == 200


async def test_a23_client_called_like_the_default_is_not_the_default() -> None:
    quotas = [{"client_id": "<default>", "controller_mutation_rate": 3.0}]
    async with broker_and_gateway(quotas=quotas) as (_, running):
        throttled = {}
        for client_id in ("<default>", "somebody"):
            async with await running.connect() as client:
                await client.send(create_topics(1, ("t", 100), version=4, client_id=client_id))
                reply = wire.decode_response("CreateTopics", 4, await client.receive_frame())
                throttled[client_id] = reply.throttle_time_ms > 0
    assert throttled == {"<default>": True, "somebody": False}
