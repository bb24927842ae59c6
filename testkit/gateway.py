"""A real gateway for a test: in this process on the test's loop, or in a process of its own.

At the end it is always checked for three faults: an exception without a handler, a connection that was closed because
of a bug, and a connection that was counted as opened but not as closed.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from config import Config
from gateway.app import Gateway
from gateway.net.channel import ClientChannel
from gateway.net.listener import Listener
from gateway.observability.events import CloseCause
from testkit.broker import ScriptedBroker
from testkit.forked_sluice import ForkedProcess
from testkit.polling import pause_s
from testkit.process_group import kill_all
from testkit.raw_client import HOST, PATIENCE_S, RawClient, settled, until
from testkit.secrets import secrets_in

LISTENER: Final = "tests"
_PORTS: Final = range(20_000, 31_000)
"""Ports below those that outgoing connections use."""

# Each process continues after its last port, so that two calls of a test never get the same port. The start is
# random, but not from the random module's shared state, which the plugin that shuffles tests seeds alike everywhere.
_next: Final = [random.SystemRandom().randrange(_PORTS.start, _PORTS.stop)]

_START_S: Final = 60.0


def free_ports(count: int, besides: Iterable[int | str] = ()) -> int:
    """The first of `count` consecutive free ports. None is in `besides`, or was given to a recent earlier call."""
    taken = set(besides)
    for _ in range(200):
        _next[0] = _next[0] if _next[0] + count <= _PORTS.stop else _PORTS.start
        first = _next[0]
        _next[0] += count
        if all(port not in taken and _is_free(port) for port in range(first, first + count)):
            return first
    raise OSError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
        except OSError:
            return False
    return True


def gateway_config(
    bootstrap: Sequence[int | str],
    *,
    first_broker_port: int | None = None,
    broker_ports: int = 4,
    quotas: Sequence[dict[str, Any]] = (),
    groups: Sequence[dict[str, Any]] = (),
    upstream: dict[str, Any] | None = None,
    capacity: dict[str, Any] | None = None,
    connections: dict[str, Any] | None = None,
    quota_store: dict[str, Any] | None = None,
    admin: dict[str, Any] | None = None,
    listener: dict[str, Any] | None = None,
    more_listeners: Sequence[dict[str, Any]] = (),
    upstreams: Sequence[dict[str, Any]] = (),
    drain_timeout_ms: int = 2_000,
    **limits: int,
) -> Config:
    """A configuration with any free bootstrap and admin port.

    Args:
        bootstrap: ports on loopback, or host:port.
        first_broker_port: port of broker 0; None: free ports are searched.
        broker_ports: the number of brokers that get a port.
        quotas: entries of [[quotas]].
        groups: entries of [[groups]].
        upstream: more keys of [upstream].
        capacity: keys of [capacity].
        connections: keys of [connections].
        quota_store: keys of [quota_store]; in memory by default.
        admin: more keys of [admin].
        listener: more keys of the listener.
        more_listeners: listeners besides it.
        upstreams: entries of [[upstreams]].
        drain_timeout_ms: of [drain].
        limits: keys of [limits].
    """
    ports: dict[str, Any] = {}
    if "sni" not in (listener or {}):
        if first_broker_port is None:
            first_broker_port = free_ports(broker_ports, besides=bootstrap)
        ports = {
            "advertised_host": HOST,
            "first_broker_port": first_broker_port,
            "broker_ports": broker_ports,
        }
    addresses = [f"{HOST}:{broker}" if isinstance(broker, int) else broker for broker in bootstrap]
    return Config.model_validate(
        {
            "upstream": {"bootstrap": addresses, "topology_refresh_ms": 60_000, **(upstream or {})},
            "upstreams": list(upstreams),
            "listeners": [
                {
                    "name": LISTENER,
                    "bind": f"{HOST}:0",
                    **ports,
                    **(listener or {}),
                },
                *more_listeners,
            ],
            "admin": {"bind": f"{HOST}:0", **(admin or {})},
            "drain": {"timeout_ms": drain_timeout_ms},
            "limits": limits,
            "capacity": capacity or {},
            "connections": connections or {},
            "quota_store": {"kind": "memory", **(quota_store or {})},
            "quotas": list(quotas),
            "groups": list(groups),
        }
    )


class RunningGateway:
    """A gateway on the test's loop.

    Attributes:
        gateway: the composition root.
        listener: its only listener.
        loop_errors: errors that reached the loop's exception handler.
    """

    def __init__(self, gateway: Gateway, config: Config) -> None:
        self.gateway = gateway
        self.config = config
        self.listener: Listener = gateway.listeners[LISTENER]
        self.loop_errors: list[dict[str, Any]] = []
        self._expected_internal_errors = 0

    @property
    def port(self) -> int:
        """The bootstrap port."""
        return self.listener.ports[None]

    def broker_port(self, broker_id: int) -> int:
        """The port of a broker, bound or not."""
        return self.config.listeners[0].first_broker_port + broker_id

    @property
    def channels(self) -> list[ClientChannel]:
        """Open client connections."""
        return list(self.listener.channels)

    async def connect(self, **options: Any) -> RawClient:
        """Connects a client to the bootstrap port."""
        return await RawClient.connect(self.port, **options)

    async def discovered(self) -> None:
        """Waits until the brokers are known."""
        await until(lambda: self.gateway.discovery.reached)

    def closed(self, cause: CloseCause) -> int:
        """The number of connections that ended for this cause."""
        return self._counter("gateway_connections_closed_total", cause=cause.value)

    @property
    def opened(self) -> int:
        """The number of connections that were admitted."""
        return self._counter("gateway_connections_opened_total")

    async def ended_by(self, cause: CloseCause, count: int = 1) -> None:
        """Waits until `count` connections have ended for this cause."""
        await until(lambda: self.closed(cause) >= count)
        assert self.closed(cause) == count

    async def stops_reading(self, sent_bytes: int) -> int:
        """Waits until the only client has sent more than `sent_bytes` and is not read. Returns how much was read."""
        await until(lambda: self.channels and self.channels[0].session.bytes_from_client > sent_bytes)
        return await settled(lambda: self.channels[0].session.bytes_from_client)

    def _counter(self, name: str, **labels: str) -> int:
        value = self.gateway.registry.get_sample_value(name, {"listener": LISTENER, **labels})
        return int(value or 0)

    def expect_internal_error(self) -> None:
        """Expects one internal error, because the test breaks the gateway's own code on purpose."""
        self._expected_internal_errors += 1

    def check(self) -> None:
        """Checks what must hold after every test."""
        assert not self.loop_errors, self.loop_errors
        assert self.closed(CloseCause.INTERNAL_ERROR) == self._expected_internal_errors
        # In one pass, because each access to a sample collects all samples.
        ended = sum(
            sample.value
            for family in self.gateway.registry.collect()
            for sample in family.samples
            if sample.name == "gateway_connections_closed_total" and sample.labels["listener"] == LISTENER
        )
        assert self.opened == len(self.channels) + ended


