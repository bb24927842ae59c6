"""Hazards of process and host (F), and the floods of B, on `sluice serve` as it is run: limits, faults, memory."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from testkit import wire
from testkit.broker import ScriptedBroker
from testkit.crowd import is_served
from testkit.frames import fetch, metadata
from testkit.gateway import GatewayProcess, gateway_process
from testkit.raw_client import HOST, until

pytestmark = pytest.mark.integration


@asynccontextmanager
async def broker_and_process(folder: Path, **options: Any) -> AsyncIterator[tuple[ScriptedBroker, GatewayProcess]]:
    async with ScriptedBroker() as broker, gateway_process(folder, broker.port, **options) as process:
        yield broker, process


@pytest.fixture
def crowd() -> Iterator[list[socket.socket]]:
    """Sockets that are closed at the end."""
    sockets: list[socket.socket] = []
    yield sockets
    for each in sockets:
        each.close()


async def connect_all(port: int, count: int, crowd: list[socket.socket]) -> None:
    """So many connections of which the kernel at least has the handshake."""
    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        crowd.append(sock)
        with suppress(BlockingIOError):
            sock.connect((HOST, port))
        if len(crowd) % 50 == 0:
            await asyncio.sleep(0)


async def end(process: GatewayProcess) -> str:
    """Stop it; what it had to say."""
    process.signal(signal.SIGTERM)
    process.signal(signal.SIGTERM)
    assert await process.exit_code() == 0
    return process.stderr.decode()


# -- descriptors ---------------------------------------------------------------------------------------------
async def test_f01_with_256_descriptors_1000_clients_wait_and_open_connections_are_served(
    tmp_path: Path, crowd: list[socket.socket]
) -> None:
    limited = ("prlimit", "--nofile=256:256")
    async with broker_and_process(tmp_path, prefix=limited) as (_, process):
        established = [await process.connect() for _ in range(5)]
        assert all([await is_served(client) for client in established])
        await connect_all(process.port, 1000, crowd)
        cap = await process.metric("gateway_overall_connections_limit")
        assert 50 <= cap <= 100
        await process.metric_is("gateway_connections_active", cap)
        assert await process.metric("gateway_accept_failures_total") == 0
        await process.metric_is("gateway_accept_delays_total", 1, cause="no_slot")
        assert process.open_files() < 256
        before_s = process.cpu_s()
        await asyncio.sleep(1)
        assert process.cpu_s() - before_s < 0.5
        assert all([await is_served(client) for client in established])
        while crowd:
            crowd.pop().close()
        newcomer = await process.connect()
        assert await is_served(newcomer)
        for client in [*established, newcomer]:
            client.close()
        assert "Traceback" not in await end(process)


# -- failing system calls ------------------------------------------------------------------------------------
@pytest.fixture
def strace() -> None:
    if shutil.which("strace") is None:
        pytest.skip("needs strace to inject faults")
    probe = subprocess.run(["strace", "-D", "-o", "/dev/null", "true"], check=False, capture_output=True)
    if probe.returncode != 0:
        pytest.skip("strace may not trace here")


def injecting(call: str, error: str, when: str) -> tuple[str, ...]:
    inject = f"inject={call}:error={error}:when={when}"
    # -D: the process that we start is the gateway itself, the tracer is its grandchild.
    return ("strace", "-D", "-f", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject)


@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize(
    "error",
    [
        *("EMFILE", "ECONNABORTED"),
        *(pytest.param(each, marks=pytest.mark.campaign) for each in ("ENFILE", "ENOBUFS", "ENOMEM", "EPROTO")),
    ],
)
async def test_f02_listener_survives_what_accept_can_fail_with(tmp_path: Path, error: str) -> None:
    # Every other accept fails, for ever.
    async with broker_and_process(tmp_path, prefix=injecting("accept4", error, "1+2")) as (_, process):
        for _ in range(4):
            async with await process.connect() as client:
                assert await is_served(client)
        failures = await process.metric("gateway_accept_failures_total")
        assert (failures > 0) is (error in ("EMFILE", "ENFILE", "ENOBUFS", "ENOMEM"))
        assert process.running


@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize(("call", "error"), [("connect", "EADDRNOTAVAIL"), ("socket", "EMFILE")])
async def test_f03_client_whose_broker_can_not_be_connected_is_closed_and_others_are_served(
    tmp_path: Path, call: str, error: str
) -> None:
    # Late enough to leave the start alone; then every third.
    prefix = injecting(call, error, "12+3")
    async with broker_and_process(tmp_path, prefix=prefix, first_frame_timeout_ms=60_000) as (_, process):
        served = []
        for _ in range(24):
            async with await process.connect() as client:
                served.append(await is_served(client))
        assert served.count(False) >= 3
        assert served.count(True) >= 8
        refused = await process.metric("gateway_connections_closed_total", cause="upstream_refused")
        assert refused == served.count(False)
        assert process.running


# -- memory --------------------------------------------------------------------------------------------------
CGROUPS = Path("/sys/fs/cgroup/memory")
MIB = 1024 * 1024


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A group of processes that may use 512 MiB together."""
    group = CGROUPS / f"sluice-f04-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(512 * MIB))
    except OSError:
        pytest.skip("needs a cgroup v1 memory controller that this user may use")
    yield group
    for _ in range(50):
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)


