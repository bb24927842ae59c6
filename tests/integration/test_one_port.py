"""Several families of clients reach three brokers through one port, by the names in their TLS hellos.

The gateway has two workers. While the clients produce, leaders move, a broker comes that the gateway has never seen,
and the gateway is replaced by another process. The clients see host names in a namespace with its own /etc/hosts.
"""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.certificates import SERVER, Authority
from testkit.process_group import kill_all
from testkit.tap import Tap
from testkit.wire_client import WireClient
from tests.integration.conftest import eventually, is_led_by
from tests.integration.gateway_process import GATEWAY_HOST, GatewayOptions, GatewayProcess
from tests.integration.go_programs import go_program
from tests.integration.host_names import with_hosts, write_hosts
from tests.integration.java_programs import java_program

pytestmark = pytest.mark.integration

BOOTSTRAP: Final = "kafka.test"
NODES: Final = (1, 2, 3)
TOPIC: Final = "one-port"
MORE_RECORDS: Final = 5
FAMILIES: Final = [
    pytest.param(["Java", "librdkafka", "kafka-python"], id="others"),
    pytest.param(["franz-go"], id="franz-go", marks=pytest.mark.campaign),  # Go takes a minute of CPU to build it
]


class OnePort(GatewayProcess):
    """A gateway whose clients name brokers."""

    def _configuration(self, brokers: str, options: GatewayOptions) -> str:
        return f"""\
[server]
workers = 2
[upstream]
bootstrap = [{brokers}]
[[listeners]]
name = "named"
bind = "{GATEWAY_HOST}:{self._ports[0]}"
security_protocol = "SSL"
{options.listener}
[admin]
bind = "{self._admin}"
[quota_store]
kind = "memory"
[drain]
timeout_ms = 2000
"""

    @property
    def port(self) -> int:
        return self._ports[0]

    def upgrade(self) -> None:
        done = self.command("upgrade")
        assert done.returncode == 0, done.stderr


class Clients:
    """One process for each family, which produces until it is ended."""

    def __init__(self, folder: Path, hosts: Path) -> None:
        self._folder, self._hosts = folder, hosts
        self._processes: list[subprocess.Popen[bytes]] = []
        self.families: list[str] = []

    def start(self, family: str, command: list[str]) -> None:
        with self._out(family).open("wb") as out:
            self._processes.append(
                subprocess.Popen(
                    with_hosts(self._hosts, command), stdout=out, stderr=subprocess.STDOUT, start_new_session=True
                )
            )
        self.families.append(family)

    def _out(self, family: str) -> Path:
        return self._folder / f"{family}.out"

    def acknowledged(self, family: str) -> int:
        """Records so far; of Java a line begins with the producer's number."""
        lines = self._out(family).read_text().splitlines()
        return sum(line.split()[0].isdigit() and "failed" not in line for line in lines if line.split())

    def go_ahead(self) -> None:
        """Wait until each of them has sent more."""
        wanted = {family: self.acknowledged(family) + MORE_RECORDS for family in self.families}
        eventually(
            lambda: all(self.acknowledged(family) >= count for family, count in wanted.items()),
            told=lambda: str({family: self._out(family).read_text()[-600:] for family in wanted}),
        )

    def stop(self) -> None:
        for process in self._processes:
            kill_all(process.pid)
            process.wait()


def listener(folder: Path, authority: Authority) -> str:
    names = authority.issue("all", "all", hosts=(BOOTSTRAP, "*.kafka.test"), usage=SERVER)
    second = authority.issue("second", "second", hosts=("b2.kafka.test",), usage=SERVER)
    return f"""\
[listeners.sni]
bootstrap_name = "{BOOTSTRAP}"
broker_name = "b{{node}}.kafka.test"
[listeners.tls]
certificate = "{names.certificate}"
key = "{names.key}"
[[listeners.tls.certificates]]
certificate = "{second.certificate}"
key = "{second.key}"
"""


