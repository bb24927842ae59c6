"""Usage records of a gateway before a real Kafka: equal to its own metrics, in files and in a topic."""

import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest

from embedded_kafka.kafka import KafkaCluster
from quotas.usage_record import Event, Row
from testkit.usage_lines import usage_lines
from testkit.wire_client import WireClient
from tests.integration.conftest import StartGateway, eventually
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration

MESSAGES: Final = 120
MESSAGE_BYTES: Final = 10_000
QUOTAS: Final = """
[[quotas]]
client_id = "usage-limited"
producer_byte_rate = 100000
consumer_byte_rate = 100000

[[quotas]]
client_id = "usage-admin"
controller_mutation_rate = 1.0
"""


def client(gateway: GatewayProcess, client_id: str, **more: Any) -> dict[str, Any]:
    host, port = gateway.bootstrap
    return {"bootstrap.servers": f"{host}:{port}", "client.id": client_id, **more}


def produce(gateway: GatewayProcess, topic: str) -> None:
    producer = confluent_kafka.Producer(
        client(gateway, "usage-limited", **{"linger.ms": 5, "batch.size": 50_000, "acks": "all"})
    )
    for _ in range(MESSAGES):
        producer.produce(topic, bytes(MESSAGE_BYTES))
    assert producer.flush(60) == 0