async def test_f04_attack_mix_in_512_mib_ends_without_the_oom_killer(
    tmp_path: Path, cgroup: Path, crowd: list[socket.socket]
) -> None:
    into = ("sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$0" "$@"')
    async with broker_and_process(tmp_path, prefix=into) as (_, process):
        good = await process.connect()
        assert await is_served(good)
        assert str(process.process.pid) in (cgroup / "cgroup.procs").read_text().split()
        half = metadata(1, version=4)
        # Heads of requests that are collected whole, followed by most of what they announce; and silent crowds.
        hoard = (60_000).to_bytes(4, "big") + half[4:] + bytes(50_000)
        await connect_all(process.port, 2_000, crowd)
        await asyncio.sleep(1)
        for sock in crowd[:1_000]:
            with suppress(OSError):
                sock.send(hoard)
        never_read = fetch() * 2_000
        for sock in crowd[1_000:1_030]:
            with suppress(OSError):
                sock.send(never_read)
        await asyncio.sleep(2)
        assert process.running
        assert process.rss_bytes() < 512 * MIB
        assert await is_served(good)
        good.close()
        assert int((cgroup / "memory.failcnt").read_text()) == 0
        await end(process)


# -- many connections ----------------------------------------------------------------------------------------
def churn(port: int, cycles: int) -> None:
    """Connect and disconnect, with and without a request."""
    request = fetch()
    for number in range(cycles):
        with socket.create_connection((HOST, port), timeout=60) as sock:
            if number % 10 == 0:
                sock.sendall(request)
                sock.recv(64)


async def test_f13_i16_connections_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    async with broker_and_process(tmp_path) as (_, process):
        await asyncio.to_thread(churn, process.port, 2_000)
        await all_gone(process)
        files, rss = process.open_files(), process.rss_bytes()
        await asyncio.to_thread(churn, process.port, 4_000)
        await all_gone(process)
        await until(lambda: process.open_files() <= files)  # the connection of the last scrape closes soon
        assert process.rss_bytes() - rss < 4_000 * 256
        opened = await process.metric("gateway_connections_opened_total")
        assert opened == await process.metric("gateway_connections_closed_total") == 6_000


async def all_gone(process: GatewayProcess) -> None:
    await process.metric_is("gateway_connections_active", 0)


async def test_b20_flood_of_refused_connections_writes_few_lines_and_counts_the_rest(tmp_path: Path) -> None:
    tables = "[connections]\nmax_connections_per_ip = 1"
    async with broker_and_process(tmp_path, tables=tables) as (broker, process):
        first = await process.connect()
        assert await is_served(first)
        began = time.monotonic()
        await asyncio.to_thread(churn_refused, process.port, 1_500)
        seconds = time.monotonic() - began
        assert await process.metric("gateway_connections_refused_total", cause="ip_count") == 1_500
        assert await is_served(first)
        assert len(broker.client_connections) == 1
        first.close()
        lines = (await end(process)).splitlines()
        refused = [line for line in lines if "connection_refused" in line]
        assert 10 <= len(refused) <= 20 * (seconds + 2)
        assert any("suppressed" in line for line in lines)


def churn_refused(port: int, cycles: int) -> None:
    for _ in range(cycles):
        with socket.create_connection((HOST, port), timeout=60) as sock:
            assert sock.recv(1) == b""


# -- reload --------------------------------------------------------------------------------------------------
async def test_sighup_changes_every_limit_of_connections_and_drops_none(tmp_path: Path) -> None:
    tables = "[connections]\nmax_connections = 3\n"
    async with broker_and_process(tmp_path, tables=tables) as (_, process):
        clients = [await process.connect() for _ in range(3)]
        assert all([await is_served(client) for client in clients])
        waiting = await process.connect()
        await waiting.send(fetch(7))
        assert await waiting.silent_for(0.2)
        file = tmp_path / "gateway.toml"
        text = file.read_text(encoding="utf-8")
        # More than there are descriptors for: nothing changes.
        file.write_text(text.replace("max_connections = 3", "max_connections = 9999999"), encoding="utf-8")
        process.signal(signal.SIGHUP)
        await process.metric_is("gateway_config_reloads_total", 1, result="invalid")
        assert await waiting.silent_for(0.1)
        file.write_text(
            text.replace("max_connections = 3", "max_connections = 4\nmax_connections_per_ip = 4")
            + "[[quotas]]\ndefault_ip = true\nconnection_creation_rate = 1000\n",
            encoding="utf-8",
        )
        process.signal(signal.SIGHUP)
        assert wire.correlation_id_of(await waiting.receive_frame()) == 7
        assert all([await is_served(client) for client in clients])
        assert await process.metric("gateway_overall_connections_limit") == 4
        file.write_text(text.replace("max_connections = 3", "max_connections = 1"), encoding="utf-8")
        process.signal(signal.SIGHUP)
        await process.metric_is("gateway_overall_connections_limit", 1)
        assert all([await is_served(client) for client in [*clients, waiting]])
        for client in [*clients, waiting]:
            client.close()
