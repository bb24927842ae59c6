import asyncio
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from gateway.handlers.metadata import MetadataHandler
from gateway.net.channel import FULL_READ_BYTES, FULL_READS_PER_TURN, HIGH_WATER_BYTES
from gateway.observability.events import CloseCause, Side
from gateway.session.mute import MuteReason
from protocol.api_keys import ApiKey
from testkit import broker as scripts
from testkit import wire
from testkit.broker import CREATE_TOPICS, FETCH, BrokerConnection, ScriptedBroker, blackhole, connecting_to
from testkit.frames import create_topics, fetch, heartbeat, heartbeat_reply, metadata, produce_without_name
from testkit.gateway import RunningGateway, broker_and_gateway, gateway_process, running_gateway
from testkit.raw_client import settled, until

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def impatient_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for vanished clients more often, to save time."""
    monkeypatch.setattr("gateway.net.peer_close.INTERVAL_S", 0.1)


def produce(correlation_id: int = 1, *, size: int = 0, acks: int = 1) -> bytes:
    partition = {"index": 0, "records": bytes(size)}
    topics = [{"name": "t", "partition_data": [partition]}]
    return wire.request("Produce", 3, correlation_id=correlation_id, acks=acks, timeout_ms=1, topic_data=topics)


async def only_upstream(connections: list[BrokerConnection]) -> BrokerConnection:
    """The one connection that was made for the one client."""
    (connection,) = connections
    await asyncio.wait_for(connection.ended.wait(), 60)
    return connection


# -- the life of a connection --------------------------------------------------------------------------------
async def test_b05_connection_that_lasts_has_the_kernel_look_whether_its_broker_is_there() -> None:
    async with broker_and_gateway() as (_, running), await running.connect() as client:
        await client.send(fetch(1))
        await client.receive_frame()
        upstream = running.channels[0]._upstream
        assert upstream is not None
        connection = upstream.get_extra_info("socket")
        await until(lambda: connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1)


async def test_f09_exception_in_our_own_code_closes_that_connection_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_and_gateway() as (_, running), await running.connect() as other:
        await other.send(fetch(1))
        await other.receive_frame()
        async with await running.connect() as client:
            await until(lambda: len(running.channels) == 2)

            def broken(*_of: object, **_and: object) -> None:
                raise RuntimeError("bug")

            with monkeypatch.context() as patched:
                patched.setattr(MetadataHandler, "on_request", broken)
                await client.send(metadata(2))
                assert await client.receive_rest() == b""
        await running.ended_by(CloseCause.INTERNAL_ERROR)
        await other.send(fetch(3))
        assert wire.correlation_id_of(await other.receive_frame()) == 3
        running.expect_internal_error()


async def test_m04_topics_without_names_are_no_bug_of_the_core(tmp_path: Path) -> None:
    """Of a process, whose core is compiled where this test's is."""
    tables = f'[usage]\nkind = "files"\ndirectory = "{tmp_path}"\ntopics = true'
    async with ScriptedBroker() as broker, gateway_process(tmp_path, broker.port, tables=tables) as process:
        async with await process.connect() as client:
            for number in range(9):
                frame = produce_without_name(number, version=(9, 12)[number % 2])
                await client.send(frame)
                reply = await client.receive_frame()
                assert wire.correlation_id_of(reply) == number
                assert reply.endswith(frame[12:])  # the broker's echo: it got the request as it was
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == 0
        assert b"channel_failed" not in process.stderr


async def test_f09_exception_at_a_look_closes_that_connection_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_and_gateway() as (_, running), await running.connect() as other:
        async with await running.connect() as client:
            await client.send(fetch(1))
            await client.receive_frame()
            (channel,) = [each for each in running.channels if each._upstream is not None]
            upstream = channel._upstream
            assert upstream is not None
            with monkeypatch.context() as patched:
                patched.setattr(channel, "_upstream", Transport())  # which has no socket
                await running.ended_by(CloseCause.INTERNAL_ERROR)
            upstream.abort()
        (left,) = running.channels
        await until(lambda: left._outlived)
        await other.send(fetch(3))
        assert wire.correlation_id_of(await other.receive_frame()) == 3
        running.expect_internal_error()


