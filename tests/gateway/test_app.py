import asyncio
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from config.host_port import HostPort
from gateway.app import Gateway, _serve_until
from gateway.observability.events import CloseCause
from testkit import broker as scripts
from testkit import wire
from testkit.broker import FETCH, PRODUCE, ScriptedBroker, blackhole, connecting_to
from testkit.forked_sluice import ForkedProcess
from testkit.frames import fetch
from testkit.gateway import (
    GatewayProcess,
    broker_and_gateway,
    free_ports,
    gateway_config,
    gateway_process,
    running_gateway,
)
from testkit.quota_stores import ALICE, alteration
from testkit.quota_stores import PRODUCE as PRODUCE_RATE
from testkit.raw_client import HOST, RawClient, refused, until

MIB = 1024 * 1024


def produce(correlation_id: int = 1) -> bytes:
    return wire.request("Produce", 3, correlation_id=correlation_id, acks=1, timeout_ms=1, topic_data=[])


async def waiting_at(broker: ScriptedBroker) -> scripts.BrokerConnection:
    """The connection on which the broker keeps a request."""
    await until(lambda: any(connection.waiting for connection in broker.connections))
    return next(connection for connection in broker.connections if connection.waiting)


def answer_waiting(connection: scripts.BrokerConnection) -> None:
    for request in connection.waiting:
        connection.send(connection.broker.reply_to(request))


# -- in this process -----------------------------------------------------------------------------------------
async def test_gateway_whose_port_is_taken_does_not_start_and_leaves_nothing_open() -> None:
    async with ScriptedBroker() as broker:
        config = gateway_config([broker.port])
        taken = config.listeners[0].model_copy(update={"bind": HostPort(HOST, broker.port)})
        gateway = Gateway(config.model_copy(update={"listeners": (taken,)}))
        open_files = len(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match=r"listeners\.tests\.bind: Address already in use"):
            await gateway.start()
        await asyncio.sleep(0.01)
        assert len(os.listdir("/proc/self/fd")) == open_files
        assert broker.connections == []


