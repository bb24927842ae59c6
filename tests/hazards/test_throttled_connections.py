"""Hazards B08, B10, B12, C05, C09, C15, D11, D15, F06, F07: what time and peers do to connections under quotas."""

import ast
import asyncio
import resource
import statistics
import time
from pathlib import Path
from typing import Final

import pytest
import structlog.testing

from gateway.observability.events import CloseCause
from testkit import broker as scripts
from testkit import wire
from testkit.broker import FETCH, HOST, PRODUCE, Node, ScriptedBroker
from testkit.frames import fetch, heartbeat, produce, produce_reply
from testkit.gateway import broker_and_gateway, gateway_process, running_gateway
from testkit.raw_client import PATIENCE_S, RawClient, until

HEARTBEAT: Final = 12
ROOT: Final = Path(__file__).resolve().parents[2]
MIB: Final = 1024 * 1024
QUOTA: Final = {"default_client_id": True, "producer_byte_rate": 1_000}
VANISHING_CLIENTS: Final = 2_000


def answer_produce(connection: scripts.BrokerConnection, request: scripts.Request) -> None:
    """A reply that the throttle can be written into."""
    connection.send(produce_reply(request.correlation_id))


def asked(broker: ScriptedBroker, api_key: int) -> scripts.BrokerConnection:
    """The connection that such a request came by; the gateway has one of its own for its questions."""
    (found,) = [c for c in broker.connections if any(r.api_key == api_key for r in c.requests)]
    return found


# -- peers that are slow -------------------------------------------------------------------------------------
async def received_until_cut(client: RawClient, total: int, *, piece: int, pause_s: float) -> int:
    """How much a client gets that reads a piece and then does something else."""
    loop, received = asyncio.get_running_loop(), 0
    while received < total:
        try:
            data = await asyncio.wait_for(loop.sock_recv(client.sock, piece), 60)
        except ConnectionResetError:
            break
        if not data:
            break
        received += len(data)
        await asyncio.sleep(pause_s)
    return received


async def read_on(client: RawClient) -> None:
    """Read until the connection ends in order."""
    while await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client.sock, MIB), PATIENCE_S):
        pass


async def test_b08_what_the_kernel_holds_for_a_client_that_reads_nothing_goes_with_its_connection() -> None:
    async with broker_and_gateway(write_timeout_ms=300) as (broker, running):
        broker.script(FETCH, scripts.huge(16 * MIB))
        client = await running.connect(receive_buffer_bytes=8_192)
        await client.send(fetch())
        await running.ended_by(CloseCause.WRITE_TIMEOUT)
        # Of a connection that ended in order, the kernel would keep what it had taken until the client wants it.
        with pytest.raises(ConnectionResetError):
            await read_on(client)
        client.close()


async def test_b10_a_client_that_reads_byte_by_byte_is_cut_off() -> None:
    async with broker_and_gateway(write_timeout_ms=300) as (broker, running):
        broker.script(FETCH, scripts.huge(16 * MIB))
        client = await running.connect(receive_buffer_bytes=8_192)
        await client.send(fetch())
        reading = asyncio.create_task(received_until_cut(client, 16 * MIB, piece=1, pause_s=0.05))
        await running.ended_by(CloseCause.WRITE_TIMEOUT)
        reading.cancel()
        client.close()


@pytest.mark.slow
async def test_b10_a_slow_client_that_reads_steadily_gets_everything() -> None:
    """64 KiB/s under the default deadline of 30 s, both thirty times as fast: 2 MiB/s under one of a second."""
    async with (
        broker_and_gateway(write_timeout_ms=1_000) as (broker, running),
        await running.connect(receive_buffer_bytes=65_536) as client,
    ):
        broker.script(FETCH, scripts.huge(6 * MIB))
        await client.send(fetch())
        total = 6 * MIB + 8
        assert await received_until_cut(client, total, piece=20_000, pause_s=0.01) == total
        assert running.closed(CloseCause.WRITE_TIMEOUT) == 0


@pytest.mark.slow
async def test_b12_a_fast_producer_before_a_slow_broker_costs_no_more_than_the_watermarks(tmp_path: Path) -> None:
    count, frame = 160, produce(2, acks=0, size=MIB)  # more than the kernel keeps on the way
    async with (
        ScriptedBroker() as broker,
        gateway_process(tmp_path, broker.port) as gateway,
        await gateway.connect() as client,
    ):
        await client.send(heartbeat(1))
        await client.receive_frame()
        connection = asked(broker, HEARTBEAT)
        before_bytes, received = gateway.rss_bytes(), connection.received_bytes
        broker.counts_only = True
        connection.transport.pause_reading()

        async def send_all() -> None:
            for _ in range(count):
                await client.send(frame)

        sending = asyncio.create_task(send_all())
        most_bytes = 0
        for turn in range(30):
            await asyncio.sleep(0.02)
            if turn % 10 == 0:  # the broker takes a little now and then
                taken = connection.received_bytes
                connection.transport.resume_reading()
                await until(lambda: connection.received_bytes > taken)  # noqa: B023
                connection.transport.pause_reading()
            most_bytes = max(most_bytes, gateway.rss_bytes())
        assert received < connection.received_bytes
        assert not sending.done()
        connection.transport.resume_reading()
        await sending
        await until(lambda: connection.received_bytes - received == count * len(frame))
        assert max(most_bytes, gateway.rss_bytes()) - before_bytes < 16 * MIB


