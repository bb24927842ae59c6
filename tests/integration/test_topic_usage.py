"""Which client used which topic, of real clients before a real Kafka: every byte and every record reported once."""

import signal
from collections import Counter
from pathlib import Path
from typing import Final

import confluent_kafka
import kafka as kafka_python
import pytest

from embedded_kafka.kafka import KafkaCluster
from embedded_kafka.tools import run_tool
from gateway.cli.main import main
from quotas.usage_record import OVERHEAD, Row, TopicRow
from testkit.usage_lines import usage_lines
from tests.integration.conftest import StartGateway, eventually, topic_on
from tests.integration.gateway_process import GatewayOptions

pytestmark = pytest.mark.integration

MESSAGES: Final = 300
BYTES: Final = 2_000
TOPICS: Final = ("metered-a", "metered-b")


def by_librdkafka(bootstrap: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "client.id": "librdkafka", "linger.ms": 5})
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "librdkafka",
            "group.id": "metered",
            "auto.offset.reset": "earliest",
        }
    )
    for number in range(MESSAGES):
        producer.produce(TOPICS[number % 2], bytes(BYTES))
    assert producer.flush(30) == 0
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0) for topic in TOPICS])
    seen = 0
    while seen < MESSAGES:
        seen += len([each for each in consumer.consume(MESSAGES, 5) if each.error() is None])
    consumer.close()


def by_kafka_python(bootstrap: str) -> None:
    producer = kafka_python.KafkaProducer(bootstrap_servers=bootstrap, client_id="kafka-python", linger_ms=5)
    for number in range(MESSAGES):
        producer.send(TOPICS[number % 2], bytes(BYTES))
    producer.flush(30)
    producer.close()


def by_java(bootstrap: str) -> None:
    """Its Produce and Fetch name topics by id."""
    same = ("--bootstrap-server", bootstrap, "--topic", TOPICS[0], "--num-records", str(MESSAGES))
    client_id = ("--command-property", "client.id=java")
    size = ("--record-size", str(BYTES), "--throughput", "-1")
    for arguments in (
        ("ProducerPerformance", *same, *size, *client_id, "acks=1"),
        ("ConsumerPerformance", *same, *client_id),
    ):
        done = run_tool(f"org.apache.kafka.tools.{arguments[0]}", arguments[1:])
        assert done.returncode == 0, done.stderr


def test_every_byte_of_three_families_is_told_once_and_every_record_of_producers(
    start_gateway: StartGateway, kafka: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = f'[usage]\nkind = "files"\ndirectory = "{tmp_path}"\ngateway_id = "topics"\ntopics = true\n'
    gateway = start_gateway(kafka, GatewayOptions(tables=usage))
    bootstrap = str(gateway.bootstrap)
    # Records that a broker refuses, as it does while a topic is new, are sent again and counted again.
    with topic_on(kafka, TOPICS[0], [1]), topic_on(kafka, TOPICS[1], [1]):
        by_librdkafka(bootstrap)
        by_kafka_python(bootstrap)
        by_java(bootstrap)
    eventually(lambda: (gateway.metric("gateway_usage_lines_total", result="made") or 0) > 0)
    gateway.signal(signal.SIGTERM)
    assert gateway.wait(60) == 0

    lines = usage_lines(tmp_path)
    clients: Counter[tuple[str, str]] = Counter()
    topics: Counter[tuple[str, str]] = Counter()
    records: Counter[tuple[str, str, str]] = Counter()
    for line in lines:
        for row in line["rows"]:
            if row[Row.API] in ("produce", "fetch"):
                clients[row[Row.API], row[Row.CLIENT_ID]] += row[Row.OFFERED]
        for row in line.get("topics", ()):
            topics[row[TopicRow.API], row[TopicRow.CLIENT_ID]] += row[TopicRow.BYTES]
            records[row[TopicRow.API], row[TopicRow.CLIENT_ID], row[TopicRow.TOPIC]] += row[TopicRow.RECORDS]
    assert topics == clients
    assert {name for _, _, name in records} == {*TOPICS, OVERHEAD}
    produced = {key[1:]: count for key, count in records.items() if key[0] == "produce" and count}
    half = MESSAGES // 2
    assert produced == {
        **{(client, topic): half for client in ("librdkafka", "kafka-python") for topic in TOPICS},
        ("java", TOPICS[0]): MESSAGES,
    }
    assert records["fetch", "librdkafka", TOPICS[1]] >= 0.9 * half

    assert main(["usage", str(tmp_path), "--topics"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*TOPICS, "librdkafka", "(around records)"))
