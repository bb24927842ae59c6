"""Refusals beside Kafka's own: laid out alike, and passed on when they are the broker's."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.wire_client import WireClient
from tests.integration.conftest import StartGateway, eventually
from tests.integration.gateway_process import GatewayOptions, GatewayProcess
from tests.integration.two_sides import THROTTLING_QUOTA_EXCEEDED, Side, both_sides, brokers_quota

pytestmark = pytest.mark.integration

RATE: Final = 0.01
PLENTY: Final = 1.0
BURST: Final = 11.0
REFUSED: Final = "refusals"
# Here the broker's side is the gateway's client: it has a quota at both.
LIMITED_TWICE: Final = "twice-direct"


@pytest.fixture(scope="module")
def gateway(start_gateway: StartGateway, kafka: KafkaCluster) -> GatewayProcess:
    return start_gateway(kafka, GatewayOptions({REFUSED: RATE, LIMITED_TWICE: PLENTY}))


@pytest.fixture(scope="module", autouse=True)
def quota_of_the_broker(kafka: KafkaCluster) -> Iterator[None]:
    with brokers_quota(kafka.brokers[1], [REFUSED, "twice"], RATE):
        yield


@pytest.fixture(scope="module")
def topic_ids(kafka: KafkaCluster, gateway: GatewayProcess) -> dict[Side, Any]:
    """Both sides in debt, with the id of a topic that each of them has."""
    found = {}
    for side in both_sides(kafka.brokers[1], gateway.bootstrap, REFUSED):
        new = {"name": side.prefix + "there", "num_partitions": 1, "replication_factor": 1}
        answer = side.ask("CreateTopics", 7, topics=[new], timeout_ms=30_000).body.topics[0]
        assert answer.error_code == 0
        found[side] = answer.topic_id
        with WireClient(kafka.brokers[1]) as broker:
            eventually(partial(exists, broker, new["name"]))
    return found


def exists(broker: WireClient, name: object) -> bool:
    asked = [{"name": name}]
    topics = broker.ask("Metadata", 12, topics=asked, allow_auto_topic_creation=False).body.topics
    return bool(topics[0].error_code == 0)


@pytest.mark.parametrize(
    ("name", "version"),
    [("CreateTopics", 6), ("CreateTopics", 7), ("CreatePartitions", 3), ("DeleteTopics", 5), ("DeleteTopics", 6)],
)
def test_refused_topics_look_as_kafka_writes_them(topic_ids: dict[Side, Any], name: str, version: int) -> None:
    seen = []
    for side, topic_id in topic_ids.items():
        there = side.prefix + "there"
        fields: dict[str, Any] = {"timeout_ms": 30_000}
        if name == "CreateTopics":
            new = {"num_partitions": 3, "replication_factor": 1}
            fields["topics"] = [{"name": side.prefix + letter, **new} for letter in "ab"]
        elif name == "CreatePartitions":
            fields["topics"] = [{"name": there, "count": 4, "assignments": None}]
        elif version == 5:
            fields["topic_names"] = [there]
        else:
            fields["topics"] = [{"name": None, "topic_id": topic_id}]
        answer = side.ask(name, version, **fields).body.to_dict()
        assert answer.pop("throttle_time_ms") > 80_000
        (results,) = answer.values()
        for result in results:
            assert result["error_code"] == THROTTLING_QUOTA_EXCEEDED
            result["name"] = result["name"] and result["name"].removeprefix(side.prefix)
            if result.get("topic_id") == str(topic_id):
                result["topic_id"] = "the topic's"
        seen.append(answer)
    assert seen[0] == seen[1]


def test_refusal_of_the_broker_passes_with_its_throttle_time_and_costs_nothing_here(gateway: GatewayProcess) -> None:
    side = Side(gateway.bootstrap, LIMITED_TWICE)

    def create(name: str) -> Any:
        new = {"name": side.prefix + name, "num_partitions": 1, "replication_factor": 1}
        return side.ask("CreateTopics", 7, topics=[new], timeout_ms=30_000).body

    assert create("first").topics[0].error_code == 0
    refused = create("second")
    assert refused.topics[0].error_code == THROTTLING_QUOTA_EXCEEDED
    assert 80_000 < refused.throttle_time_ms <= 90_000
    tokens = gateway.metric("gateway_controller_mutation_tokens", client_id=LIMITED_TWICE)
    assert tokens is not None
    assert BURST - 1 <= tokens <= BURST, "the first was charged, the second given back"
    refusals = gateway.metric("gateway_controller_mutation_refused_topics_total", client_id=LIMITED_TWICE)
    assert not refusals
