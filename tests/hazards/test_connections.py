"""Hazards of transport peers (B) that are about who may connect, on a whole gateway."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from gateway import keepalive
from gateway.close_cause import CloseCause
from gateway.reload import plan
from tests.support import broker as scripts
from tests.support import wire
from tests.support.broker import FETCH, ScriptedBroker
from tests.support.gateway import (
    RunningGateway,
    broker_and_gateway,
    free_ports,
    gateway_config,
    running_gateway,
)
from tests.support.raw_client import HOST, Ended, RawClient, until

pytestmark = pytest.mark.asyncio


def fetch(correlation_id: int = 1) -> bytes:
    return wire.request("Fetch", 4, correlation_id=correlation_id, topics=[])


_crowd: list[RawClient] = []


@pytest.fixture(autouse=True)
def crowd() -> Iterator[None]:
    """Closes what `connect` has opened."""
    yield
    while _crowd:
        _crowd.pop().close()


async def connect(port: int, source: str = HOST) -> RawClient:
    """A client with an address of its own, closed at the end of the test at the latest."""
    sock = socket.socket()
    client = RawClient(sock)
    _crowd.append(client)
    sock.setblocking(False)
    sock.bind((source, 0))
    await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, (HOST, port)), 5)
    return client


async def connect_all(port: int, count: int, source: str = HOST) -> list[RawClient]:
    """So many clients at the same time."""
    return list(await asyncio.gather(*(connect(port, source) for _ in range(count))))


async def is_served(client: RawClient) -> bool:
    try:
        await client.send(fetch(3))
        return wire.correlation_id_of(await client.receive_frame()) == 3
    except (Ended, OSError):
        return False


def refusals(running: RunningGateway, cause: str) -> int:
    name = "gateway_connections_refused_total"
    labels = {"listener": running.listener.name, "cause": cause}
    return int(running.gateway.metrics.registry.get_sample_value(name, labels) or 0)


def ip_rate(per_s: int, **entity: Any) -> dict[str, Any]:
    return {**(entity or {"default_ip": True}), "connection_creation_rate": per_s}


# -- rates ---------------------------------------------------------------------------------------------------


async def test_b13_simultaneous_connects_over_the_rate_are_all_served_in_the_end() -> None:
    async with broker_and_gateway(connections={"max_connection_creation_rate": 20}) as (_, running):
        first = await connect(running.port)
        clients = await connect_all(running.port, 207)
        # 20/s averaged over 10 windows: 200 at once, and then one every 50 ms.
        await until(lambda: running.opened >= 200)
        assert running.opened <= 205
        assert await is_served(first)
        await until(lambda: running.opened == 208)
        assert all(await asyncio.gather(*(is_served(client) for client in clients)))
        assert refusals(running, "ip_rate") == 0


@pytest.mark.integration
async def test_b13_each_address_is_let_in_at_its_rate_when_it_offers_five_times_as_much() -> None:
    config = gateway_config([free_ports(1)], quotas=[ip_rate(20)])
    windows = config.client_quota.model_copy(update={"window_num": 2})
    async with running_gateway(config=config.model_copy(update={"client_quota": windows})) as running:
        sources = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
        loop = asyncio.get_running_loop()
        began = loop.time()
        for tick in range(600):
            for source in sources:
                await connect(running.port, source)
            await asyncio.sleep(max(0.0, began + tick / 100 - loop.time()))
        seconds = loop.time() - began
        let_in = {source: sum(channel.ip == source for channel in running.channels) for source in sources}
        assert all(0.9 <= count / seconds / 20 <= 1.05 for count in let_in.values()), let_in


async def test_f13_connections_that_come_and_go_leave_no_task_behind() -> None:
    async with broker_and_gateway() as (_, running):
        tasks = len(asyncio.all_tasks())
        for number in range(300):
            client = await connect(running.port)
            if number % 3 == 0:
                assert await is_served(client)
            if number % 2:
                client.reset()
            else:
                client.close()
        await until(lambda: not running.channels)
        await asyncio.sleep(0.05)
        assert len(asyncio.all_tasks()) == tasks


async def test_b14_b17_address_over_its_rate_sees_a_close_without_a_reply_after_its_throttle_time() -> None:
    async with broker_and_gateway(quotas=[ip_rate(1)]) as (broker, running):
        # The window in progress counts too: the eleventh is let go a second after the first, however slow they were.
        began = asyncio.get_running_loop().time()
        served = await connect_all(running.port, 10, "127.0.0.2")
        await until(lambda: running.opened == 10)
        held = await connect(running.port, "127.0.0.2")
        await held.send(fetch())
        assert await held.receive_rest() == b""
        assert 0.99 <= asyncio.get_running_loop().time() - began < 2.5
        assert refusals(running, "ip_rate") == 1
        # Nobody who was in before noticed, and the broker saw nothing of it.
        assert all(await asyncio.gather(*(is_served(client) for client in served)))
        assert len(broker.client_connections) == 10
        assert running.opened == 10
        for client in [*served, held]:
            client.close()


async def test_b14_rows_for_addresses_and_blocks_come_before_the_default() -> None:
    quotas = [ip_rate(1, ip="127.0.0.7"), ip_rate(2, ip="127.0.1.0/24"), ip_rate(4)]
    rows = ((["127.0.0.7"], 10), (["127.0.1.1", "127.0.1.2"], 20), (["127.0.0.8"], 40), (["127.0.0.9"], 40))
    async with broker_and_gateway(quotas=quotas) as (_, running):
        for sources, let_in in rows:
            before = running.opened
            for source in sources:
                await connect_all(running.port, 50 // len(sources), source)
            await until(lambda: running.listener.held == 50 - let_in)  # noqa: B023
            assert running.opened - before == let_in
            await until(lambda: running.listener.held == 0)


async def test_b15_held_sockets_are_bounded_and_the_rest_is_reset() -> None:
    async with broker_and_gateway(quotas=[ip_rate(1)], connections={"max_held": 7}) as (_, running):
        clients = await connect_all(running.port, 60)
        await until(lambda: refusals(running, "held_full") == 43)
        assert running.listener.held == 7
        for client in clients:
            client.close()


async def test_b16_what_a_held_client_sends_is_discarded() -> None:
    async with broker_and_gateway(quotas=[ip_rate(1)]) as (broker, running):
        clients = await connect_all(running.port, 11)
        await until(lambda: running.listener.held == 1)
        (held,) = running.listener._acceptor.held
        mine = next(each for each in clients if each.sock.getsockname()[1] == held.port)
        with suppress(OSError, TimeoutError):
            await asyncio.wait_for(mine.send(fetch() * 40_000), 0.5)
        assert await mine.receive_rest() == b""
        assert not [request for each in broker.client_connections for request in each.requests]
        for client in clients:
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


async def test_b18_limit_of_an_address_is_exact_and_its_override_counts() -> None:
    limits = {"max_connections_per_ip": 5, "max_connections_per_ip_overrides": {"127.0.0.9": 12}}
    async with broker_and_gateway(connections=limits) as (_, running):
        clients = []
        for source, let_in in (("127.0.0.2", 5), ("127.0.0.9", 12)):
            before = refusals(running, "ip_count")
            clients += await connect_all(running.port, 40, source)
            await until(lambda: refusals(running, "ip_count") == before + 40 - let_in)  # noqa: B023
        assert len(running.channels) == 17
        for client in clients:
            client.close()
        await until(lambda: not running.channels)
        assert await is_served(await connect(running.port, "127.0.0.2"))


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


async def test_b18_slots_of_the_protected_listener_end_somewhere_too() -> None:
    async with two_listeners(max_connections=3, protected_slots=2) as (running, port):
        operators = await connect_all(port, 8)
        admin = running.gateway.listeners["admin"]
        await until(lambda: admin.waits_since_ms is not None)
        assert len(admin.channels) == 5
        for client in operators:
            client.close()
        await until(lambda: not admin.channels)


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


# -- reload --------------------------------------------------------------------------------------------------


async def test_new_limits_drop_nobody_and_let_in_who_waits() -> None:
    async with broker_and_gateway(connections={"max_connections": 3}, quotas=[ip_rate(50)]) as (_, running):
        clients = await connect_all(running.port, 5)
        await until(lambda: running.listener.waits_since_ms is not None)
        wanted = running.config.model_copy(
            update={"connections": running.config.connections.model_copy(update={"max_connections": 4})}
        )
        running.gateway._apply_settings(plan(running.config, wanted))
        await until(lambda: running.opened == 4)
        fewer = wanted.model_copy(
            update={"connections": wanted.connections.model_copy(update={"max_connections": 1})}
        )
        running.gateway._apply_settings(plan(wanted, fewer))
        await asyncio.sleep(0.05)
        assert len(running.channels) == 4
        for client in clients:
            client.close()
        await until(lambda: running.opened == 5 and not running.channels)


# -- deadlines -----------------------------------------------------------------------------------------------


async def test_b01_b02_silent_and_dribbling_clients_are_closed_while_honest_ones_are_served() -> None:
    async with broker_and_gateway(first_frame_timeout_ms=300) as (broker, running):
        silent = await connect_all(running.port, 20)
        dribbling = await connect_all(running.port, 20)
        honest = await connect(running.port)
        for byte in fetch()[:5]:
            for client in dribbling:
                await client.send(bytes([byte]))
            assert await is_served(honest)
            await asyncio.sleep(0.03)
        await running.ended_by(CloseCause.FIRST_FRAME_TIMEOUT, 40)
        assert await is_served(honest)
        assert len(broker.client_connections) == 1
        for client in [*silent, *dribbling, honest]:
            client.close()


async def test_b03_slow_link_that_keeps_the_minimum_rate_is_served() -> None:
    bounds = {"first_frame_timeout_ms": 300, "frame_timeout_ms": 300, "min_frame_bytes_per_s": 100_000}
    async with broker_and_gateway(**bounds) as (_, running):
        client = await connect(running.port)
        frame = wire.request(
            "Produce", 3, correlation_id=9, acks=1, timeout_ms=1, topic_data=[], client_id="c" * 20
        )
        frame = (len(frame) - 4 + 100_000).to_bytes(4, "big") + frame[4:] + bytes(100_000)
        for at in range(0, len(frame), 10_000):
            await client.send(frame[at : at + 10_000])
            await asyncio.sleep(0.08)  # 800 ms in all: more than the base, less than base + size / rate
        assert wire.correlation_id_of(await client.receive_frame()) == 9


async def test_b21_long_poll_is_not_idleness() -> None:
    async with broker_and_gateway(idle_timeout_ms=300, first_frame_timeout_ms=300) as (broker, running):
        idle = await connect(running.port)
        assert await is_served(idle)
        broker.script(FETCH, scripts.silence)
        polling = await connect(running.port)
        await polling.send(fetch())
        await running.ended_by(CloseCause.IDLE_TIMEOUT)
        assert await idle.receive_rest() == b""
        assert await polling.silent_for(0.5)


# -- a peer that is gone without a word ----------------------------------------------------------------------

NAMESPACE = f"sluice-b05-{os.getpid()}"
OURS, THEIRS = "10.231.77.1", "10.231.77.2"

_SILENT_CLIENT = f"""
import socket, sys
s = socket.create_connection(("{OURS}", int(sys.argv[1])))
s.sendall(bytes.fromhex(sys.argv[2]))
s.recv(4)
print("served", flush=True)
sys.stdin.read()
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def cable() -> Iterator[str]:
    """A link to a network namespace; its name on our side."""
    if os.geteuid() != 0:
        pytest.skip("needs root for a network namespace")
    link = f"b05-{os.getpid()}"[:15]
    try:
        ip("netns", "add", NAMESPACE)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs network namespaces")
    try:
        ip("link", "add", link, "type", "veth", "peer", "name", "b05-peer", "netns", NAMESPACE)
        ip("addr", "add", f"{OURS}/24", "dev", link)
        ip("link", "set", link, "up")
        ip("-n", NAMESPACE, "addr", "add", f"{THEIRS}/24", "dev", "b05-peer")
        ip("-n", NAMESPACE, "link", "set", "b05-peer", "up")
        yield link
    finally:
        subprocess.run(["ip", "link", "del", link], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", NAMESPACE], check=False, capture_output=True)


@pytest.mark.integration
async def test_b05_peer_behind_a_pulled_cable_is_given_up_and_counted(
    cable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepalive, "IDLE_S", 1)
    monkeypatch.setattr(keepalive, "INTERVAL_S", 1)
    monkeypatch.setattr(keepalive, "PROBES", 2)
    monkeypatch.setattr(keepalive, "UNACKNOWLEDGED_MS", 3_000)
    listener = {"bind": f"{OURS}:0", "advertised_host": OURS}
    async with broker_and_gateway(listener=listener, write_timeout_ms=1_000) as (broker, running):
        client = await asyncio.create_subprocess_exec(
            "ip", "netns", "exec", NAMESPACE, sys.executable, "-c", _SILENT_CLIENT,
            str(running.port), fetch().hex(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert client.stdout is not None
            assert await asyncio.wait_for(client.stdout.readline(), 20) == b"served\n"
            ip("link", "set", cable, "down")
            await until(lambda: not running.channels, seconds=10)
            await running.ended_by(CloseCause.CLIENT_UNREACHABLE)
            await until(lambda: broker.client_connections[0].ended.is_set())
        finally:
            client.kill()
            await client.wait()
