"""The environment of scripts: a real broker, a gateway in a separate process, topics to write and to read.

Every client without authentication has a quota for its client id, every user a quota for its user. Both come from
default quotas, so that each of any number of scripts has its own entity.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from uuid import UUID

from campaigns.adversary.honest_client import HONEST, PASSWORD
from campaigns.adversary.player import AUTO_PARTITIONS, Login, Outcome, Player
from campaigns.adversary.requests import batch
from campaigns.adversary.script import LISTENERS, SECONDS, Script
from embedded_kafka.kafka import Address, KafkaCluster
from testkit.gateway import free_ports
from testkit.process_group import kill_all
from testkit.raw_client import HOST
from testkit.tls import Pki
from testkit.wire_client import WireClient, now_ms

QUOTA_BYTES_PER_S: Final = 20_000
MUTATIONS_PER_S: Final = 2.0
WINDOW_NUM: Final = 2
WINDOW_S: Final = WINDOW_NUM * 1.0
"""Window of both kinds of quota: the shortest that still has an earlier sample."""

FLOODER: Final = "flooder"
"""A client id with a quota of one percent of a core."""

USERS: Final = 12_000
WRITE_TOPICS: Final = 64
"""A script has its own topic until the gateway has served its last requests: some eight seconds, mostly muted."""

SETTLING_S: Final = 1.5
"""Time after the end of a script until its last requests have arrived at the broker and are visible there."""

_LOOK_S: Final = 1.0
_OPEN_STATES: Final = {"01", "08"}  # ESTABLISHED, CLOSE_WAIT
_START_S: Final = 90.0
_BROKER_S: Final = 120.0
_SMALL_BYTES, _BIG_BYTES = 15_000, 3 * QUOTA_BYTES_PER_S
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@dataclass(frozen=True, slots=True)
class Found:
    """The broker's data about a client that has ended.

    Attributes:
        partitions: partitions of all topics that it created and did not delete.
        produced_bytes: growth of its topic.
        seconds: from its first connection to this check. Requests are served after the client's end, too, as in
        Kafka.
    """

    partitions: int
    produced_bytes: int
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Lent:
    """A topic that only one script at a time writes to."""

    name: str
    topic_id: UUID


class Stage:
    """See the module; an asynchronous context manager.

    Attributes:
        cluster: one broker.
        gateway_pid: the gateway's process.
        log_file: the gateway's log.
        direct: whether new clients get the broker's own addresses, for comparison.
    """

    def __init__(
        self,
        *,
        program: Sequence[str] = (),
        prefix: Sequence[str] = (),
        more_configuration: str = "",
        write_topics: int = WRITE_TOPICS,
        tls: bool = False,
    ) -> None:
        """Prepare the stage without starting anything.

        Args:
            program: a program to run instead of `sluice`, with the same arguments.
            prefix: words to put before its command line.
            more_configuration: additional configuration of the gateway, as TOML text.
            write_topics: number of topics to write; as many scripts can run or wait for their verdict.
            tls: whether clients use TLS with the gateway. They never use it with the broker itself.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="sluice-adversary-"))
        self._pki = Pki(self._folder) if tls else None
        self._program = [*prefix, *(program or [str(Path(sys.executable).with_name("sluice"))])]
        self._more_configuration = more_configuration
        self._write_names = [f"write-{at}" for at in range(write_topics)]
        users = " ".join(f'user_{name}="{PASSWORD}"' for name in (HONEST, *map(_user, range(USERS))))
        self.cluster = KafkaCluster(
            properties={
                "num.partitions": AUTO_PARTITIONS,
                "auto.create.topics.enable": "true",
                "log.segment.delete.delay.ms": 500,
                "log.retention.ms": -1,
                "log.index.size.max.bytes": 65_536,
                "group.coordinator.append.linger.ms": 0,
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl.plain.sasl.jaas.config": f"{_PLAIN} {users};",
            },
            listeners={"SASL": "SASL_PLAINTEXT"},
        )
        self._ports = free_ports(4 * LISTENERS + 1)
        self._process: subprocess.Popen[bytes] | None = None
        self.log_file = self._folder / "gateway.log"
        self.direct = False
        self._numbers = itertools.count()
        self._nonce = f"{os.getpid():x}-{time.time_ns() // 1_000_000 % 10**7:x}"
        self._write_topics: asyncio.Queue[Lent] = asyncio.Queue()
        self._read_topics: list[tuple[str, UUID]] = []
        self._sizes: dict[str, int] = {}
        self._waiting: list[tuple[Outcome, Lent, asyncio.Future[Found]]] = []
        self._inspector: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self._start)
        except BaseException:
            self._stop()
            raise
        self._inspector = asyncio.create_task(self._inspect())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._inspector is not None:
            self._inspector.cancel()
            await asyncio.gather(self._inspector, return_exceptions=True)
        await asyncio.to_thread(self._stop)

    @property
    def gateway_pid(self) -> int:
        """The gateway's process."""
        assert self._process is not None
        return self._process.pid

    @property
    def gateway_runs(self) -> bool:
        """Whether the gateway's process has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def plain(self) -> tuple[Address, ...]:
        """The listeners without authentication."""
        if self.direct:
            return (self.cluster.brokers[1],) * LISTENERS
        return self._plain

    @property
    def _plain(self) -> tuple[Address, ...]:
        return tuple(Address(HOST, self._ports + 2 * at) for at in range(LISTENERS))

    @property
    def sasl(self) -> tuple[Address, ...]:
        """The listeners with authentication."""
        if self.direct:
            return (self.cluster.listeners["SASL"][1],) * LISTENERS
        return self._sasl

    @property
    def _sasl(self) -> tuple[Address, ...]:
        return tuple(Address(HOST, self._ports + 2 * at) for at in range(LISTENERS, 2 * LISTENERS))

    @property
    def ca(self) -> Path | None:
        """The authority that new clients trust; None without TLS."""
        return None if self._pki is None or self.direct else self._pki.authority.certificate

    @property
    def readable(self) -> tuple[str, UUID]:
        """A topic to read: name and id."""
        return self._read_topics[0]

    def rss_bytes(self) -> int:
        """Resident memory of the gateway; 0 when it has ended."""
        try:
            pages = int(Path(f"/proc/{self.gateway_pid}/statm").read_text(encoding="ascii").split()[1])
        except (OSError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    async def play(self, script: Script) -> tuple[Outcome, Found]:
        """Play a script as a new entity, and ask the broker what the client got."""
        outcome, found = await self.start(script)
        return outcome, await found

    async def start(
        self, script: Script, *, user: str | None = None, seconds: float = SECONDS
    ) -> tuple[Outcome, asyncio.Future[Found]]:
        """Play a script; the broker's data follows in the future.

        Args:
            script: the script.
            user: the user that plays it; None for a new entity.
            seconds: maximum duration.
        """
        lent = await self._write_topics.get()
        login = self._login(script, lent, user)
        outcome = await Player(script, login, seconds=seconds).play()
        found: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        self._waiting.append((outcome, lent, found))
        return outcome, found

    # -- requests to the broker ------------------------------------------------------------------------------

    def _login(self, script: Script, lent: Lent, name: str | None = None) -> Login:
        at = next(self._numbers)
        user = script.identity == "user"
        return Login(
            addresses=self.sasl if user else self.plain,
            name=name or (_user(at % USERS) if user else f"c{self._nonce}-{at}"),
            password=PASSWORD if user else None,
            write_topic=(lent.name, lent.topic_id),
            read_topics=(self._read_topics[0], self._read_topics[1]),
        )

    async def _inspect(self) -> None:
        for turn in itertools.count():
            await asyncio.sleep(_LOOK_S)
            due_ms = now_ms() - SETTLING_S * 1_000
            # A client's last requests are served when its mute is over. Until then no other script gets its topic.
            served = _remote_ports(self._ports, self._ports + 4 * LISTENERS)
            due = [
                each
                for each in self._waiting
                if each[0].ended_ms <= due_ms and served.isdisjoint(each[0].ports)
            ]
            if not due:
                continue
            self._waiting = [each for each in self._waiting if each not in due]
            names = [outcome.name for outcome, _, _ in due]
            try:
                partitions, sizes = await asyncio.to_thread(self._look, names, f"canary-{turn}")
            except asyncio.CancelledError:
                raise
            except BaseException as exc:
                for _, _, found in due:
                    if not found.done():
                        found.set_exception(exc)
                raise
            looked_ms = now_ms()
            for outcome, lent, found in due:
                grown = sizes.get(lent.name, 0) - self._sizes.get(lent.name, 0)
                self._sizes[lent.name] = sizes.get(lent.name, 0)
                self._write_topics.put_nowait(lent)
                if not found.cancelled():
                    found.set_result(
                        Found(partitions[outcome.name], grown, (looked_ms - outcome.began_ms) / 1_000)
                    )

    def _look(self, names: Sequence[str], canary: str) -> tuple[Counter[str], Mapping[str, int]]:
        """Partitions of these clients' topics, which are then deleted, and sizes of written topics."""
        with WireClient(self.cluster.brokers[1], timeout_s=_BROKER_S) as client:
            # The broker's Metadata lags behind its controller. Once it has the canary, it has all earlier changes.
            topic = {"name": canary, "num_partitions": 1, "replication_factor": 1}
            client.ask("CreateTopics", 7, topics=[topic], timeout_ms=30_000)
            deadline_s = time.monotonic() + _BROKER_S
            while True:
                topics = client.ask("Metadata", 12, topics=None, allow_auto_topic_creation=False).body.topics
                if any(topic.name == canary for topic in topics):
                    break
                assert time.monotonic() < deadline_s, "the broker did not catch up"
                time.sleep(0.05)
            partitions: Counter[str] = Counter()
            theirs = [canary]
            for topic in topics:
                owner = topic.name.rpartition("-")[0]
                if owner in names:
                    partitions[owner] += len(topic.partitions)
                    theirs.append(topic.name)
            client.ask("DeleteTopics", 5, topic_names=theirs, timeout_ms=30_000)
            return partitions, self._written(client)

    def _written(self, client: WireClient) -> dict[str, int]:
        wanted = [{"topic": name, "partitions": [0]} for name in self._write_names]
        (folder,) = client.ask("DescribeLogDirs", 4, topics=wanted).body.results
        return {topic.name: topic.partitions[0].partition_size for topic in folder.topics}

    # -- starting and stopping -------------------------------------------------------------------------------

    def _start(self) -> None:
        self.cluster.start()
        with WireClient(self.cluster.brokers[1]) as client:
            names = ["read-small", "read-big", *self._write_names]
            topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
            client.ask("CreateTopics", 7, topics=topics, timeout_ms=30_000, validate_only=False)
            deadline_s = time.monotonic() + _START_S
            while True:
                wanted = [{"name": name} for name in names]
                answer = client.ask("Metadata", 12, topics=wanted, allow_auto_topic_creation=False).body
                if all(topic.error_code == 0 for topic in answer.topics):
                    break
                assert time.monotonic() < deadline_s, "topics did not get ready"
                time.sleep(0.1)
            ids = {topic.name: topic.topic_id for topic in answer.topics}
            for name, size, count in (("read-small", _SMALL_BYTES, 250), ("read-big", _BIG_BYTES, 10)):
                self._read_topics.append((name, ids[name]))
                data = [{"name": name, "partition_data": [{"index": 0, "records": batch(size)}]}]
                written = 0
                while written < count:  # the leader may learn last that it leads
                    reply = client.ask("Produce", 9, acks=1, timeout_ms=30_000, topic_data=data)
                    written += reply.body.responses[0].partition_responses[0].error_code == 0
                    assert time.monotonic() < deadline_s, f"{name} did not get ready"
        for name in self._write_names:
            self._write_topics.put_nowait(Lent(name, ids[name]))
        self._start_gateway()

    def _start_gateway(self) -> None:
        file = self._folder / "gateway.toml"
        file.write_text(self._configuration(), encoding="utf-8")
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._program, "serve", "--config", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                # Without the debug mode of the tests, because the stalls are judged.
                env={name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"},
            )
        deadline_s = time.monotonic() + _START_S
        while not self._ready():
            if not self.gateway_runs or time.monotonic() > deadline_s:
                raise RuntimeError(f"the gateway did not get ready:\n{self.log_file.read_text()[-3000:]}")
            time.sleep(0.1)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.admin}/readyz", timeout=2):
                return True
        except OSError:
            return False

    @property
    def admin(self) -> str:
        """URL of the admin port."""
        return f"http://{HOST}:{self._ports + 4 * LISTENERS}"

    def metrics(self) -> str:
        """All metrics of the gateway in Prometheus' text format."""
        with urllib.request.urlopen(f"{self.admin}/metrics", timeout=20) as answer:
            return str(answer.read().decode())

    def _configuration(self) -> str:
        password_file = self._folder / "password"
        password_file.write_text(PASSWORD + "\n", encoding="utf-8")
        password_file.chmod(0o600)
        broker, sasl = self.cluster.brokers[1], self.cluster.listeners["SASL"][1]
        login = f'{{ mechanism = "PLAIN", username = "{HONEST}", password_file = "{password_file}" }}'
        text = f"""
upstream.bootstrap = ["{broker}"]
admin.bind = "{self.admin.removeprefix("http://")}"
quota_store.kind = "memory"
client_quota.window_num = {WINDOW_NUM}
mutation_quota.window_num = {WINDOW_NUM}
[[upstreams]]
name = "sasl"
bootstrap = ["{sasl}"]
security_protocol = "SASL_PLAINTEXT"
sasl = {login}
"""
        for at, (host, port) in enumerate((*self._plain, *self._sasl)):
            text += f'[[listeners]]\nname = "l{at}"\nbind = "{host}:{port}"\nfirst_broker_port = {port + 1}\n'
            text += "lowest_broker_id = 1\nbroker_ports = 1\n"
            if at >= LISTENERS:
                text += 'upstream = "sasl"\n'
            protocol = ("SASL_" if at >= LISTENERS else "") + ("PLAINTEXT" if self._pki is None else "SSL")
            text += f'security_protocol = "{protocol}"\n'
            if self._pki is not None:
                server = self._pki.server
                text += f'[listeners.tls]\ncertificate = "{server.certificate}"\nkey = "{server.key}"\n'
        quotas = (
            f"producer_byte_rate = {QUOTA_BYTES_PER_S}\nconsumer_byte_rate = {QUOTA_BYTES_PER_S}\n"
            f"controller_mutation_rate = {MUTATIONS_PER_S}\n"
        )
        for entity in ('user = "ANONYMOUS"\ndefault_client_id = true', "default_user = true"):
            text += f"[[quotas]]\n{entity}\n{quotas}"
        plenty = "producer_byte_rate = 100000000\nconsumer_byte_rate = 100000000\ncontroller_mutation_rate = 1000.0\n"
        for entity in (f'user = "ANONYMOUS"\nclient_id = "{HONEST}"', f'user = "{HONEST}"'):
            text += f"[[quotas]]\n{entity}\n{plenty}"
        text += f'[[quotas]]\nuser = "ANONYMOUS"\nclient_id = "{FLOODER}"\nrequest_percentage = 1.0\n'
        return text + self._more_configuration

    def _stop_gateway(self) -> None:
        if self._process is not None:
            kill_all(self._process.pid)
            self._process.wait()

    def _stop(self) -> None:
        self._stop_gateway()
        self.cluster.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def _user(at: int) -> str:
    return f"u{at}"


def _remote_ports(first: int, end: int) -> set[int]:
    """Client ports of all connections to these gateway ports that the gateway has not closed."""
    ports = set()
    with Path("/proc/net/tcp").open(encoding="ascii") as lines:
        for line in itertools.islice(lines, 1, None):
            _, local, remote, state, *_ = line.split()
            if first <= int(local.rpartition(":")[2], 16) < end and state in _OPEN_STATES:
                ports.add(int(remote.rpartition(":")[2], 16))
    return ports
