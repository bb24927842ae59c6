"""Two gateways with real sockets and a topic in memory: connections over both have one rate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from gateway.app import Gateway
from testkit.broker import ScriptedBroker
from testkit.crowd import connect, is_served, leave_all
from testkit.gateway import LISTENER, gateway_config
from testkit.raw_client import until
from tests.gateway.fleet.test_service import End, SharedList

PER_S = 5


@asynccontextmanager
async def fleet_of_two(quota: dict[str, Any], **fleet: Any) -> AsyncIterator[list[Gateway]]:
    """Two members that know each other."""
    topic = SharedList()
    async with ScriptedBroker() as broker, AsyncExitStack() as stack:
        gateways = []
        for name in ("a", "b"):
            config = gateway_config([broker.port], quotas=[{**quota, "connection_creation_rate": PER_S}])
            settings = {"member": name, "interval_ms": 20, "heartbeat_ms": 100, "timeout_ms": 2_000, **fleet}
            config = config.model_copy(
                update={
                    "client_quota": config.client_quota.model_copy(update={"scope": "fleet"}),
                    "fleet": config.fleet.model_copy(update=settings),
                }
            )
            gateway = Gateway(config)
            assert gateway.fleet is not None
            gateway.fleet.topic = End(topic, name)
            await gateway.start()
            stack.push_async_callback(stop, gateway)
            gateways.append(gateway)
        for gateway in gateways:
            await until(lambda gateway=gateway: gateway.fleet.exchange.in_agreement and gateway.fleet.members == 2)  # type: ignore[misc]
            await until(lambda gateway=gateway: gateway.discovery.reached)  # type: ignore[misc]
        try:
            yield gateways
        finally:
            leave_all()


async def stop(gateway: Gateway) -> None:
    hurry = asyncio.Event()
    hurry.set()
    await gateway.drain(hurry=hurry)
    await gateway.stop()


def port(gateway: Gateway) -> int:
    bound = gateway.listeners[LISTENER].ports[None]
    assert bound is not None
    return bound


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
async def test_an_address_has_one_rate_over_two_gateways_only_where_they_share_it(shared: bool) -> None:
    async with fleet_of_two({"default_ip": True}, connection_rates=shared) as (first, second):
        window = PER_S * 10
        for _ in range(window + 1):
            await connect(port(first), "127.0.6.1")
        await until(lambda: first.listeners[LISTENER].accepted == window + 1)

        def rate_at(gateway: Gateway) -> float:
            return gateway.connections.ip_rate("127.0.6.1", now_ms=gateway._now_ms()) or 0.0

        if shared:
            await until(lambda: rate_at(second) >= 0.99 * rate_at(first))
        newcomer = await connect(port(second), "127.0.6.1")
        if shared:
            # Unread, and then closed without a reply.
            assert not await is_served(newcomer)
        else:
            assert await is_served(newcomer)
        assert await is_served(await connect(port(second), "127.0.6.2"))


@pytest.mark.slow
async def test_a_user_waits_at_one_gateway_for_what_it_did_at_the_other() -> None:
    async with fleet_of_two({"user": "ANONYMOUS"}) as (first, second):
        for at in range(2 * PER_S + 6):
            await connect(port(first), f"127.0.7.{at + 1}")
        await until(lambda: first.user_connections.held > 0)
        tracker = second.user_connections.rates.tracker("ANONYMOUS", "", now_ms=second._now_ms())
        assert tracker is not None
        await until(lambda: tracker.recorded >= 2 * PER_S)
        # As many as the first let in are used up here; what it lets in later comes out of the same bucket.
        clients = [await connect(port(second), f"127.0.8.{at + 1}") for at in range(8)]
        await until(lambda: second.user_connections.held > 0)
        assert all(await asyncio.gather(*map(is_served, clients)))
