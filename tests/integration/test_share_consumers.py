"""Consumers of share groups other than Java's, which test_leader_hints.py has: the same records as direct."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread

import confluent_kafka
import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.wire_client import WireClient
from tests.integration.conftest import WITHIN_S, eventually, move_leader, topic_on
from tests.integration.gateway_process import GatewayProcess
from tests.integration.go_programs import go_program

# Direct is Kafka's own: what the gateway's is compared with when the two differ.
SIDES = [pytest.param(True, id="direct", marks=pytest.mark.campaign), pytest.param(False, id="gateway")]

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("direct", SIDES)]


def test_e02_a_share_consumer_of_librdkafka_reads_every_record_though_the_leader_moves(
    gateway3: GatewayProcess, kafka3: KafkaCluster, direct: bool
) -> None:
    """It acknowledges with its next poll: what it had not by the move comes again, directly too (KIP-932)."""
    bootstrap = kafka3.bootstrap if direct else str(gateway3.bootstrap)
    found: list[bytes | None] = []
    with shared_topic(kafka3) as (client, name):
        consumer = confluent_kafka.ShareConsumer({"bootstrap.servers": bootstrap, "group.id": name})

        def read(count: int) -> bool:
            for message in consumer.poll(0.2):
                assert message.error() is None, message.error()
                found.append(message.value())
            return len(set(found)) >= count

        try:
            consumer.subscribe([name])
            produce_around_a_move(client, bootstrap, name, read, lambda: str(found))
        finally:
            consumer.close()
    assert list(dict.fromkeys(found)) == [b"%d" % number for number in range(40)]


@pytest.mark.campaign  # its program takes Go a minute of CPU to build
def test_e02_a_share_consumer_of_franz_go_reads_every_record_though_the_leader_moves(
    gateway3: GatewayProcess, kafka3: KafkaCluster, direct: bool, tmp_path: Path
) -> None:
    """It notifies of a record once the acknowledgement was answered."""
    bootstrap = kafka3.bootstrap if direct else str(gateway3.bootstrap)
    program = go_program()
    log = tmp_path / "errors"
    found: list[str] = []
    with shared_topic(kafka3) as (client, name), log.open("w") as errors:
        process = subprocess.Popen(
            [program, bootstrap, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        reader = Thread(target=lambda: found.extend(line.strip() for line in iter(process.stdout.readline, "")))
        reader.start()
        try:
            produce_around_a_move(
                client, bootstrap, name, lambda count: len(set(found)) >= count, lambda: f"{found} {log.read_text()}"
            )
            process.stdin.close()
            assert process.wait(WITHIN_S) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()
            reader.join()
            process.stdout.close()
    assert list(dict.fromkeys(found)) == [str(number) for number in range(40)]


@contextmanager
def shared_topic(kafka: KafkaCluster) -> Iterator[tuple[WireClient, str]]:
    """A topic of one partition, and a group of its name that reads it from its begin."""
    name = f"shared-{uuid.uuid4()}"
    earliest = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": 32, "resource_name": name, "configs": [earliest]}  # 32: a group
    with topic_on(kafka, name, [1, 2, 3]), WireClient(kafka.brokers[1]) as client:
        client.ask("IncrementalAlterConfigs", 1, resources=[resource], validate_only=False)
        yield client, name


def produce_around_a_move(
    client: WireClient, bootstrap: str, name: str, read: Callable[[int], bool], told: Callable[[], str]
) -> None:
    """Twenty records, and once they are read another leader and twenty more."""
    # Without idempotence records that the old leader refuses come behind later ones.
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for half in (0, 20):
        if half:
            move_leader(client, name, 2)
        for number in range(half, half + 20):
            producer.produce(name, b"%d" % number)
        assert producer.flush(WITHIN_S) == 0
        eventually(partial(read, half + 20), told=told)