@asynccontextmanager
async def running_gateway(
    *bootstrap: int | str, config: Config | None = None, **options: Any
) -> AsyncIterator[RunningGateway]:
    """Starts a gateway; at the end stops it and checks that it leaves nothing behind.

    Args:
        bootstrap: see `gateway_config`.
        config: used instead of the other arguments.
        options: see `gateway_config`.
    """
    config = config or gateway_config(bootstrap, **options)
    running = RunningGateway(Gateway(config), config)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: running.loop_errors.append(context))
    await running.gateway.start()
    try:
        yield running
    finally:
        hurry = asyncio.Event()
        hurry.set()
        await running.gateway.drain(hurry=hurry)
        await running.gateway.stop()
        # Aborted transports call their protocols in the next iterations of the loop.
        for _ in range(5):
            await asyncio.sleep(0)
    assert running.channels == []
    assert not running.gateway.user_connections.by_user
    assert not running.gateway.user_connections.held
    running.check()


@asynccontextmanager
async def broker_and_gateway(**options: Any) -> AsyncIterator[tuple[ScriptedBroker, RunningGateway]]:
    """A scripted broker with id 1, and a gateway in front of it that has discovered it.

    Args:
        options: see `gateway_config`.
    """
    async with ScriptedBroker() as broker, running_gateway(broker.port, **options) as running:
        await running.discovered()
        yield broker, running


async def metric_of(admin_port: int, name: str, **labels: str) -> float:
    """The value of one series in a scrape; the sum if several match the labels."""
    url = f"http://{HOST}:{admin_port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        text = await answer.text()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


