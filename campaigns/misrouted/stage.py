"""The parts of the campaign: a gateway behind a tap, clusters with marked records, and Java clients."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from campaigns.misrouted.node_watch import ConnectionWatch, Node, Seen, mark
from embedded_kafka import jars
from embedded_kafka.kafka import KafkaCluster
from testkit.gateway import free_ports
from testkit.loopback import own_host
from testkit.packages import require_package
from testkit.process_group import kill_all
from testkit.tap import Look, Tap

NODES: Final = (2, 3)
"""The nodes that lead the two partitions of each topic."""

MARKED: Final = "marked"
STEADY: Final = "steady"
LONGEST_S: Final = 120.0
"""Only a process that hangs takes longer."""

GATEWAY_HOST: Final = own_host(66, 2)
KAFKA_HOST: Final = own_host(77, 2)
BROKERS_HOST: Final = own_host(78, 2)
"""The host that the brokers advertise."""
TAP_HOST: Final = own_host(88, 2)
_PORTS: Final = 6
_POLL_S: Final = 0.02
_JVM: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class NodeTap(Tap):
    """A tap that watches which node's records clients get.

    Attributes:
        seen: results of all connections.
        bootstrap: the bootstrap port.
    """

    def __init__(self) -> None:
        """Create the tap without binding a port."""
        super().__init__(TAP_HOST, (GATEWAY_HOST, KAFKA_HOST, BROKERS_HOST))
        self.seen = Seen()
        self.bootstrap = 0

    def looks(self, port: int) -> tuple[Look, Look]:
        """See `Tap`."""
        watch = ConnectionWatch(self.seen, bootstrap=port == self.bootstrap)
        _, search = super().looks(port)
        assert search is not None

        def to_client(data: bytes) -> None:
            search(data)
            watch.to_client(data)

        return watch.from_client, to_client


class Crossing(Tap):
    """The brokers' advertised addresses; each leads to its broker, or for a while to another one."""

    def __init__(self, cluster: KafkaCluster) -> None:
        """Lead each address to its broker, or to that of another cluster at the same addresses."""
        super().__init__(BROKERS_HOST, ())
        self._brokers = dict(cluster.brokers)
        for address in self._brokers.values():
            self.relay(address.port, address)

    def looks(self, port: int) -> tuple[Look | None, Look | None]:
        """See `Tap`; this tap inspects no bytes."""
        return None, None

    def route(self, nodes: Mapping[int, int]) -> None:
        """Lead the addresses of some nodes to others, and end the connections to them."""
        ports = {self._brokers[node].port: self._brokers[there] for node, there in nodes.items()}
        self.stop_relaying(list(ports))
        for port, there in ports.items():
            self.relay(port, there)
        self.hang_up(list(ports))


def new_cluster(**options: Any) -> KafkaCluster:
    """Three brokers, not started yet, that advertise the addresses of a `Crossing`."""
    properties = {
        "advertised.listeners": f"PLAINTEXT://{BROKERS_HOST}:{{port}}",
        "auto.create.topics.enable": "false",
    }
    return KafkaCluster(3, host=KAFKA_HOST, properties=properties, **options)


def wait_for(fact: Callable[[], bool], what: str) -> None:
    """Wait until `fact` is true.

    Raises:
        SystemExit: it is still false after two minutes.
    """
    end_s = time.monotonic() + LONGEST_S
    while not fact():
        if time.monotonic() > end_s:
            raise SystemExit(f"in vain: {what}")
        time.sleep(_POLL_S)


