"""One or three real Kafka brokers (KRaft, each node broker and controller), started and stopped by Python.

Ready means: a client can create a topic through any of the brokers. Brokers end with the process that started
them, however it ends (see `keeper`). On loopback, plaintext unless more listeners are asked for; not for production.
"""

import base64
import os
import random
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from embedded_kafka import jars, keeper
from embedded_kafka.probe import ready
from pinned_jars import locked

# Below the ports the kernel gives to outgoing connections, so that a stopped broker finds its port free again.
_PORTS: Final = range(20_000, 32_000)
_POLL_S: Final = 0.05
_LAST_NODE_TIMEOUT_S: Final = 1.0
_KILL_TIMEOUT_S: Final = 30.0
_LOG_TAIL_LINES: Final = 25


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class KafkaStartError(RuntimeError):
    """A broker did not become ready; the text ends with its log and says where all of it is."""


class KafkaCluster:
    """A cluster of one or three brokers with ids 1, 2, 3.

    Used as a context manager or with `start` and `stop`. Not thread-safe.

    Attributes:
        brokers: broker id -> address, the same for the whole life of the object.
        listeners: name of a listener besides that -> broker id -> address.
        directory: holds `logs/broker-N.log`, and per broker its data and its properties.
    """

    def __init__(
        self,
        brokers: int = 1,
        host: str = "127.0.0.1",
        properties: Mapping[str, str | int] | None = None,
        data_dir: Path | None = None,
        *,
        listeners: Mapping[str, str] | None = None,
        version: str = jars.KAFKA_VERSION,
        jvm_options: Sequence[str] = jars.QUICK_START,
        start_timeout_s: float = 90.0,
        stop_timeout_s: float = 10.0,
    ) -> None:
        """Choose ports and write down what to start; nothing runs yet.

        Args:
            brokers: 1 or 3.
            host: a loopback address; one of its own (127.77.0.1) makes a leaked address easy to find.
            properties: broker properties that win over ours; `{host}`, `{port}` and `{id}` in a value stand for the
                broker's own.
            data_dir: where data stays between runs; None for a folder that is removed at `stop`.
            listeners: more of them, by name (capitals), with their security protocol; what that needs is said by
                `properties`. Brokers talk to each other by the plaintext one.
            version: Kafka's.
            jvm_options: heap, collector, compiler of each broker.
            start_timeout_s: how long all brokers together may take to become ready.
            stop_timeout_s: how long a broker may take to stop before it is killed.
        """
        if brokers not in (1, 3):
            raise ValueError(f"brokers must be 1 or 3, not {brokers}")
        self._ids = range(1, brokers + 1)
        self._protocols = dict(listeners or {})
        ports = _free_ports(host, (2 + len(self._protocols)) * brokers)
        self.brokers: dict[int, Address] = {i: Address(host, ports[i - 1]) for i in self._ids}
        self._controllers = {i: Address(host, ports[brokers + i - 1]) for i in self._ids}
        self.listeners = {
            name: {i: Address(host, ports[at * brokers + i - 1]) for i in self._ids}
            for at, name in enumerate(self._protocols, start=2)
        }
        self._properties = dict(properties or {})
        self._keeps_data = data_dir is not None
        self.directory = data_dir or Path(tempfile.gettempdir()) / f"sluice-kafka-{uuid.uuid4().hex[:12]}"
        self._versions = dict.fromkeys(self._ids, version)
        self._jvm_options = tuple(jvm_options)
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._keepers: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        """`host:port,host:port`, as clients want it."""
        return ",".join(str(address) for address in self.brokers.values())

    @property
    def running(self) -> list[int]:
        """Ids of the brokers whose process lives."""
        return [i for i, process in self._keepers.items() if process.poll() is None]

    def log_file(self, broker_id: int) -> Path:
        """The broker's log, from all of its starts."""
        return self.directory / "logs" / f"broker-{broker_id}.log"

    def pid(self, broker_id: int) -> int:
        """The process id of a running broker's JVM."""
        return int((self._broker_dir(broker_id) / "pid").read_text())

    def start(self) -> Self:
        """Start all brokers and wait until a client can create a topic.

        Raises:
            KafkaStartError: one of them ended or was not ready in time; all are stopped, the logs stay.
            MissingProgramError: no Java or Maven.
            FetchError: the jars are not there and could not be fetched.
        """
        install = jars.installed(self._versions[1])
        self._ensure_archive(install)
        (self.directory / "logs").mkdir(parents=True, exist_ok=True)
        self._format(install)
        for broker_id in self._ids:
            self._launch(install, broker_id)
        self._await_ready(set(self._ids))
        return self

    def stop(self, *, keep_logs: bool = False) -> None:
        """Stop all brokers cleanly and remove the data, unless it was given a place of its own.

        Args:
            keep_logs: leave the folder with the logs, for someone who wants to know why something failed.
        """
        # All at once: a node that still sees the others waits for its partitions' leaders to move.
        for process in self._keepers.values():
            if process.poll() is None:
                process.terminate()
        # Of several nodes the quorum's leader stops last and waits 5 s for followers that are gone. Worth it for data
        # that is kept only.
        hurry = len(self._keepers) > 1 and not self._keeps_data
        self._await_running(at_most=1 if hurry else 0)
        for broker_id in list(self._keepers):
            self._reap(broker_id, timeout_s=_LAST_NODE_TIMEOUT_S if hurry else 0.0)
        if not self._keeps_data:
            for broker_id in self._ids:
                shutil.rmtree(self._broker_dir(broker_id) / "data", ignore_errors=True)
            if not keep_logs:
                shutil.rmtree(self.directory, ignore_errors=True)

    def stop_broker(self, broker_id: int) -> None:
        """Stop one broker cleanly (SIGTERM); it hands over what it leads first."""
        self._keepers[broker_id].terminate()
        self._reap(broker_id, timeout_s=self._stop_timeout_s)

    def kill_broker(self, broker_id: int) -> None:
        """End one broker at once, as a crash would (SIGKILL), and wait until it has ended."""
        self._kill(broker_id, self._keepers.pop(broker_id))

    def start_broker(self, broker_id: int, *, version: str | None = None) -> None:
        """Start a stopped broker again, same id, port and data, and wait until it is ready.

        After `kill_broker` this lasts until the controller has given the old one up
        (`broker.session.timeout.ms`, 6 s here).

        Args:
            broker_id: which one.
            version: Kafka's from now on, for a rolling upgrade; None: as before.
        """
        if broker_id in self.running:
            raise ValueError(f"broker {broker_id} is running")
        self._versions[broker_id] = version or self._versions[broker_id]
        self._launch(jars.installed(self._versions[broker_id]), broker_id)
        self._await_ready({*self.running, broker_id})

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(keep_logs=error is not None)
        if error is not None:
            print(f"broker logs: {self.directory / 'logs'}", file=sys.stderr)

    def _ensure_archive(self, install: jars.Install) -> None:
        """Make the class data archive from the classes a real start and stop loads, once per machine."""
        if install.archive.exists():
            return
        with locked(install.root / "archive.lock"):
            if install.archive.exists():
                return
            partial = install.archive.with_suffix(".partial")
            rehearsal = KafkaCluster(
                host=self.brokers[1].host,
                version=self._versions[1],
                jvm_options=(*jars.QUICK_START, f"-XX:ArchiveClassesAtExit={partial}"),
                stop_timeout_s=60,
            )
            try:
                rehearsal._start_without_archive(install)
            finally:
                rehearsal.stop()
            if partial.exists():
                partial.rename(install.archive)
            else:  # a Java that cannot: brokers start slowly, which is no reason not to start; do not try again
                install.archive.touch()

    def _start_without_archive(self, install: jars.Install) -> None:
        (self.directory / "logs").mkdir(parents=True)
        self._format(install)
        self._launch(install, 1)
        self._await_ready({1})

    def _format(self, install: jars.Install) -> None:
        cluster_id = _random_uuid()
        for broker_id in self._ids:
            data = self._broker_dir(broker_id) / "data"
            if (data / "meta.properties").exists():
                continue
            shutil.copytree(install.formatted, data, dirs_exist_ok=True)
            (data / "meta.properties").write_text(
                f"version=1\ncluster.id={cluster_id}\nnode.id={broker_id}\ndirectory.id={_random_uuid()}\n"
            )

    def _launch(self, install: jars.Install, broker_id: int) -> None:
        directory = self._broker_dir(broker_id)
        properties = directory / "server.properties"
        lines = (f"{key}={value}\n" for key, value in self._broker_properties(broker_id).items())
        properties.write_text("".join(lines))
        command = jars.java_command(
            install, "kafka.Kafka", [str(properties)], jvm_options=self._jvm_options, log_level="INFO"
        )
        scratch = "" if self._keeps_data else str(self.directory)
        guard = [str(os.getpid()), str(self.log_file(broker_id)), str(directory / "pid"), scratch]
        self._keepers[broker_id] = subprocess.Popen(
            [sys.executable, "-I", keeper.__file__, *guard, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us: the gateway drains before its broker goes
        )

    def _broker_properties(self, broker_id: int) -> dict[str, str | int]:
        address, controller = self.brokers[broker_id], self._controllers[broker_id]
        replicas = len(self._ids)
        listeners = {"PLAINTEXT": address} | {
            name: where[broker_id] for name, where in self.listeners.items()
        }
        # Before 3.9 a broker refuses to advertise its controller.
        advertised = ",".join(f"{name}://{where}" for name, where in listeners.items())
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **self._protocols}
        ours: dict[str, str | int] = {
            "process.roles": "broker,controller",
            "node.id": broker_id,
            "controller.quorum.voters": ",".join(f"{i}@{where}" for i, where in self._controllers.items()),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": f"{advertised},CONTROLLER://{controller}",
            "advertised.listeners": advertised,
            "listener.security.protocol.map": ",".join(f"{name}:{what}" for name, what in protocols.items()),
            "log.dirs": str(self._broker_dir(broker_id) / "data"),
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": 6,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": min(2, replicas),
            "transaction.state.log.num.partitions": 6,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": min(2, replicas),
            "share.coordinator.state.topic.num.partitions": 6,
            "group.initial.rebalance.delay.ms": 0,
            # A killed broker is noticed in a test's time, yet not while three JVMs start on two cores.
            "broker.session.timeout.ms": 6000,
            "broker.heartbeat.interval.ms": 1000,
            # An idle cluster writes no records: by default the controller writes one every 0.5 s, for all to read.
            "metadata.max.idle.interval.ms": 0,
            "num.network.threads": 2,
            "num.io.threads": 4,
            "num.recovery.threads.per.data.dir": 1,
            "log.cleaner.dedupe.buffer.size": 4_194_304,
        }
        names = {"{host}": address.host, "{port}": str(address.port), "{id}": str(broker_id)}
        for key, value in self._properties.items():
            text = str(value)
            for name, stands_for in names.items():
                text = text.replace(name, stands_for)
            ours[key] = text
        return ours

    def _await_ready(self, broker_ids: set[int]) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        waiting = sorted(broker_ids)
        while waiting:
            for broker_id in sorted(broker_ids):
                if self._keepers[broker_id].poll() is not None:
                    self._give_up(broker_id, "ended while it started")
            if ready(*self.brokers[waiting[0]], broker_ids=broker_ids):
                waiting.pop(0)
            elif time.monotonic() > deadline:
                self._give_up(waiting[0], f"was not ready after {self._start_timeout_s:.0f} s")
            else:
                time.sleep(_POLL_S)

    def _give_up(self, broker_id: int, what: str) -> None:
        log = self.log_file(broker_id)
        tail = (
            "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]) if log.exists() else ""
        )
        for process in self._keepers.values():
            process.kill()
            process.wait()
        self._keepers.clear()
        raise KafkaStartError(f"broker {broker_id} {what}; its log is {log} and ends with:\n{tail}")

    def _await_running(self, *, at_most: int) -> None:
        deadline = time.monotonic() + self._stop_timeout_s
        while len(self.running) > at_most and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _reap(self, broker_id: int, *, timeout_s: float) -> None:
        process = self._keepers.pop(broker_id)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._kill(broker_id, process)

    def _kill(self, broker_id: int, process: subprocess.Popen[bytes]) -> None:
        """End a keeper, and by that its broker (see `keeper`), which the kernel takes a moment to clear away."""
        broker = None
        with suppress(FileNotFoundError, ProcessLookupError):  # not started yet, or ended by itself
            broker = os.pidfd_open(self.pid(broker_id))
        process.kill()
        process.wait()
        if broker is not None:
            ended = select.poll()
            ended.register(broker, select.POLLIN)
            ended.poll(_KILL_TIMEOUT_S * 1000)  # its listeners close before it has ended
            os.close(broker)

    def _broker_dir(self, broker_id: int) -> Path:
        return self.directory / f"broker-{broker_id}"


def _free_ports(host: str, count: int) -> list[int]:
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"no {count} free ports on {host} between {_PORTS.start} and {_PORTS.stop}")


def _random_uuid() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
