"""A supervisor is killed, or stands still: what becomes of its workers and of their connections. Real processes."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from config import default_config, parse_bootstrap
from gateway import app
from gateway.server.link import Link
from gateway.server.nursery import WorkerSockets
from gateway.server.worker import Start
from quotas.limits import Enforcement
from testkit import broker as scripts
from testkit import wire
from testkit.broker import PRODUCE, ScriptedBroker
from testkit.frames import fetch
from testkit.gateway import GatewayProcess, gateway_process
from testkit.process_group import members
from testkit.raw_client import Ended, RawClient, until

pytestmark = pytest.mark.integration

WORKERS = "[server]\nworkers = 2\n"


@asynccontextmanager
async def supervised(folder: Path, broker: ScriptedBroker, *, drain_timeout_ms: int) -> AsyncIterator[GatewayProcess]:
    async with gateway_process(folder, broker.port, drain_timeout_ms=drain_timeout_ms, tables=WORKERS) as process:
        await until(lambda: len(members(process.process.pid)) == 4)  # with what forks workers
        yield process


async def in_flight(broker: ScriptedBroker, process: GatewayProcess) -> tuple[RawClient, scripts.BrokerConnection]:
    """A client whose request the broker keeps."""
    broker.script(PRODUCE, scripts.silence)
    client = await process.connect()
    await client.send(wire.request("Produce", 3, correlation_id=5, acks=1, timeout_ms=1, topic_data=[]))
    await until(lambda: any(each.waiting for each in broker.connections))
    return client, next(each for each in broker.connections if each.waiting)


async def ended(process: GatewayProcess) -> list[str]:
    """Wait for the end of all processes; their log."""
    await process.exit_code()  # once none of them has its standard error
    await until(lambda: members(process.process.pid) == [])
    return process.stderr.decode().splitlines()


async def test_workers_answer_what_is_in_flight_and_end(tmp_path: Path) -> None:
    async with ScriptedBroker() as broker, supervised(tmp_path, broker, drain_timeout_ms=60_000) as process:
        client, connection = await in_flight(broker, process)
        idle = await process.connect()
        await idle.send(fetch(2))
        await idle.receive_frame()
        process.signal(signal.SIGKILL)
        assert await idle.receive_rest() == b""
        idle.close()
        for request in connection.waiting:
            connection.send(broker.reply_to(request))
        assert wire.correlation_id_of(await client.receive_frame()) == 5
        assert await client.receive_rest() == b""
        client.close()
        log = await ended(process)
    assert sorted(line.split("worker=")[1].split()[0] for line in log if "supervisor_lost" in line) == ["0", "1"]
    assert not any("Traceback" in line or "worker_killed" in line for line in log)


async def test_workers_end_after_the_drain_timeout_whatever_is_in_flight(tmp_path: Path) -> None:
    async with ScriptedBroker() as broker, supervised(tmp_path, broker, drain_timeout_ms=100) as process:
        client, _ = await in_flight(broker, process)
        process.signal(signal.SIGKILL)
        with pytest.raises(Ended):
            await client.receive_frame()
        client.close()
        log = await ended(process)
    assert not any("worker_killed" in line for line in log)


async def test_m05_a_worker_that_stands_still_is_killed_after_its_supervisor(tmp_path: Path) -> None:
    async with ScriptedBroker() as broker, supervised(tmp_path, broker, drain_timeout_ms=100) as process:
        worker = members(process.process.pid)[-1]
        os.kill(worker, signal.SIGSTOP)
        process.signal(signal.SIGKILL)
        log = await ended(process)
    killed = [line for line in log if "worker_killed" in line]
    assert [f"pid={worker} " in line for line in killed] == [True]


async def test_a_supervisor_that_stands_still_is_not_gone(tmp_path: Path) -> None:
    async with ScriptedBroker() as broker, supervised(tmp_path, broker, drain_timeout_ms=100) as process:
        before = members(process.process.pid)
        client = await process.connect()
        await client.send(fetch(1))
        await client.receive_frame()
        process.signal(signal.SIGSTOP)
        for number in range(2, 20):
            await client.send(fetch(number))
            assert wire.correlation_id_of(await client.receive_frame()) == number
        process.signal(signal.SIGCONT)
        async with await process.connect() as newcomer:
            await newcomer.send(fetch(1))
            await newcomer.receive_frame()
        assert members(process.process.pid) == before
        client.close()
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == 0
    assert b"supervisor_lost" not in process.stderr


@pytest.mark.parametrize("work", ["time.sleep(3600)", "signal.pause()", "os.kill(os.getpid(), signal.SIGSTOP)"])
async def test_a_worker_that_never_began_is_killed_with_what_forked_it(work: str) -> None:
    program = (
        "import os, signal, sys, time\n"
        "from gateway.observability.logging_setup import setup\n"
        "from gateway.server import nursery\n"
        "setup()\n"
        "nursery._END_S = 0.2\n"
        f"forked = nursery.Nursery(lambda number, sockets: {work}, longest_drain_ms=0)\n"
        "ours, theirs = nursery.WorkerSockets.pair()\n"
        "forked.fork(0, theirs)\n"
        "print('forked', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    pipe = asyncio.subprocess.PIPE
    first = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=pipe, stderr=pipe, start_new_session=True
    )
    # The pipes end with the last process that has them, shortly before it counts as ended.
    out, error = await asyncio.wait_for(first.communicate(), 60)
    assert out == b"forked\n"
    await until(lambda: members(first.pid) == [])
    assert error.count(b"worker_killed") == 1


@pytest.mark.parametrize("dies_at", ["begin", "open_store"])
async def test_a_worker_whose_supervisor_dies_while_it_begins_ends_without_a_traceback(
    dies_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: list[str] = []
    monkeypatch.setattr(app, "freeze_survivors", lambda: frozen.append(asked[-1]))
    ours, theirs = WorkerSockets.pair()
    start = Start(default_config(parse_bootstrap("127.0.0.1:1")), Enforcement.ENFORCE, {})
    asked: list[str] = []
    handlers: dict[str, Any] = {}
    link = Link(handlers, lambda: None)

    def answer(what: str) -> Any:
        asked.append(what)
        if what == dies_at:
            link.close()
        return start

    handlers |= {what: partial(answer, what) for what in ("begin", "open_store")}
    await link.open(ours.link)
    await asyncio.wait_for(app._work(None, 0, theirs), 60)
    assert asked[-1] == dies_at
    # A worker collects garbage as a single process does, from before its first client on (hazard F16).
    assert frozen == ["begin"] * (dies_at != "begin")
    for each in (ours.handover, ours.asking, theirs.handover, theirs.asking):
        each.close()
