"""`sluice serve` as an operator meets it: started too early, stopped during work, tried out without a file."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from kafka.record.memory_records import MemoryRecordsBuilder

from embedded_kafka.kafka import KafkaCluster
from testkit.kafka_cluster import KAFKA_HOST
from testkit.tap import Tap
from testkit.wire_client import ConnectionEnded, WireClient
from tests.integration.conftest import eventually
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration

SLUICE: Final = str(Path(sys.executable).parent / "sluice")


def records(size: int = 100) -> bytes:
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=2 * size)
    builder.append(timestamp=1_700_000_000_000, key=None, value=b"v" * size)
    builder.close()
    return bytes(builder.buffer())


def produce_fields(topic: str, *, acks: int = 1) -> dict[str, Any]:
    partitions = [{"index": 0, "records": records()}]
    return {"acks": acks, "timeout_ms": 20_000, "topic_data": [{"name": topic, "partition_data": partitions}]}


@pytest.fixture
def own_gateway(kafka3: KafkaCluster, tap: Tap, tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway before three brokers, to be stopped by the test."""
    gateway = GatewayProcess(tmp_path, kafka3.brokers.values(), tap, GatewayOptions())
    gateway.start()
    yield gateway
    gateway.stop()


def test_gateway_started_before_its_broker_is_not_ready_and_serves_once_the_broker_is_there(
    tap: Tap, tmp_path: Path
) -> None:
    cluster = KafkaCluster(host=KAFKA_HOST)
    gateway = GatewayProcess(tmp_path, cluster.brokers.values(), tap)
    gateway.start(ready=False)
    try:
        # The admin port answers while the quota store is still being read.
        gateway.eventually(lambda: gateway.http("/readyz") == (503, "upstream not reached\n"), within_s=5)
        assert gateway.http("/healthz")[0] == 200
        with WireClient(gateway.bootstrap) as early, pytest.raises(ConnectionEnded):
            early.ask("ApiVersions", 2)
        with cluster:
            gateway.eventually(lambda: gateway.http("/readyz")[0] == 200, within_s=5)
            with WireClient(gateway.bootstrap) as client:
                brokers = client.ask("Metadata", 12, topics=[]).body.brokers
            assert [(broker.host, broker.port) for broker in brokers] == [gateway.broker(1)]
        gateway.signal(signal.SIGTERM)
        assert gateway.wait(10) == 0
    finally:
        gateway.stop()


def test_sigterm_lets_a_produce_in_flight_have_its_reply_and_then_exits_with_0(
    own_gateway: GatewayProcess, kafka3: KafkaCluster
) -> None:
    # acks=-1 waits for the replica, whose broker stands still for a moment.
    topic = "operations-in-flight"
    with WireClient(kafka3.brokers[1]) as broker:
        create_on(broker, topic, [1, 2])
    with WireClient(own_gateway.broker(1)) as client, WireClient(own_gateway.broker(1)) as idle:
        eventually(lambda: error_of(client.ask("Produce", 9, **produce_fields(topic))) == 0)
        idle.ask("ApiVersions", 2)
        os.kill(kafka3.pid(2), signal.SIGSTOP)
        try:
            client.send("Produce", 9, **produce_fields(topic, acks=-1))
            time.sleep(0.3)  # long enough to reach the broker, far shorter than the broker waits
            own_gateway.signal(signal.SIGTERM)
            with pytest.raises(ConnectionEnded):
                idle.receive_frame()
            refused = False
            try:
                WireClient(own_gateway.behind_tap(1)).close()
            except ConnectionRefusedError:
                refused = True
            assert refused, "a draining gateway lets nobody in"
            assert own_gateway.running
        finally:
            os.kill(kafka3.pid(2), signal.SIGCONT)
        assert error_of(client.receive()) == 0
        with pytest.raises(ConnectionEnded):
            client.receive_frame()
    assert own_gateway.wait(10) == 0
    with WireClient(kafka3.brokers[1]) as broker:
        broker.ask("DeleteTopics", 5, topic_names=[topic], timeout_ms=20_000)


def create_on(broker: WireClient, topic: str, broker_ids: list[int]) -> None:
    """One partition, led by the first of these brokers."""
    assignments = [{"partition_index": 0, "broker_ids": broker_ids}]
    new = {"name": topic, "num_partitions": -1, "replication_factor": -1, "assignments": assignments}
    broker.ask("CreateTopics", 7, topics=[new], timeout_ms=20_000)


def error_of(reply: Any) -> int:
    return int(reply.body.responses[0].partition_responses[0].error_code)


def test_second_signal_ends_the_drain_at_once(own_gateway: GatewayProcess, kafka3: KafkaCluster) -> None:
    topic = "operations-long-poll"
    partition = {"partition": 0, "partition_max_bytes": 1 << 20, "fetch_offset": 1}
    long_poll = {
        "max_wait_ms": 20_000,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [partition]}],
        "forgotten_topics_data": [],
    }
    with WireClient(kafka3.brokers[1]) as broker:
        create_on(broker, topic, [1])
        with WireClient(own_gateway.broker(1)) as client:
            # An answer comes at once as long as the broker does not lead the topic yet.
            eventually(lambda: error_of(client.ask("Produce", 9, **produce_fields(topic))) == 0)
            client.send("Fetch", 11, **long_poll)
            time.sleep(0.2)
            own_gateway.signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                own_gateway.wait(0.5)
            own_gateway.signal(signal.SIGTERM)
            assert own_gateway.wait(2) == 0
        broker.ask("DeleteTopics", 5, topic_names=[topic], timeout_ms=20_000)


def test_serve_without_arguments_brings_a_kafka_of_its_own_and_takes_it_away(tmp_path: Path) -> None:
    """What `make run` starts. Its ports are fixed, so this is skipped where they are taken."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [SLUICE, "serve"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as program:
        giving_up = threading.Timer(60, program.kill)
        giving_up.start()
        try:
            assert program.stdout is not None
            banner = ""
            for line in program.stdout:
                banner += line
                if "Stop with Ctrl-C" in line:
                    break
            found = re.search(r"clients use ([\d.]+):(\d+)", banner)
            if found is None:
                assert program.stderr is not None
                complaint = program.stderr.read()
                if "cannot listen" in complaint:
                    pytest.skip("the default ports are taken")
                pytest.fail(banner + complaint)
            with WireClient((found[1], int(found[2])), client_id="demo") as client:
                topic = {"name": "tried-out", "num_partitions": 1, "replication_factor": 1}
                answer = client.ask("CreateTopics", 7, topics=[topic], timeout_ms=20_000).body
                assert answer.topics[0].error_code == 0
        finally:
            program.terminate()
            code = program.wait(30)
            giving_up.cancel()
    assert code == 0
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
