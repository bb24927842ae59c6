"""Clients of 4.4 that end up at the wrong broker or cluster, with real brokers (KIP-1242).

The gateway answers the names in their first question as a broker does, and Java clients find their way back.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.kafka_cluster import KAFKA_HOST
from testkit.tap import Tap
from testkit.wire_client import ConnectionEnded, Reply, WireClient
from tests.integration.conftest import StartGateway, eventually, topic_on
from tests.integration.gateway_process import GatewayProcess
from tests.integration.java_programs import java_program

pytestmark = pytest.mark.integration

NONE, INVALID_REQUEST, REBOOTSTRAP_REQUIRED = 0, 42, 129
SOFTWARE: Final = {"client_software_name": "tests", "client_software_version": "1"}
TOPIC: Final = "misrouted"
CLIENTS: Final = 5
TOLD: Final = "Rebootstrap requested by server"
MISROUTED: Final = {"name": "gateway_connections_closed_total", "cause": "misrouted"}


def cluster_id_of(cluster: KafkaCluster) -> str:
    with WireClient(next(iter(cluster.brokers.values()))) as broker:
        return str(broker.ask("DescribeCluster", 0).body.cluster_id)


def name(client: WireClient, cluster_id: str | None, node_id: int) -> Reply:
    """Ask as a client that wants to speak to this node."""
    return client.ask("ApiVersions", 5, **SOFTWARE, cluster_id=cluster_id, node_id=node_id)


def judged(port: tuple[str, int], cluster_id: str, node_id: int, error_code: int) -> None:
    """A client that comes to this port and wants to speak to this node gets this answer."""
    with WireClient(port) as client:
        assert name(client, cluster_id, node_id).body.error_code == error_code


@pytest.mark.parametrize("node_id", [-1, 1, 2, 9])
@pytest.mark.parametrize("cluster", ["right", "wrong", None])
def test_names_are_judged_at_a_brokers_port_as_by_the_broker(
    gateway3: GatewayProcess, kafka3: KafkaCluster, cluster: str | None, node_id: int
) -> None:
    cluster_id = cluster_id_of(kafka3) if cluster == "right" else cluster
    with WireClient(kafka3.brokers[2]) as broker, WireClient(gateway3.broker(2)) as client:
        direct, through = name(broker, cluster_id, node_id), name(client, cluster_id, node_id)
    assert through.body.error_code == direct.body.error_code
    if direct.body.error_code != NONE:
        assert through.frame == direct.frame
    half = (cluster is None) is not (node_id == -1)
    wrong = cluster is not None and (cluster, node_id) != ("right", 2)
    assert direct.body.error_code == (INVALID_REQUEST if half else REBOOTSTRAP_REQUIRED if wrong else NONE)


def test_the_bootstrap_port_is_no_node(gateway3: GatewayProcess, kafka3: KafkaCluster) -> None:
    cluster_id = cluster_id_of(kafka3)
    for node_id in (1, 2, 3):
        with WireClient(gateway3.bootstrap) as client:
            assert name(client, cluster_id, node_id).body.error_code == REBOOTSTRAP_REQUIRED
            with pytest.raises(ConnectionEnded):
                client.ask("Metadata", 12, topics=None)
    with WireClient(gateway3.bootstrap) as client:
        assert name(client, None, -1).body.error_code == NONE
        assert {broker.node_id for broker in client.ask("Metadata", 12, topics=None).body.brokers} == {1, 2, 3}


def test_what_a_misrouted_client_sends_ahead_reaches_no_broker(
    gateway3: GatewayProcess, kafka3: KafkaCluster
) -> None:
    cluster_id = cluster_id_of(kafka3)
    for cluster, node_id in ((cluster_id, 1), ("another", 2)):
        with WireClient(gateway3.broker(2)) as client:
            client.send("ApiVersions", 5, **SOFTWARE, cluster_id=cluster, node_id=node_id)
            topic = {"name": "misrouted-ahead", "num_partitions": 1, "replication_factor": 1}
            client.send("CreateTopics", 7, topics=[topic], timeout_ms=30_000)
            assert client.receive().body.error_code == REBOOTSTRAP_REQUIRED
            with pytest.raises(ConnectionEnded):
                client.receive()
    with WireClient(kafka3.brokers[1]) as broker:
        topics = broker.ask("Metadata", 12, topics=None, allow_auto_topic_creation=False).body.topics
        assert "misrouted-ahead" not in {topic.name for topic in topics}


class Producers:
    """Java producers that send all the time, one process of several."""

    def __init__(self, directory: Path) -> None:
        self._out, self._log = directory / "producers", directory / "producers.log"

    @contextmanager
    def running(self, gateway: GatewayProcess) -> Iterator[None]:
        command = java_program("SteadyProducers", [str(gateway.bootstrap), TOPIC, str(CLIENTS)], log_level="INFO")
        with self._out.open("w") as out, self._log.open("w") as log:
            process = subprocess.Popen(command, stdout=out, stderr=log, stdin=subprocess.DEVNULL)
        try:
            self.have_all_sent(1)
            yield
        finally:
            process.kill()
            process.wait()

    def have_all_sent(self, more: int) -> None:
        """Wait until each has had so many more records acknowledged."""
        wanted = {number: sent + more for number, sent in self._sent().items()}
        eventually(lambda: all(self._sent()[number] >= count for number, count in wanted.items()), told=self._tail)

    def have_been_told(self) -> bool:
        return TOLD in self._log.read_text()

    def _sent(self) -> dict[int, int]:
        lines = [line.split() for line in self._out.read_text().splitlines()]
        assert not [line for line in lines if line[1:2] == ["failed"]], self._tail()
        return {number: sum(line[:1] == [str(number)] for line in lines) for number in range(CLIENTS)}

    def _tail(self) -> str:
        return f"{self._out.read_text()[-500:]}\n{self._log.read_text()[-3000:]}"


@pytest.mark.campaign
def test_java_clients_find_their_node_after_its_port_went_to_another_one(
    start_gateway: StartGateway, kafka3: KafkaCluster, tmp_path: Path
) -> None:
    gateway = start_gateway(kafka3)
    producers = Producers(tmp_path)
    with topic_on(kafka3, TOPIC, [2, 3]), producers.running(gateway):
        gateway.stop()
        # What was the port of node 2 is that of node 1 now.
        text = gateway.config_file.read_text()
        gateway.config_file.write_text(text.replace("lowest_broker_id = 1", "lowest_broker_id = 0"))
        gateway.start()
        producers.have_all_sent(20)
        # While the gateway was gone, a client may have begun anew without notice.
        judged(gateway.broker(2), cluster_id_of(kafka3), 2, REBOOTSTRAP_REQUIRED)
        judged(gateway.broker(2), cluster_id_of(kafka3), 1, NONE)


@pytest.mark.campaign
def test_java_clients_go_on_where_ports_are_crossed_for_a_while(
    start_gateway: StartGateway, kafka3: KafkaCluster, tap: Tap, tmp_path: Path
) -> None:
    """By a load balancer: the gateway is the same, and what it offers is right."""
    gateway = start_gateway(kafka3)
    producers = Producers(tmp_path)
    ports = [gateway.broker(2).port, gateway.broker(3).port]

    def route(there: list[int]) -> None:
        tap.stop_relaying(ports)
        for port, broker_id in zip(ports, there, strict=True):
            tap.relay(port, gateway.behind_tap(broker_id))
        tap.hang_up(ports)

    with topic_on(kafka3, TOPIC, [2, 3]), producers.running(gateway):
        route([3, 2])
        eventually(lambda: (gateway.metric(**MISROUTED) or 0) >= CLIENTS)
        route([2, 3])
        producers.have_all_sent(20)
        assert producers.have_been_told()


@pytest.mark.campaign
def test_java_clients_go_on_when_the_upstream_leads_to_another_cluster(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    """The gateway lives on, with the id of the first cluster in mind; the brokers' word counts."""
    first, second = KafkaCluster(host=KAFKA_HOST), KafkaCluster(host=KAFKA_HOST)
    second.brokers = first.brokers
    producers = Producers(tmp_path)
    try:
        first.start()
        gateway = start_gateway(first)
        with producers.running(gateway):
            before = cluster_id_of(first)
            first.stop()
            second.start()
            producers.have_all_sent(20)
            judged(gateway.broker(1), before, 1, REBOOTSTRAP_REQUIRED)
            judged(gateway.broker(1), cluster_id_of(second), 1, NONE)
    finally:
        first.stop()
        second.stop()
