"""Consumers of share groups other than Java's, which test_leader_hints.py has: the same records as direct."""

from __future__ import annotations

import uuid
from functools import partial

import confluent_kafka
import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.wire_client import WireClient
from tests.integration.conftest import WITHIN_S, eventually, move_leader, topic_on
from tests.integration.gateway_process import GatewayProcess

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "gateway"])
def test_e02_a_share_consumer_of_librdkafka_reads_every_record_though_the_leader_moves(
    gateway3: GatewayProcess, kafka3: KafkaCluster, direct: bool
) -> None:
    """It acknowledges with its next poll: what it had not by the move comes again, directly too (KIP-932)."""
    bootstrap = kafka3.bootstrap if direct else str(gateway3.bootstrap)
    name = f"share-of-librdkafka-{uuid.uuid4()}"
    earliest = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": 32, "resource_name": name, "configs": [earliest]}  # 32: a group
    found: list[bytes | None] = []
    with topic_on(kafka3, name, [1, 2, 3]), WireClient(kafka3.brokers[1]) as client:
        client.ask("IncrementalAlterConfigs", 1, resources=[resource], validate_only=False)
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
        consumer = confluent_kafka.ShareConsumer({"bootstrap.servers": bootstrap, "group.id": name})

        def read(count: int) -> bool:
            for message in consumer.poll(0.2):
                assert message.error() is None, message.error()
                found.append(message.value())
            return len(set(found)) >= count

        try:
            consumer.subscribe([name])
            for half in (0, 20):
                if half:
                    move_leader(client, name, 2)
                for number in range(half, half + 20):
                    producer.produce(name, b"%d" % number)
                assert producer.flush(WITHIN_S) == 0
                eventually(partial(read, half + 20), told=lambda: str(found))
        finally:
            consumer.close()
    assert list(dict.fromkeys(found)) == [b"%d" % number for number in range(40)]
