"""Hazards D12, D16, D20, D21 and E17: brokers that are gone, come back, or take no connection of the gateway."""

import os

from gateway.observability.events import CloseCause
from testkit import wire
from testkit.broker import API_VERSIONS, FETCH, HOST
from testkit.crowd import connect, connect_all, is_served
from testkit.gateway import RunningGateway, broker_and_gateway, free_ports, running_gateway
from testkit.raw_client import until

OFTEN = {"topology_refresh_ms": 20, "connect_timeout_ms": 1_000}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def turned_away(running: RunningGateway, count: int) -> None:
    """So many clients ask something, and all are closed without an answer."""
    others = len(running.channels)
    clients = await connect_all(running.port, count)
    assert [await is_served(client) for client in clients] == [False] * count
    for client in clients:
        client.close()
    await until(lambda: len(running.channels) == others)


async def test_d12_clients_of_a_killed_broker_are_closed_and_served_as_soon_as_it_is_back() -> None:
    async with broker_and_gateway() as (broker, running):
        for _ in range(3):
            client = await connect(running.port)
            assert await is_served(client)
            await broker.stop()
            assert await client.receive_rest() == b""
            await turned_away(running, 5)
            await broker.start()
            assert await is_served(await connect(running.port)), "without waiting for the next look at the cluster"


async def test_d21_a_broker_of_another_version_is_shown_as_it_is_from_the_next_connection_on() -> None:
    async with broker_and_gateway() as (broker, running):
        for newest in (9, 11, 4):
            broker.offers = {FETCH: (4, newest), API_VERSIONS: (0, 3)}
            client = await connect(running.port)
            await client.send(wire.request("ApiVersions", 0))
            told = wire.decode_response("ApiVersions", 0, await client.receive_frame()).api_keys
            assert [(each.min_version, each.max_version) for each in told if each.api_key == FETCH] == [(4, newest)]
            await broker.stop()
            assert await client.receive_rest() == b""
            await broker.start()


async def test_d20_while_all_brokers_are_away_clients_are_closed_at_once_and_leave_nothing() -> None:
    async with running_gateway(free_ports(1), upstream=OFTEN) as running:
        await turned_away(running, 50)
        before = open_files()
        for _ in range(10):
            await turned_away(running, 50)
        await until(lambda: open_files() <= before)
        assert running.closed(CloseCause.UPSTREAM_REFUSED) == running.opened == 11 * 50
        assert running.gateway.why_not_ready() is not None


async def test_d16_clients_that_the_broker_takes_no_connection_for_are_closed_and_counted() -> None:
    async with broker_and_gateway() as (broker, running):
        first = await connect(running.port)
        assert await is_served(first)
        broker.full = True
        await turned_away(running, 20)
        assert running.closed(CloseCause.UPSTREAM_CLOSED) == 20
        assert await is_served(first)


async def test_e17_brokers_see_clients_of_all_hosts_under_the_gateways_address() -> None:
    async with broker_and_gateway() as (broker, running):
        for source in ("127.0.0.2", "127.0.0.3"):
            assert await is_served(await connect(running.port, source))
        hosts = [each.transport.get_extra_info("peername")[0] for each in broker.client_connections]
        assert hosts == [HOST, HOST]