# -- a process -----------------------------------------------------------------------------------------------


class GatewayProcess:
    """`sluice serve --config FILE`."""

    def __init__(
        self, process: asyncio.subprocess.Process | ForkedProcess, port: int, admin_port: int
    ) -> None:
        self.process = process
        self.port = port
        self.admin_port = admin_port
        self.stderr = b""

    async def connect(self) -> RawClient:
        """Connects a client to the bootstrap port."""
        return await RawClient.connect(self.port)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self.process.returncode is None

    async def exit_code(self, *, seconds: float = PATIENCE_S) -> int:
        """Waits for the end of the process. Returns its exit code."""
        async with asyncio.timeout(seconds):
            _, self.stderr = await self.process.communicate()
        return int(self.process.returncode or 0)

    def rss_bytes(self) -> int:
        """Resident memory of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def open_files(self) -> int:
        """The number of open descriptors."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def cpu_s(self) -> float:
        """User and system time of the process so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def metric(self, name: str, **labels: str) -> float:
        """See `metric_of`."""
        return await metric_of(self.admin_port, name, **labels)

    async def metric_is(self, name: str, value: float, **labels: str) -> None:
        """Waits until a series has this value."""
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE_S):
            while await self.metric(name, **labels) != value:  # noqa: ASYNC110 - a process has no event
                await asyncio.sleep(pause_s(time.monotonic() - began))


@asynccontextmanager
async def gateway_process(
    folder: Path,
    *bootstrap: int,
    drain_timeout_ms: int = 5_000,
    prefix: Sequence[str] = (),
    program: Path | None = None,
    admin: str = "",
    tables: str = "",
    **limits: int,
) -> AsyncIterator[GatewayProcess]:
    """Starts `sluice serve` and waits until it accepts clients.

    Args:
        folder: the folder for its configuration.
        bootstrap: ports of brokers on loopback.
        drain_timeout_ms: of [drain].
        prefix: a command that runs it, such as one that injects faults.
        program: another `sluice` than the one beside this Python. Without it and a prefix the gateway is a fork
            (see `testkit.forked_sluice`).
        admin: more keys of [admin], as TOML text.
        tables: more tables of the configuration, as TOML text.
        limits: keys of [limits].
    """
    first = free_ports(6)
    port, admin_port = first, first + 1
    brokers = ", ".join(f'"{HOST}:{broker}"' for broker in bootstrap)
    lines = [
        "[upstream]",
        f"bootstrap = [{brokers}]",
        "[[listeners]]",
        f'name = "{LISTENER}"',
        f'bind = "{HOST}:{port}"',
        f"first_broker_port = {first + 2}",
        "broker_ports = 4",
        "[admin]",
        f'bind = "{HOST}:{admin_port}"',
        admin,
        "[drain]",
        f"timeout_ms = {drain_timeout_ms}",
        "[limits]",
        *(f"{key} = {value}" for key, value in limits.items()),
        *([] if "[quota_store]" in tables else ["[quota_store]", 'kind = "memory"']),
        tables,
    ]
    file = folder / "gateway.toml"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    async with serving(file, port, admin_port, prefix=prefix, program=program) as process:
        yield process


@asynccontextmanager
async def serving(
    file: Path,
    port: int,
    admin_port: int,
    *,
    prefix: Sequence[str] = (),
    program: Path | None = None,
) -> AsyncIterator[GatewayProcess]:
    """Starts `sluice serve --config FILE` and waits until it accepts clients.

    Args:
        file: the configuration.
        port: the port of a listener.
        admin_port: the admin port in the same configuration.
        prefix, program: see `gateway_process`.
    """
    arguments = ["serve", "--config", str(file)]
    process: asyncio.subprocess.Process | ForkedProcess
    if prefix or program is not None:
        process = await asyncio.create_subprocess_exec(
            *prefix,
            program or Path(sys.executable).with_name("sluice"),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    else:
        process = ForkedProcess()
        await process.start(arguments)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_START_S):
            banner = await process.stdout.readline()
        assert b"sluice" in banner, (await process.communicate())[1].decode()
        yield GatewayProcess(process, port, admin_port)
    finally:
        told = b""
        kill_all(process.pid)
        if process.returncode is None:
            _, told = await process.communicate()
        if isinstance(process, ForkedProcess):
            process.release()
        assert secrets_in(told) == []
