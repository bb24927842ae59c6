"""Records on topics that their producer's own Metadata creates, directly and through the gateway.

A broker names the leader of a new partition some milliseconds before that leader takes records. It refuses those that
come in between (NOT_LEADER_OR_FOLLOWER). librdkafka has several requests under way, and later ones may be taken:

* Without idempotence it sends the refused ones again, behind the others: the order changes.
* With idempotence Kafka takes any first sequence number of a producer on a new partition, and librdkafka takes the
  refused ones for written, since later ones were: they are lost.

That is Kafka's and the client's. The gateway adds nothing to it: only topics with a refusal by the broker are
affected.
"""

import logging
import re
import uuid
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

import confluent_kafka
import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.wire_client import WireClient
from tests.integration.conftest import WITHIN_S, StartGateway, eventually
from tests.integration.gateway_process import GatewayProcess

pytestmark = pytest.mark.integration

TOPICS: Final = 15
RECORDS: Final = 20
_REFUSED: Final = re.compile(r"(\S+) \[0\]: MessageSet with .* encountered error: Broker: ")


@pytest.fixture(scope="module")
def gateway(start_gateway: StartGateway, kafka: KafkaCluster) -> GatewayProcess:
    return start_gateway(kafka)


class Refusals(logging.Handler):
    """Reads from the client's own debug log for which topics a broker has refused records."""

    def __init__(self) -> None:
        super().__init__()
        self.topics: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if (found := _REFUSED.search(record.getMessage())) is not None:
            self.topics.add(found[1])


def produce(bootstrap: str, topics: list[str], *, idempotent: bool) -> set[str]:
    """Numbered records to topics that do not exist yet, one in each request; the topics that saw a refusal."""
    refusals = Refusals()
    logger = logging.Logger("created-topics")
    logger.addHandler(refusals)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": idempotent,
            "batch.num.messages": 1,
            "linger.ms": 0,
            "debug": "msg",
            # It asks often, so that it hears of a leader as early as possible.
            "topic.metadata.refresh.fast.interval.ms": 1,
        },
        logger=logger,
    )
    failures: list[Any] = []
    for number in range(RECORDS):
        for topic in topics:
            producer.produce(
                topic,
                b"%d" % number,
                partition=0,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        producer.poll(0)
    assert producer.flush(2 * WITHIN_S) == 0
    assert failures == []
    return refusals.topics


def logs(bootstrap: str, topics: list[str]) -> dict[str, list[int]]:
    """The numbers in each topic, in the order of its log."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "created-topics"})
    partitions = [confluent_kafka.TopicPartition(topic, 0, 0) for topic in topics]
    consumer.assign(partitions)
    found: dict[str, list[int]] = defaultdict(list)
    ends = {each.topic: consumer.get_watermark_offsets(each, WITHIN_S)[1] for each in partitions}

    def read_all() -> bool:
        for message in consumer.consume(1_000, timeout=0.2):
            assert message.error() is None, message.error()
            found[message.topic()].append(int(message.value()))
        return all(len(found[topic]) >= end for topic, end in ends.items())

    try:
        eventually(read_all, told=lambda: f"{found}, and there are {ends}")
    finally:
        consumer.close()
    return found


SIDES: Final[dict[str, Callable[[KafkaCluster, GatewayProcess], str]]] = {
    "direct": lambda kafka, _: kafka.bootstrap,
    "gateway": lambda _, gateway: str(gateway.bootstrap),
}


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("side", [pytest.param("direct", marks=pytest.mark.campaign), "gateway"])
def test_records_are_out_of_order_or_missing_only_where_the_broker_refused_some(
    kafka: KafkaCluster, gateway: GatewayProcess, side: str, idempotent: bool
) -> None:
    name = f"created-{uuid.uuid4().hex[:8]}"
    topics = [f"{name}-{at}" for at in range(TOPICS)]
    in_order = list(range(RECORDS))
    try:
        refused = produce(SIDES[side](kafka, gateway), topics, idempotent=idempotent)
        found = logs(kafka.bootstrap, topics)
        assert {topic for topic in topics if found[topic] != in_order} <= refused
        for numbers in found.values():
            # Without idempotence nothing is lost, with it nothing changes its place.
            assert numbers == sorted(set(numbers)) if idempotent else sorted(numbers) == in_order
    finally:
        with WireClient(kafka.brokers[1]) as client:
            client.ask("DeleteTopics", 5, topic_names=topics, timeout_ms=30_000)
