"""What a real cluster reports of itself, through the gateway: the same, but for where its brokers are."""

import uuid
from collections.abc import Iterator
from typing import Any, Final

import pytest
from kafka.record.memory_records import MemoryRecordsBuilder

from embedded_kafka.kafka import KafkaCluster
from testkit.kafka_cluster import KAFKA_HOST
from testkit.wire_client import WireClient
from tests.integration.conftest import eventually, topic_on
from tests.integration.gateway_process import GatewayProcess

pytestmark = pytest.mark.integration

TOPIC: Final = "metadata-kept"
UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, INVALID_TOPIC, UNKNOWN_TOPIC_ID = 3, 6, 17, 100
LEADER: Final = 2
BROKER_RESOURCE: Final = 4


@pytest.fixture(scope="module")
def topic_id(kafka3: KafkaCluster) -> Iterator[uuid.UUID]:
    """The id of a topic with one partition, on broker 2 alone."""
    with topic_on(kafka3, TOPIC, [LEADER]) as found:
        yield found


def described(gateway: GatewayProcess) -> set[tuple[int, str, int]]:
    """The three brokers as clients are to know them."""
    return {(broker_id, *gateway.broker(broker_id)) for broker_id in (1, 2, 3)}


def without_addresses(answer: dict[str, Any], brokers: str, id_name: str) -> tuple[set[int], dict[str, Any]]:
    """The ids of brokers, and everything in an answer but where they are and which of them is the controller."""
    rest = dict(answer)
    # KRaft names any living broker here, another one with each answer.
    rest.pop("controller_id", None)
    found = rest.pop(brokers)
    assert len({broker[id_name] for broker in found}) == len(found)
    kept = {"host", "port"}
    rest["others"] = sorted(
        sorted((name, str(value)) for name, value in broker.items() if name not in kept) for broker in found
    )
    return {broker[id_name] for broker in found}, rest


@pytest.mark.parametrize("version", range(14))
@pytest.mark.usefixtures("topic_id")
def test_e07_metadata_differs_from_the_brokers_in_addresses_alone(
    gateway3: GatewayProcess, kafka3: KafkaCluster, version: int
) -> None:
    topics = [{"name": TOPIC}, {"name": "not/valid"}]
    fields: dict[str, Any] = {"topics": topics}
    if version >= 4:
        # Before that the question itself would create it.
        topics.append({"name": "metadata-absent"})
        fields["allow_auto_topic_creation"] = False
    with WireClient(kafka3.brokers[1]) as broker, WireClient(gateway3.broker(1)) as client:
        direct = broker.ask("Metadata", version, **fields).body
        through = client.ask("Metadata", version, **fields).body
    assert {(broker.node_id, broker.host, broker.port) for broker in through.brokers} == described(gateway3)
    if version >= 1:
        assert through.controller_id in {1, 2, 3}
    errors = {topic.name: topic.error_code for topic in through.topics}
    assert errors[TOPIC] == 0
    assert errors["not/valid"] == INVALID_TOPIC
    assert errors.get("metadata-absent", UNKNOWN_TOPIC_OR_PARTITION) == UNKNOWN_TOPIC_OR_PARTITION
    assert without_addresses(through.to_dict(), "brokers", "node_id") == without_addresses(
        direct.to_dict(), "brokers", "node_id"
    )


@pytest.mark.parametrize("version", [12, 13])
def test_e07_metadata_by_topic_id_keeps_null_names(
    gateway3: GatewayProcess, topic_id: uuid.UUID, version: int
) -> None:
    asked = [{"topic_id": topic_id, "name": None}, {"topic_id": uuid.uuid4(), "name": None}]
    with WireClient(gateway3.broker(3)) as client:
        topics = client.ask("Metadata", version, topics=asked, allow_auto_topic_creation=False).body.topics
    assert {(topic.name, topic.error_code) for topic in topics} == {(TOPIC, 0), (None, UNKNOWN_TOPIC_ID)}


@pytest.mark.parametrize("version", range(3))
def test_e04_described_cluster_differs_in_addresses_alone(
    gateway3: GatewayProcess, kafka3: KafkaCluster, version: int
) -> None:
    with WireClient(kafka3.brokers[1]) as broker, WireClient(gateway3.bootstrap) as client:
        direct = broker.ask("DescribeCluster", version).body
        through = client.ask("DescribeCluster", version).body
    assert {(broker.broker_id, broker.host, broker.port) for broker in through.brokers} == described(gateway3)
    assert without_addresses(through.to_dict(), "brokers", "broker_id") == without_addresses(
        direct.to_dict(), "brokers", "broker_id"
    )


