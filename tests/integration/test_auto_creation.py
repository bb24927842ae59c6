"""Topics that Metadata creates by itself: charged to the client that named them, and in debt not created at all."""

import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.wire_client import WireClient
from tests.integration.conftest import StartGateway, eventually
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration

RATE: Final = 2.0
BURST: Final = 22.0
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
VERSIONS: Final = range(14)
CREATED: Final = "gateway_auto_created_topics_total"
TOKENS: Final = "gateway_controller_mutation_tokens"


@pytest.fixture(scope="module")
def gateway(start_gateway: StartGateway, kafka: KafkaCluster) -> GatewayProcess:
    """Two topics a second, for two clients."""
    return start_gateway(kafka, GatewayOptions(quotas={"auto-rich": RATE, "auto-poor": RATE}))


@pytest.fixture
def broker(kafka: KafkaCluster) -> Iterator[WireClient]:
    """The broker itself; topics of these tests are gone at the end."""
    with WireClient(kafka.brokers[1]) as client:
        yield client
        ours = [name for name in names(client) if name.startswith("auto-")]
        client.ask("DeleteTopics", 5, topic_names=ours, timeout_ms=30_000)


def names(client: WireClient) -> set[str]:
    topics = client.ask("Metadata", 12, topics=None, allow_auto_topic_creation=False).body.topics
    return {topic.name for topic in topics}


def ask_for(client: WireClient, version: int, name: str) -> Any:
    """Metadata of one topic, with the permission to create it; before v4 there is no other way to ask."""
    permission = {"allow_auto_topic_creation": True} if version >= 4 else {}
    return client.ask("Metadata", version, topics=[{"name": name}], **permission).body


def test_created_topics_are_charged_once_to_the_client_that_named_them(
    gateway: GatewayProcess, broker: WireClient
) -> None:
    started = time.monotonic()
    before = gateway.metric(CREATED) or 0
    wanted = {f"auto-rich-{version}" for version in VERSIONS}
    with WireClient(gateway.bootstrap, client_id="auto-rich") as client:
        for version in VERSIONS:
            answer = ask_for(client, version, f"auto-rich-{version}")
            assert [topic.error_code for topic in answer.topics] == [UNKNOWN_TOPIC_OR_PARTITION]
            assert len(answer.brokers) == 1
        eventually(lambda: wanted <= names(broker))
        tokens = gateway.metric(TOKENS, client_id="auto-rich")
        elapsed_s = time.monotonic() - started
        # By now the topics are there, and asking for them costs nothing.
        eventually(lambda: ask_for(client, 12, "auto-rich-0").topics[0].error_code == 0)
    assert tokens is not None
    assert BURST - len(VERSIONS) <= tokens <= BURST - len(VERSIONS) + RATE * elapsed_s
    assert gateway.metric(CREATED) == before + len(VERSIONS)


def test_in_debt_no_version_creates_a_topic_and_the_answer_is_not_throttled(
    gateway: GatewayProcess, broker: WireClient
) -> None:
    with WireClient(gateway.bootstrap, client_id="auto-poor") as client:
        debt = {"name": "auto-debt", "num_partitions": 60, "replication_factor": 1}
        assert client.ask("CreateTopics", 7, topics=[debt], timeout_ms=30_000).body.topics[0].error_code == 0
        for version in VERSIONS:
            answer = ask_for(client, version, f"auto-poor-{version}")
            assert [topic.error_code for topic in answer.topics] == [UNKNOWN_TOPIC_OR_PARTITION], version
            assert [topic.name for topic in answer.topics] == [f"auto-poor-{version}"]
            assert len(answer.brokers) == 1
            assert version < 3 or answer.throttle_time_ms == 0
    with WireClient(gateway.bootstrap, client_id="auto-nobody") as other:
        ask_for(other, 12, "auto-canary")
    # What was asked for later has been created: so would have been what was asked for before.
    eventually(lambda: "auto-canary" in names(broker))
    assert not {name for name in names(broker) if name.startswith("auto-poor-")}