async def test_d11_a_slow_broker_slows_its_own_clients_alone() -> None:
    async with ScriptedBroker(node_id=1) as first, ScriptedBroker(node_id=2) as second:
        first.nodes = second.nodes = [Node(1, HOST, first.port), Node(2, HOST, second.port)]
        async with running_gateway(first.port) as running:
            await running.discovered()
            first.script(FETCH, scripts.silence)
            slow = await RawClient.connect(running.broker_port(1))
            quick = await RawClient.connect(running.broker_port(2))
            await slow.send(fetch(1))
            await until(lambda: first.client_connections and first.client_connections[-1].waiting)
            for number in range(200):
                await quick.send(fetch(number))
                assert wire.correlation_id_of(await quick.receive_frame()) == number
            (waiting,) = first.client_connections[-1].waiting
            scripts.answer(first.client_connections[-1], waiting)
            assert wire.correlation_id_of(await slow.receive_frame()) == 1
            slow.close()
            quick.close()


# -- brokers that close --------------------------------------------------------------------------------------
async def test_c05_a_broker_that_closes_over_an_error_without_acks_closes_its_client() -> None:
    async with broker_and_gateway(quotas=[QUOTA]) as (broker, running), await running.connect() as client:
        broker.script(PRODUCE, scripts.close)
        await client.send(produce(1, acks=0, size=20_000))  # over the quota, too: the throttle has begun
        assert await client.receive_rest() == b""
        await running.ended_by(CloseCause.UPSTREAM_CLOSED)


@pytest.mark.parametrize("throttled", [False, True], ids=["idle", "muted"])
async def test_d15_the_brokers_idle_close_closes_the_client_in_an_orderly_way(*, throttled: bool) -> None:
    with structlog.testing.capture_logs() as logs:
        async with broker_and_gateway(quotas=[QUOTA]) as (broker, running), await running.connect() as client:
            broker.script(PRODUCE, answer_produce)
            await client.send(produce(1, size=30_000 if throttled else 100))
            reply = await client.receive_frame()
            assert (wire.decode_response("Produce", 9, reply).throttle_time_ms > 0) is throttled
            asked(broker, PRODUCE).transport.close()
            assert await client.receive_rest() == b""  # a FIN: a reset would raise
            await running.ended_by(CloseCause.UPSTREAM_CLOSED)
    assert [line for line in logs if line["log_level"] in ("warning", "error", "critical")] == []


# -- transactions --------------------------------------------------------------------------------------------
async def round_trip_ms(client: RawClient, count: int) -> float:
    """The time that a quarter of EndTxn keep: a busy machine makes the others longer."""
    loop, times = asyncio.get_running_loop(), []
    for number in range(count):
        frame = wire.request("EndTxn", 3, correlation_id=number, transactional_id="x", committed=True)
        started = loop.time()
        await client.send(frame)
        await client.receive_frame()
        times.append((loop.time() - started) * 1_000)
    return statistics.quantiles(times)[0]


async def test_c15_end_of_a_transaction_is_at_most_five_ms_slower_while_its_client_is_in_debt() -> None:
    quota = QUOTA | {"consumer_byte_rate": 1_000, "controller_mutation_rate": 1.0}
    async with (
        broker_and_gateway(quotas=[quota]) as (broker, running),
        await running.connect() as producer,
        await running.connect() as coordinator,
        await RawClient.connect(broker.port) as direct,
    ):
        broker.script(PRODUCE, answer_produce)
        await producer.send(produce(1, size=60_000))
        await producer.receive_frame()
        through, straight = await round_trip_ms(coordinator, 100), await round_trip_ms(direct, 100)
        assert through - straight <= 5


