"""Hazards of transport peers (B) that are about time: clients that say nothing, little, or are gone."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gateway.observability.events import CloseCause
from gateway.upstream import keepalive
from testkit import broker as scripts
from testkit import wire
from testkit.broker import FETCH
from testkit.crowd import connect, connect_all, is_served
from testkit.faults.cable import Cable, cable
from testkit.faults.effects import Parted
from testkit.frames import fetch
from testkit.gateway import broker_and_gateway
from testkit.raw_client import until


async def test_b01_b02_b04_silent_and_dribbling_clients_are_closed_while_honest_ones_are_served() -> None:
    """The campaign with 5,000 of them is `python -m benchmarks.connections.slowloris`."""
    async with broker_and_gateway(first_frame_timeout_ms=300) as (broker, running):
        silent = await connect_all(running.port, 60)
        dribbling = await connect_all(running.port, 60)
        honest = await connect(running.port)
        for byte in fetch()[:5]:
            for client in dribbling:
                with contextlib.suppress(ConnectionError):  # on a slow machine its time is over before the last byte
                    await client.send(bytes([byte]))
            assert await is_served(honest)
            await asyncio.sleep(0.03)
        await running.ended_by(CloseCause.FIRST_FRAME_TIMEOUT, 120)
        assert await is_served(honest)
        assert len(broker.client_connections) == 1
        for client in [*silent, *dribbling, honest]:
            client.close()


@pytest.mark.slow
async def test_b03_slow_link_that_keeps_the_minimum_rate_is_served() -> None:
    bounds = {"first_frame_timeout_ms": 300, "frame_timeout_ms": 300, "min_frame_bytes_per_s": 100_000}
    async with broker_and_gateway(**bounds) as (_, running):
        client = await connect(running.port)
        frame = wire.request("Produce", 3, correlation_id=9, acks=1, timeout_ms=1, topic_data=[], client_id="c" * 20)
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
_SILENT_CLIENT = """
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
s.sendall(bytes.fromhex(sys.argv[3]))
s.recv(4)
print("served", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def pulled() -> Iterator[Cable]:
    """A link to a network namespace."""
    with ExitStack() as stack:
        try:
            made = stack.enter_context(cable("b05", "10.231.77"))
        except OSError as exc:
            pytest.skip(str(exc))
        yield made


@pytest.mark.integration
async def test_b05_peer_behind_a_pulled_cable_is_given_up_and_counted(
    pulled: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepalive, "IDLE_S", 1)
    monkeypatch.setattr(keepalive, "INTERVAL_S", 1)
    monkeypatch.setattr(keepalive, "PROBES", 2)
    monkeypatch.setattr(keepalive, "UNACKNOWLEDGED_MS", 3_000)
    listener = {"bind": f"{pulled.ours}:0", "advertised_host": pulled.ours}
    async with broker_and_gateway(listener=listener, write_timeout_ms=1_000) as (broker, running):
        client = await asyncio.create_subprocess_exec(
            *pulled.prefix, sys.executable, "-c", _SILENT_CLIENT, pulled.ours, str(running.port), fetch().hex(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert client.stdout is not None
            assert await asyncio.wait_for(client.stdout.readline(), 60) == b"served\n"
            with Parted(pulled.link):
                await until(lambda: not running.channels)
                await running.ended_by(CloseCause.CLIENT_UNREACHABLE)
                await until(lambda: broker.client_connections[0].ended.is_set())
        finally:
            client.kill()
            await client.wait()
