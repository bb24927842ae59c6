"""Gateways of the world: the product's own code, in one process or in a supervisor and its workers.

Three parts of the product are replaced: the process that forks workers (`Forks`), the thread that writes usage lines
(`KeptLines`) and the client of the fleet's topic (`simulation/fleet.py`). Everything else is `gateway.app`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import orjson

import gateway.app
from config import Config
from gateway.app import Gateway
from gateway.server.nursery import WorkerSockets
from gateway.server.worker import WorkerSide
from gateway.usage.line import Line
from gateway.usage.sink import ThreadedSink
from simulation.network import Network, SimSocket, Transport
from simulation.process import HostedProcess
from simulation.world import NS_PER_MS, World

BOOTSTRAP_PORT: Final = 19_092
LISTENER: Final = "sim"


class KeptLines(ThreadedSink):
    """Keeps usage lines instead of writing them. While the disk is full, lines wait as in a sink's thread."""

    kept_by: GatewayUnderTest | None = None

    def start(self) -> None:
        """Starts no thread."""

    def offer(self, line: Line) -> bool:
        """See `ThreadedSink`."""
        taken = super().offer(line)
        self.deliver()
        return taken

    def deliver(self) -> None:
        """Delivers waiting lines, unless the disk is full."""
        unit = self.kept_by
        while not self._queue.empty() and (unit is None or not unit.disk_full):
            line = self._queue.get_nowait()
            if line is None:
                continue
            self._bytes_out += len(line.data)
            self.writer.delivered.add(line)
            if unit is not None:
                unit.lines.append(line.data)

    def stop(self, within_s: float) -> bool:
        """See `ThreadedSink`."""
        self.deliver()
        while not self._queue.empty():
            line = self._queue.get_nowait()
            if line is not None:
                self._abandon(line)
        return True


class Forks:
    """A nursery whose workers are processes of the world."""

    def __init__(self, unit: GatewayUnderTest) -> None:
        self._unit = unit
        self.gone = False
        self.pid = 0

    def fork(self, number: int, sockets: WorkerSockets) -> int:
        """See `Nursery`."""
        unit = self._unit
        process = unit.new_process(f"{unit.name}/worker-{number}")
        network = unit.network
        theirs = []
        for sock in sockets.all:
            descriptor = network.open(sock.file, process)  # type: ignore[attr-defined]
            copy = SimSocket(network, sock.family, sock.type, descriptor=descriptor)
            copy._process = process
            theirs.append(copy)
        for sock in sockets.all:
            # From now on the file belongs to the worker, even if the supervisor closes its own descriptor.
            owner = sock.file.process  # type: ignore[attr-defined]
            sock.close()
            assert owner is process
        unit.workers[number] = process
        process.run_task(_live(unit, process, number, WorkerSockets(*theirs)))  # type: ignore[arg-type]
        return process.pid

    def stop(self) -> None:
        """See `Nursery`."""


async def _live(unit: GatewayUnderTest, process: HostedProcess, number: int, sockets: WorkerSockets) -> None:
    """Runs a worker in its process."""
    await gateway.app._work(None, number, sockets)
    unit.ended(process)