# -- clients that vanish -------------------------------------------------------------------------------------
@pytest.mark.integration
async def test_c09_two_thousand_clients_exceed_their_quota_and_vanish(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 3 * VANISHING_CLIENTS
    tables = "[[quotas]]\ndefault_client_id = true\nproducer_byte_rate = 10\n"
    async with ScriptedBroker() as broker, gateway_process(tmp_path, broker.port, tables=tables) as gateway:
        broker.script(PRODUCE, answer_produce)
        first = await gateway.connect()  # stays: when the gateway has let go of it could not be seen
        await first.send(heartbeat(1))
        await first.receive_frame()
        baseline = gateway.open_files()
        clients = []
        for number in range(VANISHING_CLIENTS):
            client = await gateway.connect()
            clients.append(client)
            # Eleven minutes of debt, of which a busy machine may take some, and the next request on its way.
            await client.send(produce(1, size=7_000, client_id=f"c{number}") + heartbeat(2))
        for client in clients:
            reply = wire.decode_response("Produce", 9, await client.receive_frame())
            assert reply.throttle_time_ms > 50_000
        # Of each client and of its broker. Those of the gateway itself come and go.
        assert gateway.open_files() >= 2 * VANISHING_CLIENTS
        for number, client in enumerate(clients):
            if number % 2:
                client.reset()
            else:
                client.close()
        await until(lambda: gateway.open_files() <= baseline + 2)
        first.close()
        await until(lambda: all(connection.ended.is_set() for connection in broker.client_connections))
        sent_on = [request.api_key for c in broker.client_connections for request in c.requests]
        assert sent_on.count(PRODUCE) == VANISHING_CLIENTS


# -- time ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump_s", [3_600, -3_600, 86_400, -time.time()], ids=["1h", "-1h", "1d", "1970"])
async def test_f07_a_jump_of_the_wall_clock_changes_no_throttle(
    monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    quota = QUOTA | {"producer_byte_rate": 10_000}
    async with broker_and_gateway(quotas=[quota]) as (broker, running), await running.connect() as client:
        broker.script(PRODUCE, answer_produce)
        await client.send(produce(1, size=104_000) + heartbeat(2))
        told = wire.decode_response("Produce", 9, await client.receive_frame()).throttle_time_ms
        assert 300 <= told <= 450
        loop = asyncio.get_running_loop()
        started, wall, wall_ns = loop.time(), time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: wall() + jump_s)
        monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + int(jump_s * 1e9))
        assert wire.correlation_id_of(await client.receive_frame()) == 2
        assert loop.time() - started >= told / 1_000 - 0.05
        await client.send(produce(3, size=100_000))
        told = wire.decode_response("Produce", 9, await client.receive_frame()).throttle_time_ms
        # The samples are as old as they were: without the first request it would be none.
        assert 0 < told <= 11_500


async def test_f07_nothing_that_decides_reads_a_clock_of_its_own() -> None:
    """Only shells read clocks; wall time is for logs. What may read which clock is listed here."""
    allowed = {
        "gateway/net/channel.py": {"perf_counter_ns"},
        "gateway/observability/logging_setup.py": {"now", "monotonic_ns"},
        # What is written down with the time of day.
        "gateway/runtime/clock.py": {"time_ns"},
        # How long a slice of work has taken, or a pass that is to take no more than a part of the time.
        "gateway/runtime/slices.py": {"perf_counter"},
        "gateway/server/carrier.py": {"perf_counter"},
        "gateway/usage/file_sink.py": {"time", "monotonic"},
        # Certificates are valid from day to day.
        "gateway/tls/resumed.py": {"time"},
        # As tokens are.
        "gateway/upstream/librdkafka.py": {"time"},
        "gateway/upstream/login.py": {"time"},
        "gateway/upstream/token_source.py": {"time"},
        # Threads beside the loop, which wait for a disk or the cluster.
        "gateway/quota_admin/store/topic_identity.py": {"monotonic"},
        # Both: how long it was away, whichever of them stood still.
        "gateway/quota_admin/store/topic_reader.py": {"monotonic", "time"},
        "gateway/quota_admin/store/topic_store.py": {"monotonic"},
        "gateway/quota_admin/store/topic_writer.py": {"monotonic"},
        "gateway/usage/kafka_sink.py": {"monotonic"},
        "gateway/usage/sink.py": {"monotonic"},
        "gateway/server/loop_watchdog.py": {"monotonic"},
        # How often a line is written, and a snapshot made; when a span began.
        "gateway/runtime/client_log.py": {"monotonic"},
        "gateway/server/status_routes.py": {"monotonic"},
        "gateway/server/merged_status.py": {"perf_counter"},
        # How long a worker stands still for its supervisor.
        "gateway/server/link.py": {"monotonic"},
        "gateway/observability/otlp.py": {"time_ns"},
        "gateway/observability/otlp_metrics.py": {"time_ns"},
        "gateway/observability/otlp_session.py": {"monotonic"},
        # How long a command waits for a broker that follows its controller.
        "gateway/cli/quota_endpoints.py": {"monotonic"},
        # What an operator types: "five minutes ago".
        "gateway/cli/shed.py": {"now"},
        "gateway/cli/why.py": {"time"},
    }
    banned = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "now", "utcnow"}
    found = {}
    for package in ("protocol", "quotas", "gateway", "config"):
        for path in (ROOT / package).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            if read := clocks_read(path) & banned:
                found[name] = read
    unexpected = {name: read - allowed.get(name, set()) for name, read in found.items()}
    assert {name: read for name, read in unexpected.items() if read} == {}


def clocks_read(path: Path) -> set[str]:
    """Names taken from the modules that read the time."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
            names |= {alias.name for alias in node.names}
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("time", "datetime")
        ):
            names.add(node.attr)
    return names
