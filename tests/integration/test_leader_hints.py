"""Answers that end with brokers' addresses, of real brokers and for Java clients, in their newest versions."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.wire_client import WireClient
from tests.integration.conftest import WITHIN_S, eventually, move_leader, topic_on
from tests.integration.gateway_process import GatewayProcess
from tests.integration.java_programs import java_program

pytestmark = pytest.mark.integration

TOPIC: Final = "leader-hints"
READERS: Final = {
    "classic": "apiKey=FETCH, apiVersion=18",
    "consumer": "apiKey=FETCH, apiVersion=18",
    "share": "apiKey=SHARE_FETCH, apiVersion=2",
}


@pytest.fixture
def topic_id(kafka3: KafkaCluster) -> Iterator[uuid.UUID]:
    """A topic whose one partition is led by broker 1."""
    with topic_on(kafka3, TOPIC, [1, 2, 3]) as found:
        yield found


def test_d14_e02_e03_java_readers_of_every_kind_follow_a_leader_that_moves(
    gateway3: GatewayProcess, kafka3: KafkaCluster, topic_id: uuid.UUID, tmp_path: Path
) -> None:
    """Classic, of the new protocol, and of a share group; each in the newest version that the broker has."""
    # Without idempotence records that the old leader refuses come behind later ones.
    producer = confluent_kafka.Producer({"bootstrap.servers": str(gateway3.bootstrap), "enable.idempotence": True})

    def produce(numbers: range) -> None:
        for number in numbers:
            producer.produce(TOPIC, b"%d" % number)
        assert producer.flush(WITHIN_S) == 0

    def lines(kind: str) -> list[str]:
        return (tmp_path / kind).read_text().split()

    readers = {}
    for kind in READERS:
        command = java_program("Readers", [str(gateway3.bootstrap), TOPIC, kind, "40"], log_level="DEBUG")
        with (tmp_path / kind).open("w") as out, (tmp_path / f"{kind}.log").open("w") as log:
            readers[kind] = subprocess.Popen(command, stdout=out, stderr=log, stdin=subprocess.DEVNULL)
    try:
        produce(range(20))
        eventually(lambda: all(len(lines(kind)) == 20 for kind in READERS), 2 * WITHIN_S)
        with WireClient(kafka3.brokers[1]) as client:
            move_leader(client, TOPIC, 2)
        produce(range(20, 40))
        for kind, reader in readers.items():
            assert reader.wait(WITHIN_S) == 0, (tmp_path / f"{kind}.log").read_text()[-2_000:]
    finally:
        for reader in readers.values():
            reader.kill()
            reader.wait()
    for kind, newest in READERS.items():
        assert lines(kind) == [str(number) for number in range(40)]
        told = (tmp_path / f"{kind}.log").read_text()
        assert newest in told
        assert f"{TOPIC}-0 updating leader information" in told, "the hint was not used"