class GatewayUnderTest:
    """One gateway and its processes.

    Attributes:
        config: the configuration in force.
        main: the process that accepts connections.
        workers: running workers by number.
        gateways: the `Gateway` in each process.
        lines: usage lines that were delivered, in order.
        disk_full: whether lines can't be delivered.
        on_transport: called with each transport of its processes; see `HostedProcess`.
        running: whether it was started and has not ended.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        number: int,
        config: Config,
        *,
        most_cost_ns: int,
        on_transport: Callable[[GatewayUnderTest, HostedProcess, Transport, SimSocket, bool], None],
    ) -> None:
        """Creates a gateway that is not started."""
        self.world = world
        self.network = network
        self.number = number
        self.name = f"gateway-{number}"
        self.ip = f"10.2.0.{number}"
        network.names[self.name] = self.ip
        self.config = config
        self._most_cost_ns = most_cost_ns
        self.on_transport = on_transport
        self.main: HostedProcess | None = None
        self.workers: dict[int, HostedProcess] = {}
        self.gateways: dict[HostedProcess, Gateway] = {}
        self.dead: list[HostedProcess] = []
        self.lines: list[bytes] = []
        self.disk_full = False
        self.was_killed = False
        self.running = False
        self.finished = True
        self._stop: asyncio.Event | None = None
        self._hurry: asyncio.Event | None = None

    def new_process(self, name: str) -> HostedProcess:
        """Creates one of its processes."""
        process = HostedProcess(self.network, name, self.ip, most_cost_ns=self._most_cost_ns)
        process.unit = self  # type: ignore[attr-defined]
        process.on_transport = lambda transport, sock, ours: self.on_transport(
            self, process, transport, sock, ours
        )
        return process

    @property
    def processes(self) -> list[HostedProcess]:
        """Its running processes."""
        return [*([self.main] if self.main is not None else []), *self.workers.values()]

    @property
    def serving(self) -> list[tuple[HostedProcess, Gateway]]:
        """The processes that serve clients, and the `Gateway` in each."""
        found = [(process, self.gateways[process]) for process in self.processes if process in self.gateways]
        return [each for each in found if each[1].pool is None]

    def start(self) -> None:
        """Starts it."""
        self.running = True
        self.finished = False
        self.main = self.new_process(self.name)
        self.main.run_task(self._serve(self.main))

    async def _serve(self, process: HostedProcess) -> None:
        nursery = Forks(self) if self.config.server.worker_count > 1 else None
        running = Gateway(self.config, None, nursery=nursery)  # type: ignore[arg-type]
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()
        code = await gateway.app._serve_until(running, self._stop, self._hurry, None)
        if code:
            process.faults.append(f"{self.name} ended with {code}")
        self.finished = True
        self.ended(process)

    def began(self, process: HostedProcess, running: Gateway) -> None:
        """The `Gateway` of a process was made."""
        self.gateways[process] = running

    def ended(self, process: HostedProcess) -> None:
        """A process has ended."""
        self.network.world.after(NS_PER_MS, self._bury, process)

    def _bury(self, process: HostedProcess) -> None:
        if not process.alive:
            return
        process.kill()
        self.dead.append(process)
        if process is self.main:
            self.main = None
            self.running = False
        for number, worker in list(self.workers.items()):
            if worker is process:
                del self.workers[number]

    def stop(self) -> None:
        """Sends SIGTERM."""
        if self.main is not None and self._stop is not None:
            self.main.post(self._stop.set)

    def kill(self) -> None:
        """Sends SIGKILL to all of its processes."""
        self.was_killed = True
        for process in self.processes:
            self._bury(process)

    def kill_worker(self, at: int) -> None:
        """Sends SIGKILL to one of its workers, or to the gateway if it has none."""
        workers = list(self.workers.values())
        self.was_killed = True
        self._bury(workers[at % len(workers)] if workers else self.main)  # type: ignore[arg-type]

    def rows(self) -> list[list[Any]]:
        """All rows of its usage lines."""
        found: list[list[Any]] = []
        for line in self.lines:
            found.extend(orjson.loads(line)["rows"])
        return found


class WatchedGateway(Gateway):
    """A gateway that registers with the world when it is made."""

    def __init__(
        self, config: Config, source: Any = None, *, worker: WorkerSide | None = None, **more: Any
    ) -> None:
        super().__init__(config, source, worker=worker, **more)
        process = self._loop
        unit = process.unit  # type: ignore[attr-defined]
        unit.began(process, self)
        sink = getattr(self.usage, "sink", None)
        if isinstance(sink, KeptLines):
            sink.kept_by = unit


def gateway_config(number: int, plan_tables: dict[str, Any]) -> Config:
    """The configuration of one gateway, from the tables of a plan."""
    tables: dict[str, Any] = {
        "upstream": {"bootstrap": ["broker-1:9092", "broker-2:9092"]},
        "listeners": [
            {
                "name": LISTENER,
                "bind": f"10.2.0.{number}:{BOOTSTRAP_PORT}",
                "advertised_host": f"gateway-{number}",
                "broker_ports": 20,
            }
        ],
        "admin": {"bind": f"10.2.0.{number}:9644"},
        "quota_store": {"kind": "memory"},
        "usage": {"kind": "files", "directory": "/nowhere", "gateway_id": f"gateway-{number}"},
    }
    for name, table in plan_tables.items():
        tables[name] = {**tables[name], **table} if isinstance(tables.get(name), dict) else table
    return Config.model_validate(tables)
