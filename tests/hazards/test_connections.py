"""Hazards of transport peers (B) that are about who may connect, on a whole gateway."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.observability.events import CloseCause
from testkit.broker import ScriptedBroker
from testkit.crowd import connect, connect_all, is_served
from testkit.frames import fetch
from testkit.gateway import RunningGateway, broker_and_gateway, free_ports, gateway_config, running_gateway
from testkit.raw_client import HOST, until


def refusals(running: RunningGateway, cause: str) -> int:
    name = "gateway_connections_refused_total"
    labels = {"listener": running.listener.name, "cause": cause}
    return int(running.gateway.registry.get_sample_value(name, labels) or 0)


def ip_rate(per_s: int, **entity: Any) -> dict[str, Any]:
    return {**(entity or {"default_ip": True}), "connection_creation_rate": per_s}


# -- rates ---------------------------------------------------------------------------------------------------
@pytest.mark.slow
async def test_b13_simultaneous_connects_over_the_rate_are_all_served_in_the_end() -> None:
    began = time.monotonic()  # the first window begins with the gateway; the loop's time stands still within a turn
    async with broker_and_gateway(connections={"max_connection_creation_rate": 20}) as (_, running):
        first = await connect(running.port)
        clients = await connect_all(running.port, 207)
        # 20/s averaged over 10 windows: 200 at once, and then one every 50 ms, however long it takes to look.
        await until(lambda: running.opened >= 200)
        assert running.opened <= 201 + 20 * (time.monotonic() - began)
        assert await is_served(first)
        await until(lambda: running.opened == 208)
        assert all(await asyncio.gather(*(is_served(client) for client in clients)))
        assert refusals(running, "ip_rate") == 0


@pytest.mark.slow
async def test_b14_b17_address_over_its_rate_sees_a_close_without_a_reply_after_its_throttle_time() -> None:
    async with broker_and_gateway(quotas=[ip_rate(1)]) as (broker, running):
        # The window in progress counts too: the eleventh is let go a second after the first, however slow they were.
        began = asyncio.get_running_loop().time()
        served = await connect_all(running.port, 10, "127.0.0.2")
        await until(lambda: running.opened == 10)
        held = await connect(running.port, "127.0.0.2")
        await held.send(fetch())
        assert await held.receive_rest() == b""
        assert asyncio.get_running_loop().time() - began >= 0.99
        assert refusals(running, "ip_rate") == 1
        # No one who was in before noticed, and the broker saw nothing of it.
        assert all(await asyncio.gather(*(is_served(client) for client in served)))
        assert len(broker.client_connections) == 10
        assert running.opened == 10
        for client in [*served, held]:
            client.close()


# -- counts --------------------------------------------------------------------------------------------------
async def test_b18_limit_is_exact_under_200_racing_clients() -> None:
    async with broker_and_gateway(connections={"max_connections": 50}) as (_, running):
        clients = await connect_all(running.port, 200)
        await until(lambda: running.opened == 50)
        for rest in range(150, 0, -25):
            await asyncio.sleep(0.02)
            assert len(running.channels) == 50
            for channel in running.channels[:25]:
                channel.close(CloseCause.EVICTED)
            await until(lambda: running.opened == 225 - rest)  # noqa: B023
        assert len(running.channels) == 50
        for client in clients:
            client.close()
        await until(lambda: not running.channels)


async def test_b18_broker_ports_share_the_limit_of_their_listener() -> None:
    async with broker_and_gateway(listener={"max_connections": 2}) as (_, running):
        first = await connect(running.port)
        second = await connect(running.broker_port(1))
        await until(lambda: running.opened == 2)
        third = await connect(running.broker_port(1))
        assert await third.silent_for(0.1)
        assert running.opened == 2
        first.close()
        assert await is_served(third)
        for client in (second, third):
            client.close()


@asynccontextmanager
async def two_listeners(**connections: Any) -> AsyncIterator[tuple[RunningGateway, int]]:
    """The usual gateway with a protected listener besides, and its port."""
    first = free_ports(6)
    protected = {
        "name": "admin",
        "bind": f"{HOST}:{first}",
        "first_broker_port": first + 1,
        "broker_ports": 4,
        "protected": True,
    }
    async with ScriptedBroker() as broker:
        config = gateway_config([broker.port], more_listeners=[protected], connections=connections)
        async with running_gateway(config=config) as running:
            await running.discovered()
            yield running, first


async def test_b18_protected_listener_comes_in_at_the_limit_and_the_longest_idle_gives_way() -> None:
    async with two_listeners(max_connections=3, protected_slots=2) as (running, port):
        clients = []
        for _ in range(3):
            clients.append(await connect(running.port))
            await until(lambda: running.opened == len(clients))
            await asyncio.sleep(0.005)
        assert await is_served(clients[0])
        operator = await connect(port)
        assert await is_served(operator)
        await running.ended_by(CloseCause.EVICTED)
        assert await clients[1].receive_rest() == b""
        assert await is_served(clients[0])
        for client in [*clients, operator]:
            client.close()
        await until(lambda: not running.gateway.connections.snapshot(now_ms=0).connections)


async def test_free_slot_goes_to_the_listener_that_has_waited_longest() -> None:
    first = free_ports(6)
    other = {"name": "other", "bind": f"{HOST}:{first}", "first_broker_port": first + 1, "broker_ports": 4}
    async with ScriptedBroker() as broker:
        config = gateway_config([broker.port], more_listeners=[other], connections={"max_connections": 1})
        async with running_gateway(config=config) as running:
            await running.discovered()
            holder = await connect(running.port)
            await until(lambda: running.opened == 1)
            late = [await connect(first)]
            await until(lambda: running.gateway.listeners["other"].waits_since_ms is not None)
            await asyncio.sleep(0.005)
            late += await connect_all(running.port, 3)
            await until(lambda: running.listener.waits_since_ms is not None)
            holder.close()
            await until(lambda: running.gateway.listeners["other"].channels)
            assert len(running.listener.channels) == 0
            for client in late:
                client.close()
            await until(lambda: not running.listener.channels and running.opened >= 4)


# -- names of one client -------------------------------------------------------------------------------------
@pytest.fixture
def ipv6() -> None:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")


@pytest.mark.usefixtures("ipv6")
async def test_b19_mapped_address_and_its_ipv4_address_share_count_and_rate() -> None:
    limits = {"max_connections_per_ip": 100, "max_connections_per_ip_overrides": {"127.0.0.3": 2}}
    listener = {"bind": "[::]:0", "advertised_host": HOST}
    quotas = [ip_rate(1, ip="::ffff:127.0.0.4")]
    async with broker_and_gateway(connections=limits, listener=listener, quotas=quotas) as (_, running):
        clients = await connect_all(running.port, 3, "127.0.0.3")
        await until(lambda: refusals(running, "ip_count") == 1)
        assert {channel.ip for channel in running.channels} == {"::ffff:127.0.0.3"}
        clients += await connect_all(running.port, 11, "127.0.0.4")
        await until(lambda: running.listener.held == 1)
        for client in clients:
            client.close()
        await until(lambda: not running.channels)
