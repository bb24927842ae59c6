import asyncio
import socket
import time

import pytest

from gateway.observability.events import CloseCause
from gateway.upstream.connector import Connector
from gateway.upstream.resolver import Lookup, Resolver
from gateway.upstream.topology import ClusterMap
from protocol.codec import Broker
from testkit import broker as scripts
from testkit import wire
from testkit.broker import FETCH, Node, ScriptedBroker, blackhole
from testkit.frames import fetch
from testkit.gateway import broker_and_gateway, free_ports, running_gateway
from testkit.raw_client import HOST, RawClient, until


# -- how a connection is made --------------------------------------------------------------------------------
class User:
    """What the connector reports to the client channel."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.failures: list[CloseCause] = []
        self.received = b""
        self.lost = asyncio.Event()

    endpoints = None

    def upstream_connected(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def upstream_failed(self, cause: CloseCause) -> None:
        self.failures.append(cause)

    def upstream_received(self, data: bytes) -> None:
        self.received += data

    def upstream_lost(self) -> None:
        self.lost.set()

    def upstream_writable(self, writable: bool) -> None:
        pass


def connector(*bootstrap: tuple[str, int], lookup: Lookup | None = None, timeout_ms: int = 2_000) -> Connector:
    def now_ms() -> int:
        return 0

    resolver = Resolver(now_ms) if lookup is None else Resolver(now_ms, lookup=lookup)
    return Connector(ClusterMap(bootstrap), resolver, connect_timeout_ms=timeout_ms)


async def test_next_address_is_tried_when_one_refuses() -> None:
    async with ScriptedBroker() as broker:
        user = User()
        await connector((HOST, free_ports(1)), (HOST, broker.port)).connect(user, None)
        assert user.failures == []
        assert user.transport is not None
        user.transport.abort()
        await user.lost.wait()

    async def both(host: str, port: int) -> list[str]:
        return ["127.0.0.99", HOST]

    async with ScriptedBroker() as broker:
        user = User()
        await connector(("kafka.test", broker.port), lookup=both).connect(user, None)
        assert user.transport is not None
        user.transport.abort()
        await user.lost.wait()


async def test_connections_go_round_the_bootstrap_addresses_and_to_no_unknown_broker() -> None:
    made = connector(("a", 1), ("b", 2), ("c", 3))
    assert [made.addresses(None)[0] for _ in range(4)] == [("a", 1), ("b", 2), ("c", 3), ("a", 1)]
    assert sorted(made.addresses(None)) == [("a", 1), ("b", 2), ("c", 3)]
    async with ScriptedBroker() as broker:
        user = User()
        await connector((HOST, broker.port)).connect(user, 7)
        assert user.failures == [CloseCause.UNKNOWN_BROKER]
        assert broker.connections == []


def test_spread_connections_go_round_the_brokers_that_are_there_and_then_to_the_bootstrap_addresses() -> None:
    cluster = ClusterMap([("a", 1), ("seed", 9)])
    made = Connector(cluster, Resolver(lambda: 0), connect_timeout_ms=1)
    assert made.addresses(None, spread=True) == [("a", 1), ("seed", 9)]
    cluster.learn_all([Broker(1, "a", 1), Broker(2, "b", 2), Broker(3, "c", 3)], now_ms=0)
    cluster.learn_all([Broker(1, "a", 1), Broker(3, "c", 3)], now_ms=1)
    assert {made.addresses(None, spread=True)[0] for _ in range(4)} == {("a", 1), ("c", 3)}
    assert sorted(made.addresses(None, spread=True)) == [("a", 1), ("c", 3), ("seed", 9)]
    assert {made.addresses(None)[0] for _ in range(4)} == {("a", 1), ("seed", 9)}
    assert made.addresses(2, spread=True) == [("b", 2)]


@pytest.mark.parametrize(("host", "port"), [
    ("a..b", 9092), ("x" * 70, 9092), ("nul\0byte", 9092), (HOST, -1), (HOST, 65_536), (HOST, 2**31 - 1),
])  # fmt: skip
async def test_address_that_cannot_exist_counts_as_refused(host: str, port: int) -> None:
    user = User()
    await connector((host, port)).connect(user, None)
    assert user.failures == [CloseCause.UPSTREAM_REFUSED]


async def test_attempt_that_failed_has_the_last_address_and_its_error() -> None:
    async def unknown(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    port = free_ports(1)
    assert (await connector((HOST, port)).connect(User(), None)).reason == f"{HOST}:{port}: Connection refused"
    attempt = await connector(("kafka.test", 9092), lookup=unknown).connect(User(), None)
    assert attempt.reason == "kafka.test:9092: Name or service not known"
    with blackhole() as port:
        attempt = await connector((HOST, port), timeout_ms=50).connect(User(), None)
    assert attempt.reason == f"{HOST}:{port}: no answer within 0.05 s"


# -- brokers that fail ---------------------------------------------------------------------------------------
async def test_d01_refused_connection_closes_the_client_after_one_attempt() -> None:
    attempts = 0

    async def counted(host: str, port: int) -> list[str]:
        nonlocal attempts
        attempts += 1
        return [HOST]

    user = User()
    await connector(("kafka.test", free_ports(1)), lookup=counted).connect(user, None)
    assert user.failures == [CloseCause.UPSTREAM_REFUSED]
    assert attempts == 1
    async with running_gateway(free_ports(1)) as running, await running.connect() as client:
        await client.send(fetch())
        assert await client.receive_rest() == b""
        await running.ended_by(CloseCause.UPSTREAM_REFUSED)


async def test_d02_blackhole_ends_at_the_connect_deadline() -> None:
    with blackhole() as port:
        async with (
            running_gateway(port, upstream={"connect_timeout_ms": 200}) as running,
            await running.connect() as client,
        ):
            loop = asyncio.get_running_loop()
            start = loop.time()
            await client.send(fetch())
            assert await client.receive_rest() == b""
            assert loop.time() - start > 0.15
            await running.ended_by(CloseCause.UPSTREAM_TIMEOUT)


async def test_d02_each_attempt_has_its_own_deadline_and_a_cancelled_one_tells_nothing() -> None:
    with blackhole() as port:
        first, second, third = User(), User(), User()
        made = connector((HOST, port), timeout_ms=150)
        made.begin(first, None)
        made.begin(second, None).cancel()
        await asyncio.sleep(0.1)
        begun = asyncio.get_running_loop().time()
        made.begin(third, None)
        await until(lambda: first.failures and third.failures)
        assert asyncio.get_running_loop().time() - begun > 0.1  # the first had 50 ms left
        assert [user.failures for user in (first, second, third)] == [
            [CloseCause.UPSTREAM_TIMEOUT],
            [],
            [CloseCause.UPSTREAM_TIMEOUT],
        ]


@pytest.mark.slow
async def test_l06_attempt_during_which_the_process_stood_still_has_its_time_again() -> None:
    answer = asyncio.Event()

    async def lookup(host: str, port: int) -> list[str]:
        await answer.wait()
        return [HOST]

    async with ScriptedBroker() as broker:
        user = User()
        made = connector(("kafka.test", broker.port), lookup=lookup, timeout_ms=200)
        attempt = asyncio.create_task(made.connect(user, None))
        await asyncio.sleep(0)
        time.sleep(1.3)  # noqa: ASYNC251  (this is the pause)
        await asyncio.sleep(0.01)
        assert user.failures == []
        answer.set()
        await attempt
        assert user.transport is not None
        user.transport.abort()
        await user.lost.wait()


async def test_d03_slow_name_holds_up_no_other_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()
    answer = asyncio.Event()

    async def lookup(host: str, port: int) -> list[str]:
        asked.set()
        await answer.wait()
        return [HOST]

    monkeypatch.setattr("gateway.upstream.upstreams.Resolver", lambda now_ms: Resolver(now_ms, lookup=lookup))
    async with ScriptedBroker() as broker:
        broker.nodes = [Node(1, HOST, broker.port), Node(2, "slow.test", broker.port)]
        async with running_gateway(broker.port) as running:
            await running.discovered()
            async with (
                await RawClient.connect(running.broker_port(2)) as waiting,
                await RawClient.connect(running.broker_port(1)) as client,
            ):
                await waiting.send(fetch(1))
                await asyncio.wait_for(asked.wait(), 60)
                await client.send(fetch(2))
                assert wire.correlation_id_of(await client.receive_frame()) == 2
                answer.set()
                assert wire.correlation_id_of(await waiting.receive_frame()) == 1


@pytest.mark.parametrize("script", [scripts.close, scripts.reset])
async def test_d04_broker_that_dies_before_its_first_reply_closes_the_client(script: scripts.Script) -> None:
    async with broker_and_gateway() as (broker, running), await running.connect() as client:
        broker.script(FETCH, script)
        await client.send(fetch())
        assert await client.receive_rest() == b""
        await running.ended_by(CloseCause.UPSTREAM_CLOSED)