def producing(family: str, bootstrap: str, ca: str) -> list[str]:
    """The command of a client that produces until it is ended."""
    if family == "franz-go":
        return [go_program(), bootstrap, TOPIC, ca]
    if family == "Java":
        trust = ["security.protocol=SSL", "ssl.truststore.type=PEM", f"ssl.truststore.location={ca}"]
        return java_program("SteadyProducers", [bootstrap, TOPIC, "1", "1000000", *trust])
    return [sys.executable, "-m", "tests.integration.steady_producer", family, bootstrap, TOPIC, ca]


def create_topic(controller: WireClient, replicas: tuple[int, ...]) -> None:
    assignments = [{"partition_index": 0, "broker_ids": list(replicas)}]
    topic = {"name": TOPIC, "num_partitions": -1, "replication_factor": -1, "assignments": assignments}
    found = controller.ask("CreateTopics", 7, topics=[topic], timeout_ms=30_000).body.topics[0]
    assert found.error_code == 0
    eventually(lambda: is_led_by(controller, TOPIC, replicas[0]))


def move_leader(controller: WireClient, replicas: tuple[int, ...]) -> None:
    """Have the first of these brokers lead the partition, once it has its records."""
    moved = [{"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": list(replicas)}]}]
    elected = [{"topic": TOPIC, "partitions": [0]}]
    controller.ask("AlterPartitionReassignments", 0, topics=moved, timeout_ms=30_000)

    def is_leader() -> bool:
        controller.ask("ElectLeaders", 2, election_type=0, topic_partitions=elected, timeout_ms=30_000)
        return is_led_by(controller, TOPIC, replicas[0])

    eventually(is_leader)


def start_again(kafka3: KafkaCluster) -> None:
    """Have all three brokers run, also after a failure."""
    if 3 not in kafka3.running:
        kafka3.start_broker(3)


@pytest.mark.parametrize("families", FAMILIES)
def test_clients_of_several_families_follow_leaders_to_a_new_broker_through_one_port(
    kafka3: KafkaCluster, tap: Tap, tmp_path: Path, families: list[str]
) -> None:
    hosts, folder = tmp_path / "hosts", tmp_path / "gateway"
    folder.mkdir()
    names = [BOOTSTRAP, *(f"b{node}.kafka.test" for node in NODES)]
    write_hosts(hosts, dict.fromkeys(names, GATEWAY_HOST))
    authority = Authority(tmp_path)
    two = [kafka3.brokers[node] for node in (1, 2)]
    gateway = OnePort(folder, two, tap, GatewayOptions(listener=listener(tmp_path, authority)))
    with ExitStack() as stack:
        stack.callback(start_again, kafka3)
        kafka3.stop_broker(3)
        assert kafka3.running == [1, 2]
        controller = stack.enter_context(WireClient(kafka3.brokers[1]))
        create_topic(controller, (1, 2))
        gateway.start()
        stack.callback(gateway.stop)
        clients = Clients(tmp_path, hosts)
        stack.callback(clients.stop)
        for family in families:
            clients.start(family, producing(family, f"{BOOTSTRAP}:{gateway.port}", str(authority.certificate)))
        clients.go_ahead()
        move_leader(controller, (2, 1))
        clients.go_ahead()
        kafka3.start_broker(3)
        move_leader(controller, (3, 1, 2))
        clients.go_ahead()
        gateway.upgrade()
        clients.go_ahead()
        move_leader(controller, (1, 2, 3))
        clients.go_ahead()
        failures = "gateway_tls_handshake_failures_total"
        for reason in ("no_server_name", "wrong_server_name", "certificate_host", "rejected_by_peer"):
            assert gateway.metric(failures, reason=reason) == 0, reason
        assert gateway.metric("gateway_connections_closed_total", cause="misrouted") == 0
        assert gateway.metric("gateway_broker_port_failures_total") == 0
