"""Applications of Kafka Streams: results as directly, under quotas, while leaders move and a broker restarts."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest

from embedded_kafka.jars import KAFKA_VERSION, streams_class_path
from embedded_kafka.kafka import KafkaCluster
from testkit.wire_client import WireClient
from tests.integration.conftest import WITHIN_S, StartGateway, eventually, move_leader, takes_records
from tests.integration.gateway_process import GatewayOptions, GatewayProcess
from tests.integration.java_programs import java_program
from tests.integration.streams_quotas import (
    INTERNAL,
    LARGE,
    PROTOCOLS,
    Application,
    Quota,
    findings,
    run_applications,
)

pytestmark = [pytest.mark.integration, pytest.mark.campaign]

INPUT: Final = "streams-input"
DIRECT: Final = "streams-direct"
CLASSIC: Final = "streams-classic"
STREAMS: Final = "streams-streams"
APPLICATIONS: Final = (DIRECT, CLASSIC, STREAMS)
NEWEST: Final = {
    CLASSIC: ("apiKey=FETCH, apiVersion=18", "apiKey=PRODUCE, apiVersion=13", "apiKey=JOIN_GROUP, apiVersion=9"),
    STREAMS: (
        "apiKey=FETCH, apiVersion=18",
        "apiKey=PRODUCE, apiVersion=13",
        "apiKey=STREAMS_GROUP_HEARTBEAT, apiVersion=1",
    ),
}


def test_streams_of_both_protocols_pay_for_their_internal_topics_and_count_as_directly(
    start_gateway: StartGateway, kafka: KafkaCluster, tmp_path: Path
) -> None:
    """A quota of one partition in a second is too small for what they create at once, so they wait."""
    gateway = start_gateway(kafka, GatewayOptions(tables='[quota_admin]\nauthorize = "anyone"\n'))
    small, large = Quota("too small", 1.0), Quota("large enough", LARGE)
    apps = [Application(f"{each}-direct", each, "direct", large) for each in PROTOCOLS]
    apps += [Application(f"{each}-{q.rate:g}", each, "gateway", q) for each in PROTOCOLS for q in (small, large)]
    run_applications(tmp_path, kafka, gateway.bootstrap, apps, version=KAFKA_VERSION)
    assert findings(apps) == []
    charged = partial(gateway.metric, "gateway_controller_mutation_permits_total")
    assert charged(api="streams_group_heartbeat") == 2 * INTERNAL
    assert (charged(api="create_topics") or 0) >= 2 * INTERNAL  # before refunds
    throttled = partial(gateway.metric, "gateway_throttled_requests_total")
    assert throttled(api="streams_group_heartbeat") == 1


def test_e02_streams_of_both_protocols_count_as_directly_while_leaders_move_and_a_broker_restarts(
    gateway3: GatewayProcess, kafka3: KafkaCluster, tmp_path: Path
) -> None:
    """Exactly once, so that each output is one sequence for each key, with nothing lost or twice."""
    bootstrap = str(gateway3.bootstrap)
    applications = [kafka3.bootstrap, "classic", DIRECT, bootstrap, "classic", CLASSIC, bootstrap, "streams", STREAMS]
    command = java_program(
        "StreamsApps",
        [str(tmp_path / "state"), INPUT, *applications],
        log_level="DEBUG",
        more_jars=streams_class_path(),
    )
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    reading = {"bootstrap.servers": kafka3.bootstrap, "group.id": "streams-test", "auto.offset.reset": "earliest"}
    reader = confluent_kafka.Consumer(reading)
    found: dict[str, dict[bytes, list[int]]] = {name: defaultdict(list) for name in APPLICATIONS}

    def produce(numbers: range) -> None:
        for number in numbers:
            producer.produce(INPUT, key=b"k%d" % (number % 3), value=b"%d" % number)
        assert producer.flush(WITHIN_S) == 0

    def counted(each: int) -> bool:
        for message in reader.consume(100, timeout=0.2):
            assert message.error() is None, message.error()
            found[message.topic()][message.key()].append(int(message.value()))
        return all([len(of_topic[b"k%d" % key]) for key in range(3)] == [each] * 3 for of_topic in found.values())

    topics = [
        {"name": name, "num_partitions": -1, "replication_factor": -1}
        | {"assignments": [{"partition_index": 0, "broker_ids": [1, 2, 3]}]}
        for name in (INPUT, *APPLICATIONS)
    ]
    with (
        WireClient(kafka3.brokers[1]) as client,
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log) as running,
    ):
        try:
            client.ask("CreateTopics", 7, topics=topics, timeout_ms=30_000)
            eventually(partial(takes_records, client, INPUT))
            produce(range(30))
            reader.subscribe(list(APPLICATIONS))
            eventually(partial(counted, 10), 2 * WITHIN_S, told=lambda: str(found))
            move_leader(client, INPUT, 2)
            produce(range(30, 60))
            kafka3.stop_broker(2)
            try:
                produce(range(60, 90))
                eventually(partial(counted, 30), 2 * WITHIN_S, told=lambda: str(found))
            finally:
                kafka3.start_broker(2)
            for name in APPLICATIONS:
                move_leader(client, name, 3)
            produce(range(90, 120))
            eventually(partial(counted, 40), 2 * WITHIN_S, told=lambda: str(found))
            running.communicate(b"\n", timeout=WITHIN_S)
            assert running.returncode == 0
        finally:
            running.kill()
            reader.close()
    told = (tmp_path / "log").read_text()
    for name in APPLICATIONS:
        assert found[name] == {b"k%d" % key: list(range(1, 41)) for key in range(3)}
    for name, versions in NEWEST.items():
        sent = {line.split(", clientId=")[0] for line in told.splitlines() if f"clientId={name}-" in line}
        for newest in versions:
            assert any(line.endswith(newest) for line in sent), (name, newest)
