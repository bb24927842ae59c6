"""A broker of Kafka 4.3.1 behind the gateway, which knows newer versions of some APIs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from embedded_kafka.kafka import KafkaCluster
from pinned_jars import FetchError
from protocol.api_keys import ApiKey
from testkit import wire
from testkit.kafka_cluster import KAFKA_HOST
from testkit.wire_client import ConnectionEnded, WireClient
from tests.integration.conftest import StartGateway
from tests.integration.gateway_process import GatewayProcess
from tests.integration.java_programs import run_java

pytestmark = [pytest.mark.integration, pytest.mark.campaign]

VERSION: Final = "4.3.1"
SOFTWARE: Final = {"client_software_name": "tests", "client_software_version": "1"}
UNSUPPORTED_VERSION, REBOOTSTRAP_REQUIRED = 35, 129
NEWEST: Final = {
    ApiKey.API_VERSIONS: 4,
    ApiKey.TXN_OFFSET_COMMIT: 5,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.STREAMS_GROUP_HEARTBEAT: 0,
    ApiKey.STREAMS_GROUP_DESCRIBE: 0,
}
"""Of that broker, where 4.4 has more."""


@pytest.fixture(scope="module")
def older() -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(host=KAFKA_HOST, version=VERSION)
    try:
        cluster.start()
    except FetchError as exc:
        pytest.skip(f"no jars of Kafka {VERSION}: {exc}")
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def gateway(start_gateway: StartGateway, older: KafkaCluster) -> GatewayProcess:
    return start_gateway(older)


@pytest.mark.parametrize("version", range(5))
def test_no_version_is_offered_that_the_broker_does_not_have(
    gateway: GatewayProcess, older: KafkaCluster, version: int
) -> None:
    fields = SOFTWARE if version >= 3 else {}
    with WireClient(older.brokers[1]) as broker, WireClient(gateway.broker(1)) as client:
        direct, through = (
            {api.api_key: api.max_version for api in one.ask("ApiVersions", version, **fields).body.api_keys}
            for one in (broker, client)
        )
    assert all(newest <= direct[key] for key, newest in through.items())
    assert {key: through[key] for key in NEWEST} == NEWEST
    assert ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE not in through


def test_a_client_that_names_its_node_goes_on_in_the_version_of_the_broker(
    gateway: GatewayProcess, older: KafkaCluster
) -> None:
    with WireClient(older.brokers[1]) as broker:
        cluster_id = broker.ask("DescribeCluster", 0).body.cluster_id
    with WireClient(gateway.broker(1)) as client:
        refused = client.ask("ApiVersions", 5, **SOFTWARE, cluster_id=cluster_id, node_id=1)
        assert refused.body.error_code == UNSUPPORTED_VERSION
        (own,) = wire.decode_response("ApiVersions", 0, refused.frame).api_keys
        assert (own.api_key, own.max_version) == (ApiKey.API_VERSIONS, 4)
        assert client.ask("ApiVersions", 4, **SOFTWARE).body.error_code == 0


@pytest.mark.parametrize(("port_of", "cluster", "node_id"), [(1, "", 2), (1, "another", 1), (None, "", 1)])
def test_the_gateway_judges_names_that_the_broker_cannot_read(
    gateway: GatewayProcess, older: KafkaCluster, port_of: int | None, cluster: str, node_id: int
) -> None:
    with WireClient(older.brokers[1]) as broker:
        cluster_id = cluster or broker.ask("DescribeCluster", 0).body.cluster_id
    with WireClient(gateway.bootstrap if port_of is None else gateway.broker(port_of)) as client:
        refused = client.ask("ApiVersions", 5, **SOFTWARE, cluster_id=cluster_id, node_id=node_id)
        assert refused.body.error_code == REBOOTSTRAP_REQUIRED
        with pytest.raises(ConnectionEnded):
            client.ask("ApiVersions", 4, **SOFTWARE)


@pytest.mark.parametrize("protocol", ["classic", "consumer", "share"])
def test_java_clients_of_4_4_produce_and_read(gateway: GatewayProcess, older: KafkaCluster, protocol: str) -> None:
    topic = f"older-{protocol}"
    made = {"name": topic, "num_partitions": 1, "replication_factor": 1}
    with WireClient(gateway.broker(1)) as client:
        assert client.ask("CreateTopics", 7, topics=[made], timeout_ms=30_000).body.topics[0].error_code == 0
    arguments = [str(gateway.bootstrap), topic]
    sent = run_java("SteadyProducers", [*arguments, "2", "5"])
    assert (sent.returncode, len(sent.stdout.splitlines())) == (0, 10), sent.stderr
    read = run_java("Readers", [*arguments, protocol, "10"])
    assert (read.returncode, len(read.stdout.split())) == (0, 10), read.stderr