async def test_a_process_that_cannot_replace_another_says_which_brokers_do_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ports are bound already, so that it "cannot listen" would be wrong."""
    monkeypatch.setattr("gateway.app._READY_MS", 0)
    monkeypatch.setattr("gateway.app.freeze_survivors", lambda: None)

    async def begin() -> None:
        pass

    predecessor: Any = SimpleNamespace(begin=begin, sockets={}, draining=False, stop=lambda: None)
    port = free_ports(1)
    gateway = Gateway(gateway_config([port]), predecessor=predecessor)
    assert await _serve_until(gateway, asyncio.Event(), asyncio.Event(), None) == 2
    assert capsys.readouterr().err == (
        f"sluice: the brokers have not answered within 0 s: upstream ({HOST}:{port}) not reached yet; check that "
        "they run, and that this machine reaches them\n"
    )


async def test_j02_draining_gateway_is_not_ready_and_ends_as_soon_as_the_last_reply_has_left() -> None:
    async with broker_and_gateway(drain_timeout_ms=60_000) as (broker, running):
        async with await running.connect() as client:
            broker.script(PRODUCE, scripts.silence)
            await client.send(produce(5))
            connection = await waiting_at(broker)
            port = running.port
            draining = asyncio.create_task(running.gateway.drain(hurry=asyncio.Event()))
            await until(lambda: running.gateway.why_not_ready() == "draining")
            assert await refused(port)
            assert not draining.done()
            answer_waiting(connection)
            assert wire.correlation_id_of(await client.receive_frame()) == 5
            assert await client.receive_rest() == b""
            await asyncio.wait_for(draining, 60)
        await running.ended_by(CloseCause.DRAINED)


async def test_store_that_hangs_does_not_keep_usage_records_from_being_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Usage:
        stopped = False

        async def stop(self) -> None:
            self.stopped = True

    monkeypatch.setattr("gateway.app._STORE_GRACE_S", 0.05)
    gateway = Gateway(gateway_config([9], quota_store={"write_timeout_ms": 50}))
    await gateway.start()
    goes_on = asyncio.Event()
    monkeypatch.setattr(gateway.live_quotas.store, "write", lambda _alteration: goes_on.wait())
    gateway.alterations.alter(alteration((ALICE, PRODUCE_RATE, 1.0)), lambda *_answer: None)
    monkeypatch.setattr(gateway, "usage", usage := Usage())
    await asyncio.wait_for(gateway.stop(), 60)
    assert usage.stopped
    goes_on.set()
    await gateway.alterations.finish()


async def test_drain_takes_no_further_request_of_a_connection_that_is_owed_a_reply() -> None:
    async with broker_and_gateway() as (broker, running), await running.connect() as client:
        broker.script(PRODUCE, scripts.silence)
        await client.send(produce(5))
        connection = await waiting_at(broker)
        running.listener.drain()
        await client.send(produce(6))
        await asyncio.sleep(0.05)
        answer_waiting(connection)
        assert wire.correlation_id_of(await client.receive_frame()) == 5
        assert await client.receive_rest() == b""
        assert [request.correlation_id for request in connection.requests] == [5]


async def test_j03_drain_ends_at_its_deadline_whatever_is_unanswered() -> None:
    async with broker_and_gateway(drain_timeout_ms=100) as (broker, running), await running.connect() as client:
        broker.script(FETCH, scripts.silence)
        await client.send(fetch())
        await waiting_at(broker)
        await asyncio.wait_for(running.gateway.drain(hurry=asyncio.Event()), 60)
        assert await client.receive_rest() == b""
        await running.ended_by(CloseCause.DRAIN_TIMEOUT)


async def test_j04_drain_gives_up_what_is_on_its_way_to_a_broker() -> None:
    with blackhole() as port:
        before = connecting_to(port) + 1  # discovery's attempt continues all the time
        upstream = {"connect_timeout_ms": 600_000}
        async with running_gateway(port, upstream=upstream, drain_timeout_ms=100) as running:
            async with await running.connect() as client:
                await client.send(fetch())
                await until(lambda: connecting_to(port) == before + 1)
                await asyncio.wait_for(running.gateway.drain(hurry=asyncio.Event()), 60)
                assert await client.receive_rest() == b""
            await until(lambda: connecting_to(port) <= before)
        await until(lambda: connecting_to(port) == before - 1)


# -- as a process --------------------------------------------------------------------------------------------
async def held_produce(broker: ScriptedBroker, process: GatewayProcess) -> RawClient:
    """A client whose produce request is in flight."""
    broker.script(PRODUCE, scripts.silence)
    client = await process.connect()
    await client.send(produce(5))
    await waiting_at(broker)
    return client


@pytest.mark.integration
async def test_j01_sigterm_with_idle_clients_ends_them_and_the_process(tmp_path: Path) -> None:
    async with ScriptedBroker() as broker, gateway_process(tmp_path, broker.port) as process:
        async with await process.connect() as client, await process.connect() as silent:
            await client.send(fetch(1))
            await client.receive_frame()
            process.signal(signal.SIGTERM)
            assert await client.receive_rest() == await silent.receive_rest() == b""
        assert await process.exit_code() == 0
    assert not is_listening(process.port)


@pytest.mark.integration
async def test_j02_sigterm_lets_the_produce_in_flight_have_its_reply(tmp_path: Path) -> None:
    async with ScriptedBroker() as broker, gateway_process(tmp_path, broker.port) as process:
        async with await held_produce(broker, process) as client:
            process.signal(signal.SIGTERM)
            await until(lambda: not is_listening(process.port))
            assert await client.silent_for(0.1)
            answer_waiting(await waiting_at(broker))
            assert wire.correlation_id_of(await client.receive_frame()) == 5
            assert await client.receive_rest() == b""
        assert await process.exit_code() == 0


@pytest.mark.integration
async def test_j05_second_sigterm_ends_the_drain_at_once(tmp_path: Path) -> None:
    async with (
        ScriptedBroker() as broker,
        gateway_process(tmp_path, broker.port, drain_timeout_ms=60_000) as process,
        await held_produce(broker, process) as client,
    ):
        process.signal(signal.SIGTERM)
        await until(lambda: not is_listening(process.port))
        assert process.running
        process.signal(signal.SIGTERM)
        assert await client.receive_rest() == b""
        assert await process.exit_code(seconds=60) == 0


@pytest.mark.integration
async def test_sigterm_lets_slow_clients_take_the_whole_of_what_they_are_owed(tmp_path: Path) -> None:
    # More than the kernel takes at once, for some of them by less than what makes the gateway stop reading.
    sizes = [size * MIB // 10 for size in range(25, 36, 2)]
    async with ScriptedBroker() as broker, gateway_process(tmp_path, broker.port) as process:
        clients = []
        for size in sizes:
            broker.script(FETCH, scripts.huge(size))
            client = await RawClient.connect(process.port, receive_buffer_bytes=65_536)
            await client.send(fetch())
            clients.append(client)
            # The gateway's own connections look like a client's until they have asked something.
            await until(lambda: sum(bool(each.requests) for each in broker.client_connections) == len(clients))
        await asyncio.sleep(0.1)
        process.signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        whole = []
        for client in clients:
            whole.append(len(await client.receive_rest()) - 8)
            client.close()
        assert whole == sizes
        assert await process.exit_code() == 0


@pytest.mark.integration
async def test_f15_stray_signals_do_not_end_the_gateway(tmp_path: Path) -> None:
    async with ScriptedBroker() as broker, gateway_process(tmp_path, broker.port) as process:
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE):
            process.signal(number)
        await asyncio.sleep(0.1)
        assert process.running
        async with await process.connect() as client:
            await client.send(fetch(2))
            assert wire.correlation_id_of(await client.receive_frame()) == 2
        process.signal(signal.SIGINT)
        assert await process.exit_code() == 0
        assert b"Traceback" not in process.stderr


def is_listening(port: int) -> bool:
    """Whether a loopback port is listened on, found out without connecting to it."""
    wanted = f"0100007F:{port:04X}"
    lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    return any(line.split()[1] == wanted and line.split()[3] == "0A" for line in lines)


@pytest.mark.slow
async def test_gateway_that_waits_for_its_quotas_says_so_and_can_be_stopped(tmp_path: Path) -> None:
    first = free_ports(4)
    file = tmp_path / "sluice.toml"
    file.write_text(
        f'[upstream]\nbootstrap = ["{HOST}:{first}"]\n[admin]\nbind = "{HOST}:{first + 1}"\n'
        f'[[listeners]]\nname = "a"\nbind = "{HOST}:{first + 2}"\nbroker_ports = 1\n'
        '[quota_store]\nkind = "topic"\n'
    )
    process = ForkedProcess()
    await process.start(["serve", "--config", str(file)])
    try:
        assert await _readiness(first + 1) == (503, "quota store not read yet\n")
        assert await refused(first + 2)
        process.send_signal(signal.SIGTERM)
        out, err = await asyncio.wait_for(process.communicate(), 60)
    finally:
        process.send_signal(signal.SIGKILL)
        code = await process.wait()
        process.release()
    assert (code, out) == (0, b"")
    assert b"Traceback" not in err


async def _readiness(port: int) -> tuple[int, str]:
    for _ in range(3_000):
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://{HOST}:{port}/readyz") as answer:
                return answer.status, await answer.text()
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.02)
    raise AssertionError("the admin port does not answer")