def consume(gateway: GatewayProcess, topic: str) -> None:
    consumer = confluent_kafka.Consumer(
        client(gateway, "usage-limited", **{"group.id": topic, "auto.offset.reset": "earliest"})
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + 60
    seen = 0
    while seen < MESSAGES:
        assert time.monotonic() < deadline
        seen += len([each for each in consumer.consume(MESSAGES, 0.5) if each.error() is None])
    consumer.close()


def mutate(gateway: GatewayProcess, topic: str) -> None:
    """The bucket holds 11 tokens: the second topic goes into debt, the other two are refused."""
    with WireClient(gateway.bootstrap, client_id="usage-admin") as admin:
        for at in range(2):
            topics = [
                {
                    "name": f"{topic}-{at}-{number}",
                    "num_partitions": 8,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [],
                }
                for number in range(2)
            ]
            admin.ask("CreateTopics", 6, topics=topics, timeout_ms=20_000, validate_only=False)


def totals(lines: list[dict[str, Any]]) -> dict[str, Counter[Row]]:
    """Sums by API."""
    found: dict[str, Counter[Row]] = {}
    for line in lines:
        for row in line["rows"]:
            sums = found.setdefault(row[Row.API], Counter())
            sums.update({Row(at): row[at] for at in range(Row.REQUESTS, Row.QUOTA)})
    return found


def load(gateway: GatewayProcess, topic: str) -> dict[str, float]:
    """Use every quota; the gateway's metrics afterwards."""
    mutate(gateway, topic)
    produce(gateway, topic)
    consume(gateway, topic)

    def metric(name: str, **labels: str) -> float:
        return gateway.metric(f"gateway_{name}_total", **labels) or 0.0

    return {
        "produce": metric("requests", api="produce"),
        "produce_throttled": metric("throttled_requests", api="produce"),
        "produce_ms": metric("throttle_seconds", api="produce") * 1_000,
        "fetch_throttled": metric("throttled_requests", api="fetch"),
        "fetch_ms": metric("throttle_seconds", api="fetch") * 1_000,
        "permits": metric("controller_mutation_permits"),
        "auto_created": metric("auto_created_topics"),
        "refused": metric("refused_topics"),
        "opened": metric("connections_opened"),
    }


def compare(lines: list[dict[str, Any]], metrics: dict[str, float]) -> None:
    """Nothing is a little off."""
    found = totals(lines)
    assert found["produce"][Row.REQUESTS] == metrics["produce"] > 0
    assert found["produce"][Row.DELAYED] == metrics["produce_throttled"] > 0
    assert found["produce"][Row.THROTTLE_MS] == pytest.approx(metrics["produce_ms"])
    assert found["fetch"][Row.DELAYED] == metrics["fetch_throttled"] > 0
    assert found["fetch"][Row.THROTTLE_MS] == pytest.approx(metrics["fetch_ms"])
    # The load's own topic is created by Metadata: one partition, for a client without a limit.
    permits = metrics["permits"] + metrics["auto_created"]
    assert found["mutation"][Row.ADMITTED] == permits == 16 + 1
    assert found["mutation"][Row.REJECTED] == metrics["refused"] == 2
    assert found["connect"][Row.ADMITTED] == metrics["opened"] > 0
    assert MESSAGES * MESSAGE_BYTES < found["produce"][Row.BYTES_IN] < 1.05 * MESSAGES * MESSAGE_BYTES
    assert MESSAGES * MESSAGE_BYTES < found["fetch"][Row.BYTES_OUT] < 1.2 * MESSAGES * MESSAGE_BYTES
    events = [event for line in lines for event in line["events"]]
    assert sum(event[Event.UNITS] for event in events if event[Event.ADMITTED]) == permits
    assert sum(not event[Event.ADMITTED] for event in events) == metrics["refused"]
    # Throttles of pipelined requests overlap, and the last one may outlast the load.
    muted_ms = found["produce"][Row.MUTED_MS]
    assert 0.5 * metrics["produce_ms"] <= muted_ms <= 1.1 * metrics["produce_ms"] + 1_000


def stop(gateway: GatewayProcess) -> None:
    gateway.signal(signal.SIGTERM)
    assert gateway.wait(60) == 0


def test_files_agree_with_the_metrics_to_the_last_request(
    start_gateway: StartGateway, kafka: KafkaCluster, tmp_path: Path
) -> None:
    usage = f'[usage]\nkind = "files"\ndirectory = "{tmp_path}"\ngateway_id = "files"\nrotate_seconds = 1\n'
    gateway = start_gateway(kafka, GatewayOptions(tables=usage + QUOTAS))
    metrics = load(gateway, "usage-files")
    # A line is written every second, whatever happens; files are closed every second.
    eventually(lambda: len(list(tmp_path.glob("*.jsonl*"))) > 2)
    stop(gateway)
    lines = usage_lines(tmp_path)
    assert [line["seq"] for line in lines] == list(range(len(lines)))
    compare(lines, metrics)


def test_the_topic_has_every_line_once_and_in_order(start_gateway: StartGateway, kafka: KafkaCluster) -> None:
    topic = "__sluice_usage"
    usage = f'[usage]\nkind = "topic"\ngateway_id = "topic-1"\ntopic = "{topic}"\n'
    gateway = start_gateway(kafka, GatewayOptions(tables=usage + QUOTAS))
    metrics = load(gateway, "usage-topic")
    eventually(lambda: (gateway.metric("gateway_usage_lines_total", result="delivered") or 0) > 3)
    stop(gateway)
    host, port = kafka.brokers[1]
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": f"{host}:{port}", "group.id": "reads-usage", "auto.offset.reset": "earliest"}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=20)
    lines = []
    while len(lines) < end:
        for message in consumer.consume(100, 5.0):
            assert message.error() is None
            assert message.key() == b"topic-1"
            lines.append(json.loads(message.value()))
    consumer.close()
    assert [line["seq"] for line in lines] == list(range(len(lines)))
    compare(lines, metrics)


def test_mutations_are_events_also_while_no_mutation_quota_is_set(
    start_gateway: StartGateway, kafka: KafkaCluster, tmp_path: Path
) -> None:
    usage = f'[usage]\nkind = "files"\ndirectory = "{tmp_path}"\ngateway_id = "free"\n'
    gateway = start_gateway(kafka, GatewayOptions(tables=usage))
    mutate(gateway, "usage-free")
    with WireClient(gateway.bootstrap, client_id="usage-admin") as admin:
        names = [f"usage-free-0-{number}" for number in range(2)] + ["usage-free-unknown"]
        reply = admin.ask("DeleteTopics", 5, topic_names=names, timeout_ms=20_000)
        assert sorted(result.error_code for result in reply.body.responses) == [0, 0, 3]
    stop(gateway)
    events = [event for line in usage_lines(tmp_path) for event in line["events"]]
    told = Counter((event[Event.API], event[Event.CLIENT_ID], event[Event.UNITS]) for event in events)
    assert told == {("create_topics", "usage-admin", 8): 4, ("delete_topics", "usage-admin", 8): 2}
    assert all(event[Event.ADMITTED] for event in events)
