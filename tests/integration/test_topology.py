"""Brokers that go and come back while clients work through the gateway."""

from typing import Any, Final

import confluent_kafka
import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.wire_client import ConnectionEnded, WireClient
from tests.integration.conftest import WITHIN_S, StartGateway, eventually
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration

REFRESH_MS: Final = 200
"""A broker that has been missing for ten times as long is given up."""

TOPIC: Final = "topology-moving"


@pytest.fixture(scope="module")
def gateway(start_gateway: StartGateway, kafka3: KafkaCluster) -> GatewayProcess:
    """A gateway that looks for its brokers more often than it would."""
    options = GatewayOptions(upstream=f"topology_refresh_ms = {REFRESH_MS}")
    return start_gateway(kafka3, options)


def broker_ids(client: WireClient) -> set[int]:
    return {broker.node_id for broker in client.ask("Metadata", 12, topics=[]).body.brokers}


def leaders(client: WireClient) -> set[int]:
    asked = [{"name": TOPIC}]
    topics = client.ask("Metadata", 12, topics=asked, allow_auto_topic_creation=False).body.topics
    return {partition.leader_id for partition in topics[0].partitions}


def answers(address: tuple[str, int]) -> bool:
    try:
        with WireClient(address) as client:
            return bool(client.ask("ApiVersions", 2).body.error_code == 0)
    except (ConnectionEnded, OSError):
        return False


def test_e10_e02_broker_leaves_and_returns_and_a_producer_follows_the_leaders(
    gateway: GatewayProcess, kafka3: KafkaCluster
) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": str(gateway.bootstrap), "acks": "all"})
    failures: list[Any] = []

    def produce(count: int) -> None:
        for number in range(count):
            producer.produce(
                TOPIC,
                b"%d" % number,
                partition=number % 3,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
            producer.poll(0)

    with WireClient(gateway.broker(1)) as client, WireClient(gateway.broker(3)) as guest:
        new = {"name": TOPIC, "num_partitions": 3, "replication_factor": 3}
        client.ask("CreateTopics", 7, topics=[new], timeout_ms=30_000)
        eventually(lambda: leaders(client) == {1, 2, 3})
        assert answers(gateway.broker(3))
        produce(30)
        assert producer.flush(WITHIN_S) == 0

        kafka3.stop_broker(3)
        try:
            produce(30)
            with pytest.raises(ConnectionEnded):
                guest.ask("ApiVersions", 2)
            eventually(lambda: broker_ids(client) == {1, 2})
            assert leaders(client) == {1, 2}
            assert producer.flush(WITHIN_S) == 0
            # Given up: the port is closed, which is kinder to a client than one that accepts and hangs up.
            eventually(lambda: gateway_port_is_closed(gateway, 3))
        finally:
            kafka3.start_broker(3)
        eventually(lambda: broker_ids(client) == {1, 2, 3})
        assert answers(gateway.broker(3)), "the port it had before"
        produce(30)
        assert producer.flush(WITHIN_S) == 0
        assert failures == []
        client.ask("DeleteTopics", 5, topic_names=[TOPIC], timeout_ms=30_000)


def gateway_port_is_closed(gateway: GatewayProcess, broker_id: int) -> bool:
    try:
        WireClient(gateway.behind_tap(broker_id)).close()
    except ConnectionRefusedError:
        return True
    return False
