"""Fixtures of the integration tests: a real Kafka of one and of three brokers, each started when first asked for.

Clients reach a gateway through the tap, which fails the test during which a broker's own address went to a client
(hazard E01). Whatever gateways let out, at DEBUG, is searched for the secrets of the suite (hazard H15).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final, TypeAlias
from uuid import UUID

import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.forked_sluice import stop_forking
from testkit.kafka_cluster import KAFKA_HOST, shared_cluster
from testkit.polling import pause_s
from testkit.secrets import OUTPUTS
from testkit.secure_kafka import SECURE_HOST, SecureKafka
from testkit.tap import Tap
from testkit.wire_client import WireClient
from tests.integration.gateway_process import GATEWAY_HOST, TAP_HOST, GatewayOptions, GatewayProcess

WITHIN_S: Final = 60.0
StartGateway: TypeAlias = Callable[..., GatewayProcess]


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """One broker, no quotas set, shared by the session: use topic names and client ids of your own."""
    yield from shared_cluster(request, brokers=1)


@pytest.fixture(scope="session")
def kafka3(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Three brokers, shared by the session: leave all of them running."""
    yield from shared_cluster(request, brokers=3)


@pytest.fixture(scope="session")
def secure_kafka(request: pytest.FixtureRequest) -> Iterator[SecureKafka]:
    """One broker with TLS and SASL listeners, shared by the session."""
    failed_before = request.session.testsfailed
    secure = SecureKafka().start()
    yield secure
    failed = request.session.testsfailed > failed_before
    secure.stop(keep_logs=failed)
    if failed:
        print(f"\nbroker logs of the failed run: {secure.cluster.directory / 'logs'}")


@pytest.fixture(scope="session")
def tap() -> Iterator[Tap]:
    """What all clients of gateways go through."""
    tap = Tap(TAP_HOST, forbidden=[KAFKA_HOST, SECURE_HOST, GATEWAY_HOST])
    yield tap
    tap.close()
    stop_forking()
    assert tap.hits == [], "a broker's own address was told"
    # All gateways have ended by now.
    OUTPUTS.look()
    assert OUTPUTS.hits == [], "a secret was told"


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails the test during which an address behind the gateway was sent to a client, or a secret to anyone."""
    if "tap" not in request.fixturenames:
        yield
        return
    secrets_before = len(OUTPUTS.hits)
    tap: Tap = request.getfixturevalue("tap")
    before = len(tap.hits)
    yield
    leaked = tap.hits[before:]
    del tap.hits[before:]
    OUTPUTS.look()
    told = OUTPUTS.hits[secrets_before:]
    del OUTPUTS.hits[secrets_before:]
    assert leaked == [], "a broker's own address was told"
    assert told == [], "a secret was told"


@contextmanager
def _started(tap: Tap, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartGateway]:
    with ExitStack() as stack:

        def start(cluster: KafkaCluster, options: GatewayOptions | None = None) -> GatewayProcess:
            directory = tmp_path_factory.mktemp("gateway")
            gateway = GatewayProcess(directory, cluster.brokers.values(), tap, options)
            gateway.start()
            stack.callback(gateway.stop)
            return gateway

        yield start


@pytest.fixture(scope="module")
def start_gateway(tap: Tap, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartGateway]:
    """Starts gateways that live as long as the tests of a file; for those that tests share."""
    with _started(tap, tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def gateway3(tap: Tap, kafka3: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway before the three brokers, with a quota that no test reaches; shared by the session."""
    with _started(tap, tmp_path_factory) as start:
        yield start(kafka3, GatewayOptions(quotas={"never-reached": 1e6}))


def eventually(condition: Callable[[], bool], within_s: float = WITHIN_S, told: Callable[[], str] = str) -> None:
    """Wait for what a cluster, or a client library, does in its own time; `told` says what was seen instead."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + within_s, f"did not happen in time: {told()}"
        time.sleep(pause_s(time.monotonic() - began))


def is_led_by(client: WireClient, topic: str, leader: int) -> bool:
    """Whether this broker has heard that the topic's first partition is led by that one."""
    found = client.ask("Metadata", 12, topics=[{"name": topic}], allow_auto_topic_creation=False).body.topics[0]
    return bool(found.error_code == 0 and found.partitions[0].leader_id == leader)


def takes_records(leader: WireClient, topic: str) -> bool:
    """Whether the leader of the topic's first partition takes records: a new one is named before it does."""
    wanted = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    found = leader.ask("ListOffsets", 2, replica_id=-1, isolation_level=0, topics=wanted).body.topics[0]
    return bool(found.partitions[0].error_code == 0)


def move_leader(client: WireClient, topic: str, leader: int) -> None:
    """Have another of three brokers lead the topic's one partition."""
    replicas = sorted((1, 2, 3), key=lambda broker: broker != leader)
    moved = [{"name": topic, "partitions": [{"partition_index": 0, "replicas": replicas}]}]
    client.ask("AlterPartitionReassignments", 0, topics=moved, timeout_ms=30_000)
    elected = [{"topic": topic, "partitions": [0]}]
    client.ask("ElectLeaders", 2, election_type=0, topic_partitions=elected, timeout_ms=30_000)
    eventually(partial(is_led_by, client, topic, leader))


@contextmanager
def topic_on(
    cluster: KafkaCluster, name: str, broker_ids: Sequence[int], *, min_insync_replicas: int = 1
) -> Iterator[UUID]:
    """A topic of one partition on these brokers, led by the first of them as all brokers know and it too; its id."""
    topic = {
        "name": name,
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [{"partition_index": 0, "broker_ids": list(broker_ids)}],
        "configs": [{"name": "min.insync.replicas", "value": str(min_insync_replicas)}],
    }
    with WireClient(cluster.brokers[1]) as broker:
        found = broker.ask("CreateTopics", 7, topics=[topic], timeout_ms=30_000).body.topics[0]
        assert found.error_code == 0
        for address in cluster.brokers.values():
            with WireClient(address) as other:
                eventually(partial(is_led_by, other, name, broker_ids[0]))
        with WireClient(cluster.brokers[broker_ids[0]]) as leader:
            eventually(partial(takes_records, leader, name))
        yield found.topic_id
        broker.ask("DeleteTopics", 5, topic_names=[name], timeout_ms=30_000)
