"""A Kafka with users, a gateway with the quotas of the how-to, and a process of clients for each team."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from campaigns.serving import serving
from campaigns.three_teams.clients import FETCHED, PASSWORD, PRODUCED, RECORD_BYTES, RECORDS_PER_BATCH, Line
from embedded_kafka import jars
from embedded_kafka.kafka import KafkaCluster
from testkit.gateway import free_ports
from testkit.wire_client import WireClient

CAPACITY: Final = 4_000_000
"""Bytes per second, for Produce and for Fetch each. Two cores can serve several times as much."""

TEAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "orders": ("orders",),
    "search": ("search",),
    "lab": ("lab-1", "lab-2", "lab-3", "lab-4"),
}
"""The users of each team."""

GUARANTEES: Final = {"orders": CAPACITY / 2, "search": CAPACITY / 5}
_FILLED_RECORDS: Final = 10_000
_BROKER: Final = "of-the-gateway"
_READY_S: Final = 60.0
_ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class Team:
    """The clients of one team.

    Attributes:
        process: see `campaigns.three_teams.clients`.
        lines: the lines of its output.
    """

    process: subprocess.Popen[str]
    lines: list[Line] = field(default_factory=list)

    def offer(self, rate: float) -> None:
        """Set the offer of each client from now on, in bytes per second."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{rate}\n")
        self.process.stdin.flush()

    def listen(self) -> None:
        """Read the output until the process ends."""
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self.lines.append(Line.parse(text))


@contextmanager
def team(bootstrap: str, first: int, users: Sequence[str], log: Path) -> Iterator[Team]:
    """Run the clients of these users during the block. The first user produces to partition `first`."""
    command = [sys.executable, "-m", "campaigns.three_teams.clients", bootstrap, str(first), *users]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    with process:
        found = Team(process)
        listener = threading.Thread(target=found.listen)
        listener.start()
        try:
            yield found
        finally:
            process.kill()
            listener.join()


class Waits:
    """How long a process waits for a CPU: other work on the machine delays the whole run.

    Attributes:
        in_seconds_ms: milliseconds of waiting in each second.
    """

    def __init__(self, pid: int) -> None:
        """Begin to watch the first thread of the process."""
        self.in_seconds_ms: list[float] = []
        self._file = Path(f"/proc/{pid}/schedstat")
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        before_ns = self._waited_ns()
        while not self._end.wait(1):
            now_ns = self._waited_ns()
            self.in_seconds_ms.append((now_ns - before_ns) / 1e6)
            before_ns = now_ns

    def _waited_ns(self) -> int:
        return int(self._file.read_text().split()[1])


@contextmanager
def stage(folder: Path) -> Iterator[tuple[dict[str, Team], Waits]]:
    """Start everything, and wait until each client has produced or fetched records."""
    with ExitStack() as stack:
        users = [user for team in TEAMS.values() for user in team]
        cluster = stack.enter_context(_kafka([*users, _BROKER]))
        _make_topics(cluster, len(users))
        port = free_ports(4)
        file = folder / "gateway.toml"
        file.write_text(_configuration(cluster, folder, port))
        gateway = stack.enter_context(
            serving(file, admin=f"http://127.0.0.1:{port + 2}", log=folder / "gateway.log")
        )
        teams = {
            name: stack.enter_context(
                team(f"127.0.0.1:{port}", users.index(TEAMS[name][0]), TEAMS[name], folder / f"{name}.log")
            )
            for name in TEAMS
        }
        for each in teams.values():
            each.offer(10 * RECORD_BYTES)
        _until_all_have_begun(teams)
        waits = Waits(gateway.pid)
        stack.callback(waits.stop)
        yield teams, waits


def _until_all_have_begun(teams: Mapping[str, Team]) -> None:
    deadline_s = time.monotonic() + _READY_S
    for name, each in teams.items():
        wanted = {(user, verb) for user in TEAMS[name] for verb in ("produce", "fetch")}
        while wanted - {(line.user, line.verb) for line in list(each.lines) if line.passed}:
            if each.process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"the clients of {name} did not begin")
            time.sleep(0.1)


def _kafka(users: Sequence[str]) -> KafkaCluster:
    known = " ".join(f'user_{user}="{PASSWORD}"' for user in users)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    properties = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f"{module} {known};",
    }
    # The default garbage collector regularly stops the broker for a tenth of a second.
    return KafkaCluster(
        1, properties=properties, listeners={"SASL": "SASL_PLAINTEXT"}, jvm_options=jars.FULL_SPEED
    )


def _make_topics(cluster: KafkaCluster, users: int) -> None:
    with WireClient(cluster.brokers[1]) as client:
        topics = [
            {"name": name, "num_partitions": partitions, "replication_factor": 1}
            for name, partitions in ((PRODUCED, users), (FETCHED, 1))
        ]
        reply = client.ask("CreateTopics", 4, topics=topics, timeout_ms=30_000, validate_only=False)
    assert {each.error_code for each in reply.body.topics} == {0}
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "linger.ms": 20,
            "batch.num.messages": RECORDS_PER_BATCH,
            "batch.size": 65_536,
        }
    )
    for _ in range(_FILLED_RECORDS):
        while True:
            with contextlib.suppress(BufferError):
                producer.produce(FETCHED, bytes(RECORD_BYTES), partition=0)
                break
            producer.poll(0.1)
    assert producer.flush(60) == 0


def _configuration(cluster: KafkaCluster, folder: Path, port: int) -> str:
    password = folder / "password"
    password.write_text(PASSWORD)
    password.chmod(0o600)

    def both(key: str, value: float) -> str:
        return "".join(f"{verb}_{key} = {value:.0f}\n" for verb in ("producer_byte", "consumer_byte"))

    return (
        f'[upstream]\nbootstrap = ["{cluster.listeners["SASL"][1]}"]\nsecurity_protocol = "SASL_PLAINTEXT"\n'
        f'sasl = {{ mechanism = "PLAIN", username = "{_BROKER}", password_file = "{password}" }}\n'
        f'[[listeners]]\nname = "teams"\nbind = "127.0.0.1:{port}"\nsecurity_protocol = "SASL_PLAINTEXT"\n'
        f"first_broker_port = {port + 1}\nlowest_broker_id = 1\nbroker_ports = 1\n"
        f'[admin]\nbind = "127.0.0.1:{port + 2}"\n[quota_store]\nkind = "memory"\n'
        f"[capacity]\n{both('rate', CAPACITY)}"
        f'[[quotas]]\nuser = "orders"\ntier = 0\n{both("rate", CAPACITY)}'
        f"{both('guarantee', GUARANTEES['orders'])}"
        f'[[quotas]]\nuser = "search"\nweight = 3\n{both("rate", CAPACITY)}'
        f"{both('guarantee', GUARANTEES['search'])}"
        f"[[quotas]]\ndefault_user = true\ntier = 3\n{both('rate', 0.3 * CAPACITY)}"
    )
