"""What a failure, a restart or an operator's signal may not do to clients (L)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from testkit import wire
from testkit.broker import ScriptedBroker
from testkit.frames import heartbeat
from testkit.gateway import gateway_process
from testkit.raw_client import Ended, RawClient, until

pytestmark = pytest.mark.asyncio


@pytest.mark.integration
async def test_l02_drain_loses_no_reply_of_a_client_that_reads_slowly_and_goes_on_sending(tmp_path: Path) -> None:
    async with (
        ScriptedBroker() as broker,
        gateway_process(tmp_path, broker.port, drain_timeout_ms=20_000) as process,
        await RawClient.connect(process.port, receive_buffer_bytes=8_192) as client,
    ):
        sent = 0

        async def go_on_sending() -> None:
            nonlocal sent
            try:
                while True:
                    await client.send(heartbeat(sent, group="g" * 2_000))
                    sent += 1
            except (ConnectionError, TimeoutError):
                pass

        sending = asyncio.create_task(go_on_sending())
        await until(lambda: sum(len(each.requests) for each in broker.client_connections) > 200)
        process.signal(signal.SIGTERM)
        received = 0

        async def take_replies() -> None:
            nonlocal received
            while True:
                assert wire.correlation_id_of(await client.receive_frame()) == received
                received += 1
                if received < 200:
                    await asyncio.sleep(0.002)

        with pytest.raises(Ended, match="after 0 bytes"):
            await take_replies()
        sending.cancel()
        carried_out = max(len(each.requests) for each in broker.client_connections)
        assert sent > carried_out
        assert received == carried_out
        assert await process.exit_code() == 0


@pytest.mark.integration
async def test_l06_bytes_that_came_during_a_pause_are_read_before_deadlines_fire(tmp_path: Path) -> None:
    timeouts = dict.fromkeys(("first_frame_timeout_ms", "frame_timeout_ms", "idle_timeout_ms"), 1_000)
    async with ScriptedBroker() as broker, gateway_process(tmp_path, broker.port, **timeouts) as process:
        clients = [await process.connect() for _ in range(10)]
        request = heartbeat(7)
        # Half of them have begun a frame, half of them are about to be idle.
        for at, client in enumerate(clients):
            if at % 2:
                await client.send(heartbeat(6))
                await client.receive_frame()
            else:
                await client.send(request[:20])
        await asyncio.sleep(0.2)
        process.signal(signal.SIGSTOP)
        for at, client in enumerate(clients):
            await client.send(request if at % 2 else request[20:])
        await asyncio.sleep(3.0)
        process.signal(signal.SIGCONT)
        for client in clients:
            assert wire.correlation_id_of(await client.receive_frame()) == 7
        # A deadline after the pause counts.
        await asyncio.gather(*(client.receive_rest() for client in clients))
        for client in clients:
            client.close()


@pytest.mark.integration
async def test_f08_busy_cores_slow_clients_down_and_let_no_deadline_fire(tmp_path: Path) -> None:
    async with ScriptedBroker() as broker, gateway_process(tmp_path, broker.port) as process:
        program = "while True: pass"
        busy = [
            await asyncio.create_subprocess_exec(sys.executable, "-c", program)
            for _ in range(2 * len(os.sched_getaffinity(0)))
        ]
        try:
            for _ in range(10):
                async with await process.connect() as client:
                    for number in range(10):
                        await client.send(heartbeat(number))
                        assert wire.correlation_id_of(await client.receive_frame()) == number
        finally:
            for each in busy:
                each.kill()
                await each.wait()
        await process.metric_is("gateway_connections_closed_total", 10)
        assert await process.metric("gateway_connections_closed_total", cause="client_closed") == 10


@pytest.mark.integration
async def test_l08_signals_at_the_very_end_do_not_change_the_exit_code(tmp_path: Path) -> None:
    async with ScriptedBroker() as broker, gateway_process(tmp_path, broker.port) as process:
        while process.running:
            for number in (signal.SIGTERM, signal.SIGHUP):
                process.signal(number)
            await asyncio.sleep(0.001)
        assert await process.exit_code() == 0