class Transport:
    """Takes everything, and records whether to read."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def write(self, data: bytes) -> None:
        pass

    def pause_reading(self) -> None:
        self.told.append("pause")

    def resume_reading(self) -> None:
        self.told.append("resume")

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    abort = close


@pytest.mark.slow
async def test_a_client_that_sends_much_lets_others_have_their_turn() -> None:
    async with broker_and_gateway() as (_, running), await running.connect() as client:
        await client.send(fetch(1))
        await client.receive_frame()
        channel, transport = running.channels[0], Transport()
        await until(lambda: channel._upstream_watched)  # which asks the real one
        kept = channel._transport, channel._upstream
        channel._transport, channel._upstream = transport, Transport()  # type: ignore[assignment]
        frame = produce(size=2 * FULL_READS_PER_TURN * FULL_READ_BYTES)
        full = [frame[at * FULL_READ_BYTES :][:FULL_READ_BYTES] for at in range(FULL_READS_PER_TURN)]
        # One that is not full is the last of its turn.
        for read in [*full[:-1], full[-1][:1_000], full[-1][1_000:] + frame[:1_000], *full[1:]]:
            assert transport.told == []
            channel.data_received(read)
        assert transport.told == ["pause"]
        await asyncio.sleep(0)
        assert transport.told == ["pause", "resume"]
        channel._transport, channel._upstream = kept


# -- half a request ------------------------------------------------------------------------------------------
async def test_a08_relayed_request_cut_off_by_fin_never_becomes_whole_at_the_broker() -> None:
    async with broker_and_gateway() as (broker, running), await running.connect() as client:
        frame = produce(size=100_000)
        await client.send(frame[:70_000])
        await until(lambda: broker.client_connections and broker.client_connections[0].received_bytes)
        client.half_close()
        await running.ended_by(CloseCause.CLIENT_CLOSED)
        connection = await only_upstream(broker.client_connections)
        assert connection.requests == []
        assert len(connection.partial) < len(frame)


@pytest.mark.parametrize("frame", [produce(size=100_000), metadata(1, "t")], ids=["relayed", "collected"])
async def test_a09_request_cut_off_by_rst_frees_both_legs(frame: bytes) -> None:
    async with broker_and_gateway() as (broker, running), await running.connect() as client:
        await client.send(fetch(1))
        await client.receive_frame()
        await client.send(frame[: len(frame) // 2])
        await until(lambda: running.channels[0].session.bytes_from_client > len(fetch(1)))
        client.reset()
        await running.ended_by(CloseCause.CLIENT_CLOSED)
        connection = await only_upstream(broker.client_connections)
        assert [request.api_key for request in connection.requests] == [FETCH]


# -- RST -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("script", "received"), [(scripts.silence, 0), (scripts.huge(32 * MIB), MIB)])
async def test_b06_rst_before_or_in_the_middle_of_a_reply_frees_both_legs(script: Any, received: int) -> None:
    async with broker_and_gateway() as (broker, running):
        broker.script(FETCH, script)
        client = await running.connect(receive_buffer_bytes=8192)
        await client.send(fetch())
        await until(lambda: broker.client_connections and broker.client_connections[0].received_bytes)
        await until(lambda: running.channels[0].session.bytes_from_upstream >= received)
        client.reset()
        await running.ended_by(CloseCause.CLIENT_CLOSED)
        await only_upstream(broker.client_connections)


async def test_b06_rst_while_the_broker_is_being_connected_frees_both_legs() -> None:
    with blackhole() as port:
        before = connecting_to(port) + 1  # discovery's attempt continues all the time
        async with running_gateway(port, upstream={"connect_timeout_ms": 60_000}) as running:
            await until(lambda: connecting_to(port) == before)
            client = await running.connect()
            await client.send(fetch())
            await until(lambda: connecting_to(port) == before + 1)
            client.reset()
            await running.ended_by(CloseCause.CLIENT_CLOSED)
            await until(lambda: connecting_to(port) == before)


async def test_b22_urgent_bytes_are_no_part_of_the_stream_and_hold_nothing_up() -> None:
    async with broker_and_gateway() as (_, running), await running.connect() as client:
        for number in range(3):
            frame = fetch(number)
            await client.send(frame[:9])
            client.sock.send(b"!", socket.MSG_OOB)
            await client.send(frame[9:])
            assert wire.correlation_id_of(await client.receive_frame()) == number


@pytest.mark.slow
async def test_b22_a_client_that_closes_its_window_for_a_while_gets_all_of_its_answer() -> None:
    async with broker_and_gateway() as (broker, running):
        broker.script(FETCH, scripts.huge(8 * MIB))
        async with await running.connect(receive_buffer_bytes=4_096) as client:
            await client.send(fetch(7))
            await asyncio.sleep(0.7)  # the kernel probes the window that is closed
            reply = await client.receive_frame()
    assert wire.correlation_id_of(reply) == 7
    assert len(reply) > 8 * MIB


async def test_b07_half_closed_client_gets_the_replies_it_is_owed_then_fin() -> None:
    async with broker_and_gateway() as (broker, running), await running.connect() as client:
        broker.script(FETCH, scripts.slow(0.05))
        await client.send(fetch(1) + fetch(2))
        client.half_close()
        assert wire.correlation_id_of(await client.receive_frame()) == 1
        assert wire.correlation_id_of(await client.receive_frame()) == 2
        assert await client.receive_rest() == b""
        await running.ended_by(CloseCause.CLIENT_CLOSED)
        await only_upstream(broker.client_connections)


async def test_refused_client_that_goes_on_sending_gets_its_reply_and_fin() -> None:
    async with broker_and_gateway() as (broker, running), await running.connect() as client:
        broker.script(FETCH, scripts.slow(0.2))
        await client.send(fetch(1) + (-5).to_bytes(4, "big", signed=True))
        await asyncio.sleep(0.05)
        await client.send(bytes(50_000))
        assert wire.correlation_id_of(await client.receive_frame()) == 1
        # A reset would raise.
        assert await asyncio.get_running_loop().sock_recv(client.sock, 1) == b""


async def test_half_closed_client_that_vanishes_does_not_wait_for_its_broker() -> None:
    async with broker_and_gateway() as (broker, running), await running.connect() as client:
        broker.script(FETCH, scripts.silence)
        await client.send(fetch(1))
        client.half_close()
        await until(lambda: any(channel.session.muted for channel in running.channels))
        client.reset()
        await running.ended_by(CloseCause.CLIENT_CLOSED)
        await only_upstream(broker.client_connections)


async def test_b07_half_closed_client_whose_broker_dies_is_freed() -> None:
    async with broker_and_gateway() as (broker, running), await running.connect() as client:
        broker.script(FETCH, scripts.silence)
        await client.send(fetch(1))
        client.half_close()
        await until(lambda: broker.client_connections and broker.client_connections[0].waiting)
        broker.client_connections[0].abort()
        assert await client.receive_rest() == b""
        await running.ended_by(CloseCause.UPSTREAM_CLOSED)


# -- back pressure -------------------------------------------------------------------------------------------
def client_buffer_bytes(running: RunningGateway) -> int:
    """What the gateway holds for its one client."""
    transport = running.channels[0]._transport
    assert transport is not None
    return transport.get_write_buffer_size()


async def test_b08_client_that_never_reads_stops_the_reading_of_its_broker() -> None:
    """When it is cut: `test_stalled_write.py` and `hazards/test_throttled_connections.py`."""
    async with broker_and_gateway() as (broker, running):
        broker.script(FETCH, scripts.huge(64 * MIB))
        async with await running.connect(receive_buffer_bytes=8192) as client:
            await client.send(fetch(1) + fetch(2) + fetch(3))
            await until(lambda: running.channels and running.channels[0].session.muted & MuteReason.CLIENT_FULL)
            assert await settled(lambda: running.channels[0].session.bytes_from_upstream) < 32 * MIB
            assert client_buffer_bytes(running) <= HIGH_WATER_BYTES + MIB


async def test_b11_broker_that_never_reads_stops_the_reading_of_its_client_and_is_given_up() -> None:
    async with (
        broker_and_gateway(upstream_write_timeout_ms=400) as (broker, running),
        await running.connect() as client,
    ):
        broker.never_reads = True
        sending = asyncio.create_task(client.send(produce(size=MIB) * 64))
        most = 0

        def given_up() -> bool:
            nonlocal most
            for channel in running.channels:
                assert channel.session.bytes_from_client < 32 * MIB
                if channel._upstream is not None:
                    most = max(most, channel._upstream.get_write_buffer_size())
            return running.closed(CloseCause.UPSTREAM_STALLED) == 1

        await until(given_up)
        assert 0 < most <= HIGH_WATER_BYTES + MIB
        sending.cancel()


async def test_time_in_back_pressure_is_counted_while_it_lasts_and_ends_with_the_channel() -> None:
    async with broker_and_gateway() as (broker, running), await running.connect() as client:
        loop = asyncio.get_running_loop()
        pressure = running.listener.back_pressure

        def total_ms(side: Side) -> int:
            return pressure.total_ms(side, int(loop.time() * 1000))

        broker.never_reads = True
        sending = asyncio.create_task(client.send(produce(size=MIB) * 64))
        await until(lambda: total_ms(Side.UPSTREAM) >= 20)
        assert running.gateway.registry.get_sample_value(
            "gateway_back_pressure_seconds_total", {"listener": running.listener.name, "side": "upstream"}
        )
        sending.cancel()
        client.reset()
        running.channels[0].close(CloseCause.CLIENT_CLOSED, abort=True)
        ended_ms = total_ms(Side.UPSTREAM)
        await asyncio.sleep(0.05)
        assert total_ms(Side.UPSTREAM) == ended_ms
        assert total_ms(Side.CLIENT) == 0


async def test_received_bytes_are_what_both_sides_sent_while_a_connection_is_open_and_after_its_end() -> None:
    async with broker_and_gateway() as (broker, running):

        def received(side: Side) -> float | None:
            labels = {"listener": running.listener.name, "side": side.value}
            return running.gateway.registry.get_sample_value("gateway_received_bytes_total", labels)

        broker.script(
            ApiKey.HEARTBEAT, lambda connection, request: connection.send(heartbeat_reply(request.correlation_id))
        )
        sent = replied = 0
        for _ in range(2):
            async with await running.connect() as client:
                await client.send(heartbeat(1))
                await client.receive_frame()
                sent += len(heartbeat(1))
                replied += len(heartbeat_reply(1))
                assert (received(Side.CLIENT), received(Side.UPSTREAM)) == (sent, replied)
            await until(lambda: not running.channels)
            assert (received(Side.CLIENT), received(Side.UPSTREAM)) == (sent, replied)


# -- clients that vanish while no one reads from them ----------------------------------------------------------
@pytest.mark.parametrize("with_reset", [False, True], ids=["fin", "rst"])
async def test_c08_client_that_vanishes_while_muted_frees_both_legs(*, with_reset: bool) -> None:
    quota = {"default_client_id": True, "controller_mutation_rate": 1.0}
    async with broker_and_gateway(quotas=[quota]) as (broker, running), await running.connect() as client:
        await client.send(create_topics(1, ("t", 60), version=4))
        reply = wire.decode_response("CreateTopics", 4, await client.receive_frame())
        assert reply.throttle_time_ms > 20_000
        await client.send(fetch(2))
        if with_reset:
            client.reset()
        else:
            client.close()
        await running.ended_by(CloseCause.CLIENT_CLOSED)
        connection = await only_upstream(broker.client_connections)
        assert CREATE_TOPICS in [request.api_key for request in connection.requests]
        assert FETCH not in [request.api_key for request in connection.requests]


async def test_a_produce_whose_fault_is_in_its_last_piece_leaves_nothing_that_is_waited_for() -> None:
    topics = [{"name": "t", "partition_data": [{"index": 0, "records": bytes(1)}]} for _ in range(601)]
    request = wire.request("Produce", 3, acks=1, timeout_ms=1, topic_data=topics)
    quotas = [{"topic": "t", "producer_byte_rate": 10_000_000}]
    async with broker_and_gateway(quotas=quotas) as (_, running), await running.connect() as client:
        await client.send(request[:1_200])
        await until(lambda: [channel.session.bytes_from_client for channel in running.channels] == [1_200])
        await client.send(request[1_200:])
        await until(lambda: not running.channels)