@pytest.mark.parametrize("version", range(7))
def test_e05_coordinator_is_told_at_the_gateways_address(gateway3: GatewayProcess, version: int) -> None:
    key = f"metadata-group-{version}"
    fields: dict[str, Any] = {"coordinator_keys": [key]} if version >= 4 else {"key": key}
    if version >= 1:
        fields["key_type"] = 0
    with WireClient(gateway3.bootstrap) as client:

        def known() -> bool:
            answer = client.ask("FindCoordinator", version, **fields).body
            found = answer.coordinators[0] if version >= 4 else answer
            if found.error_code:
                assert (found.node_id, found.host, found.port) == (-1, "", -1)
                return False
            assert (found.node_id, found.host, found.port) in described(gateway3)
            return True

        # The first question of all makes the cluster create the topic of the offsets.
        eventually(known)


@pytest.mark.parametrize("version", range(10, 14))
def test_e02_produce_to_the_wrong_broker_names_the_leader_at_the_gateways_address(
    gateway3: GatewayProcess, topic_id: uuid.UUID, version: int
) -> None:
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1024)
    builder.append(timestamp=1_700_000_000_000, key=b"k", value=b"v")
    builder.close()
    partitions = [{"index": 0, "records": bytes(builder.buffer())}]
    topic = {"topic_id": topic_id} if version >= 13 else {"name": TOPIC}
    fields = {"acks": 1, "timeout_ms": 5_000, "topic_data": [{**topic, "partition_data": partitions}]}
    with WireClient(gateway3.broker(1)) as client:
        answer = client.ask("Produce", version, **fields).body
        partition = answer.responses[0].partition_responses[0]
        assert partition.error_code == NOT_LEADER_OR_FOLLOWER
        assert partition.current_leader.leader_id == LEADER
        endpoints = [(node.node_id, node.host, node.port) for node in answer.node_endpoints]
        assert endpoints == [(LEADER, *gateway3.broker(LEADER))]
    with WireClient(endpoints[0][1:]) as client:
        answer = client.ask("Produce", version, **fields).body
    assert answer.responses[0].partition_responses[0].error_code == 0


@pytest.mark.parametrize("version", [16, 17, 18])
def test_e02_fetch_from_the_wrong_broker_names_the_leader_at_the_gateways_address(
    gateway3: GatewayProcess, topic_id: uuid.UUID, version: int
) -> None:
    wanted = {"partition": 0, "current_leader_epoch": -1, "partition_max_bytes": 1_000}
    topics = [{"topic_id": topic_id, "partitions": [wanted]}]
    with WireClient(gateway3.broker(1)) as client:
        answer = client.ask("Fetch", version, max_bytes=1_000, session_epoch=-1, topics=topics).body
    assert answer.responses[0].partitions[0].error_code == NOT_LEADER_OR_FOLLOWER
    assert answer.responses[0].partitions[0].current_leader.leader_id == LEADER
    endpoints = [(node.node_id, node.host, node.port) for node in answer.node_endpoints]
    assert endpoints == [(LEADER, *gateway3.broker(LEADER))]


@pytest.mark.parametrize("version", range(1, 5))
def test_e19_settings_of_a_broker_tell_no_address(
    gateway3: GatewayProcess, kafka3: KafkaCluster, version: int
) -> None:
    asked = [{"resource_type": BROKER_RESOURCE, "resource_name": "1", "configuration_keys": None}]
    with WireClient(kafka3.brokers[1]) as broker, WireClient(gateway3.broker(1)) as client:
        direct = broker.ask("DescribeConfigs", version, resources=asked, include_synonyms=True)
        through = client.ask("DescribeConfigs", version, resources=asked, include_synonyms=True)
    real, told = settings_of(direct.body), settings_of(through.body)
    assert KAFKA_HOST in (real["listeners"] or "")
    assert told["listeners"] is told["advertised.listeners"] is told["controller.quorum.voters"] is None
    assert told.keys() == real.keys()
    # The limits of connections are the gateway's own (docs/how-to/set-quotas.md).
    changed = {name for name in real if real[name] != told[name] and not name.startswith("max.connection")}
    assert all(told[name] is None for name in changed)
    assert told["num.partitions"] == real["num.partitions"] == "1"
    assert KAFKA_HOST.encode() not in through.frame


def settings_of(answer: Any) -> dict[str, str | None]:
    return {setting.name: setting.value for setting in answer.results[0].configs}
