"""Brokers are killed, and gateways stopped, one after the other under producers and consumers (D12, D13, J10)."""

import signal
import uuid
from collections import defaultdict
from collections.abc import Callable

import confluent_kafka
import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.wire_client import ConnectionEnded, WireClient
from tests.integration.conftest import StartGateway, eventually
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration

PATIENCE_S = 120.0
EACH = 60


@pytest.fixture
def gateway(start_gateway: StartGateway, kafka3: KafkaCluster) -> GatewayProcess:
    return start_gateway(kafka3, GatewayOptions(upstream="topology_refresh_ms = 200"))


def arrive_once_in_order(gateway: GatewayProcess, kafka3: KafkaCluster, restarts: list[Callable[[], None]]) -> None:
    """Records are produced before, during and after each restart; each of them is read once, in order."""
    topic = f"restarts-{uuid.uuid4().hex[:8]}"
    with WireClient(kafka3.brokers[1]) as client:
        new = {"name": topic, "num_partitions": 3, "replication_factor": 3}
        assert client.ask("CreateTopics", 7, topics=[new], timeout_ms=30_000).body.topics[0].error_code == 0
    bootstrap = {"bootstrap.servers": ",".join(str(gateway.broker(each)) for each in (1, 2, 3))}
    producer = confluent_kafka.Producer(bootstrap | {"enable.idempotence": True, "linger.ms": 1})
    consumer = confluent_kafka.Consumer(bootstrap | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: dict[int, list[int]] = defaultdict(list)
    failed: list[object] = []
    sent = 0

    def delivered(error: object, _: object) -> None:
        if error:
            failed.append(error)

    def produce() -> None:
        nonlocal sent
        for _ in range(EACH):
            producer.produce(topic, b"%d" % sent, partition=sent % 3, on_delivery=delivered)
            producer.poll(0.005)
            sent += 1

    def read() -> bool:
        for message in consumer.consume(100, timeout=0.2):
            if message.error() is None:
                found[message.partition()].append(int(message.value()))
        return sum(map(len, found.values())) >= sent

    try:
        produce()
        eventually(read, PATIENCE_S)
        for restart in restarts:
            produce()
            restart()
            produce()
            assert producer.flush(PATIENCE_S) == 0
            eventually(read, PATIENCE_S, told=lambda: f"{sent} sent, {found}")
    finally:
        consumer.close()
    assert failed == []
    assert found == {partition: list(range(partition, sent, 3)) for partition in range(3)}


def in_sync(kafka3: KafkaCluster, gateway: GatewayProcess) -> bool:
    """Whether every broker has all partitions again."""
    try:
        with WireClient(gateway.broker(1)) as client:
            topics = client.ask("Metadata", 12, topics=None, allow_auto_topic_creation=False).body.topics
    except (OSError, ConnectionEnded):  # the gateway has not seen yet that the broker is back
        return False
    replicas = [(len(each.isr_nodes), len(each.replica_nodes)) for topic in topics for each in topic.partitions]
    return all(here == wanted for here, wanted in replicas)


def test_d12_d13_brokers_that_are_killed_one_after_the_other_lose_and_double_nothing(
    gateway: GatewayProcess, kafka3: KafkaCluster
) -> None:
    def restart(broker_id: int) -> None:
        kafka3.kill_broker(broker_id)
        kafka3.start_broker(broker_id)
        eventually(lambda: in_sync(kafka3, gateway), PATIENCE_S)

    arrive_once_in_order(gateway, kafka3, [lambda each=each: restart(each) for each in (1, 2, 3)])  # type: ignore[misc]


def test_j10_gateways_that_are_stopped_one_after_the_other_lose_and_double_nothing(
    gateway: GatewayProcess, kafka3: KafkaCluster
) -> None:
    def restart() -> None:
        gateway.signal(signal.SIGTERM)
        assert gateway.wait(60) == 0
        gateway.stop()  # the tap before it
        gateway.start()

    arrive_once_in_order(gateway, kafka3, [restart] * 3)