class TappedGateway:
    """A gateway behind the tap, which advertises the tap's addresses.

    Attributes:
        bootstrap: bootstrap address for clients.
    """

    def __init__(self, folder: Path, cluster: KafkaCluster, tap: NodeTap) -> None:
        """Prepare the gateway without starting it; the tap already relays."""
        first = free_ports(_PORTS + 1)
        self._tap = tap
        tap.bootstrap = first
        self._ports = range(first, first + _PORTS)
        self._admin = f"127.0.0.1:{first + _PORTS}"
        self.bootstrap = f"{TAP_HOST}:{first}"
        self._config = folder / "gateway.toml"
        self._log = folder / "gateway.log"
        brokers = ", ".join(f'"{BROKERS_HOST}:{address.port}"' for address in cluster.brokers.values())
        self._text = (
            f'[upstream]\nbootstrap = [{brokers}]\n[admin]\nbind = "{self._admin}"\n'
            '[quota_store]\nkind = "memory"\n'
            f'[[listeners]]\nname = "tapped"\nbind = "{GATEWAY_HOST}:{first}"\nadvertised_host = "{TAP_HOST}"\n'
            f"first_broker_port = {first + 1}\nbroker_ports = {_PORTS - 1}\nlowest_broker_id = "
        )
        self._lowest = 1
        self._process: subprocess.Popen[bytes] | None = None
        for port in self._ports:
            self._route(port, port)

    def _port_of(self, node_id: int) -> int:
        return self._ports[1] + node_id - self._lowest

    def _route(self, port: int, there: int) -> None:
        self._tap.relay(port, (GATEWAY_HOST, there))

    def route(self, nodes: Mapping[int, int]) -> None:
        """Lead clients of the ports of some nodes to the ports of others, and end their connections."""
        ports = {self._port_of(node): self._port_of(there) for node, there in nodes.items()}
        self._tap.stop_relaying(list(ports))
        for port, there in ports.items():
            self._route(port, there)
        self._tap.hang_up(list(ports))

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        self._config.write_text(f"{self._text}{self._lowest}\n")
        command = [str(Path(sys.executable).parent / "sluice"), "serve", "--config", str(self._config)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        wait_for(self._is_ready, f"the gateway is ready; its log is {self._log}")

    def move_ports(self) -> None:
        """Restart it with each port moved by one node: node 2 gets the port that node 1 had."""
        self.stop()
        self._lowest -= 1
        self.start()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._admin}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            kill_all(self._process.pid)
            self._process.wait()


class Clients:
    """Java clients in one process, half of them readers and half of them writers.

    Attributes:
        count: number of clients.
        client_ids: their client ids.
    """

    def __init__(self, folder: Path, bootstrap: str, count: int) -> None:
        """Start them."""
        require_package("default-jdk-headless", "javac")
        self.count = count
        self.client_ids = frozenset(f"{('reader', 'writer')[each % 2]}-{each}" for each in range(count))
        self._out = folder / "clients"
        arguments = [bootstrap, MARKED, STEADY, str(count)]
        program = Path(__file__).with_name("MisroutedClients.java")
        command = jars.java_command(
            jars.installed(), str(program), arguments, jvm_options=_JVM, log_level="ERROR"
        )
        with self._out.open("wb") as out, (folder / "clients.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=log)

    def worked_since(self, since_ms: int) -> dict[str, int]:
        """Client id -> Unix time of the client's first success since then."""
        found: dict[str, int] = {}
        for line in self._out.read_text().splitlines():
            client_id, _, at = line.partition(" ")
            if at.isdigit() and int(at) >= since_ms:
                found.setdefault(client_id, int(at))
        return found

    def stop(self) -> None:
        """End them."""
        self._process.kill()
        self._process.wait()


def fill(cluster: KafkaCluster) -> str:
    """Create both topics with a partition on each of two nodes, and write marked records; the cluster's id."""
    client = {"bootstrap.servers": cluster.bootstrap}
    admin = AdminClient(client)
    places = [[node] for node in NODES]
    topics = [NewTopic(name, len(places), replica_assignment=places) for name in (MARKED, STEADY)]
    for made in admin.create_topics(topics).values():
        made.result(LONGEST_S)
    cluster_id = str(admin.describe_cluster().result(LONGEST_S).cluster_id)
    producer = Producer(client)
    for partition, node in enumerate(NODES):
        producer.produce(MARKED, mark(Node(cluster_id, node)), partition=partition)
    if producer.flush(LONGEST_S):
        raise SystemExit("the marked records were not written")
    return cluster_id
