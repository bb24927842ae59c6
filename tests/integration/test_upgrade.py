"""A gateway before a real Kafka is replaced while clients come, produce and are in debt (G)."""

import fcntl
import os
import signal
import sqlite3
import subprocess
import time
import uuid
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from embedded_kafka.kafka import KafkaCluster
from gateway.server.control import ask_for_upgrade, control_name
from testkit.process_group import children, lives
from testkit.tap import Tap
from testkit.upgrade_load import Newcomers
from testkit.wire_client import WireClient
from tests.integration.conftest import eventually, topic_on
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration


class Upgraded:
    """A gateway, and the processes that took its place."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway
        self.pids = [gateway.pid]

    def upgrade(self) -> subprocess.CompletedProcess[str]:
        done = self.gateway.command("upgrade")
        if not done.returncode:
            self.pids.append(int(done.stdout.split()[1]))
        return done

    def alone(self) -> bool:
        """Whether all processes but the last have ended."""
        return not any(map(lives, self.pids[:-1]))


@pytest.fixture
def upgraded(kafka: KafkaCluster, tap: Tap, tmp_path: Path) -> Iterator[Upgraded]:
    tables = """
[drain]
timeout_ms = 6000
[connections]
max_connections_per_ip = 200
[quota_admin]
authorize = "anyone"
[[quotas]]
client_id = "debtor"
controller_mutation_rate = 0.5
producer_byte_rate = 1000
"""
    gateway = GatewayProcess(tmp_path, kafka.brokers.values(), tap, GatewayOptions(tables=tables))
    gateway.start()
    try:
        yield Upgraded(gateway)
    finally:
        gateway.stop()


def create(client: WireClient, topic: str, partitions: int) -> tuple[int, int]:
    wanted = [{"name": topic, "num_partitions": partitions, "replication_factor": 1}]
    answer = client.ask("CreateTopics", 7, topics=wanted, timeout_ms=20_000).body
    return int(answer.topics[0].error_code), int(answer.throttle_time_ms)


def test_j06_upgrades_and_reloads_are_not_noticed_and_a_debt_stays(upgraded: Upgraded) -> None:
    gateway, topic = upgraded.gateway, f"t{uuid.uuid4().hex[:8]}"
    debtor = WireClient(gateway.bootstrap, client_id="debtor")
    asked_s = time.monotonic()
    code, throttle_ms = create(debtor, topic, 40)  # 5.5 in the bucket: more than a minute of debt
    assert code == 0
    in_debt_s = time.monotonic()
    debtor.close()
    producer = Producer({"bootstrap.servers": str(gateway.bootstrap), "enable.idempotence": True, "linger.ms": 1})
    with Newcomers(gateway.behind_tap(0), per_s=50) as newcomers:
        sent = 0
        for _ in range(2):
            done = upgraded.upgrade()
            assert done.returncode == 0, done.stderr
            os.kill(upgraded.pids[-1], signal.SIGHUP)
            eventually(upgraded.alone)
            for _ in range(50):
                producer.produce(topic, str(sent).encode(), partition=0)
                sent += 1
            assert producer.flush(30) == 0
    assert set(newcomers.outcomes) == {"answered"}, newcomers.outcomes
    with WireClient(gateway.bootstrap, client_id="debtor") as client:
        least_s = time.monotonic() - in_debt_s
        code, throttle_ms = create(client, f"{topic}x", 1)
        most_s = time.monotonic() - asked_s
    assert code == 89
    debt_s = (40 - 5.5) / 0.5
    assert debt_s - most_s - 1 <= throttle_ms / 1000 <= debt_s - least_s + 1
    consumer = Consumer(
        {"bootstrap.servers": str(gateway.bootstrap), "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    values = [int(m.value()) for m in consumer.consume(sent, timeout=20)]
    consumer.close()
    assert values == list(range(sent))


def test_program_that_can_not_serve_changes_nothing_and_says_why(upgraded: Upgraded) -> None:
    gateway = upgraded.gateway
    text = gateway.config_file.read_text()
    for wrong, reason in (("[nonsense]\n", "nonsense"), ('[tracse]\nendpoint = "x"\n', "tracse")):
        gateway.config_file.write_text(text + wrong)
        done = upgraded.upgrade()
        assert (done.returncode, reason in done.stderr) == (1, True), done.stderr
    gateway.config_file.write_text(text)
    assert gateway.running
    assert gateway.http("/readyz")[0] == 200
    with WireClient(gateway.bootstrap) as client:
        client.ask("ApiVersions", 2)
    # One that is killed before it serves: the store is the old one's again.
    failed = gateway.log_file.read_text().count("upgrade_failed")
    gateway.signal(signal.SIGUSR2)
    eventually(lambda: children(gateway.pid) != [])
    os.kill(children(gateway.pid)[0], signal.SIGKILL)
    eventually(lambda: gateway.log_file.read_text().count("upgrade_failed") > failed)
    assert gateway.http("/readyz")[0] == 200
    done = upgraded.upgrade()
    assert done.returncode == 0, done.stderr


VALUES = count(1_000)


def alter(gateway: GatewayProcess) -> str:
    """Set a quota; what is said against it."""
    entry = {
        "entity": [{"entity_type": "client-id", "entity_name": "altered"}],
        "ops": [{"key": "producer_byte_rate", "value": float(next(VALUES)), "remove": False}],
    }
    with WireClient(gateway.bootstrap) as client:
        answer = client.ask("AlterClientQuotas", 1, entries=[entry], validate_only=False).body
    return f"{answer.entries[0].error_code} {answer.entries[0].error_message}"


def test_store_that_the_next_process_can_not_use_keeps_this_one_and_the_operator_is_told_why(
    upgraded: Upgraded,
) -> None:
    gateway = upgraded.gateway
    data = gateway.config_file.parent / "data"
    assert alter(gateway).startswith("0 ")
    # The next process could only read it.
    (data / "quotas.db-shm").unlink()
    (data / "quotas.db-shm").mkdir()
    done = upgraded.upgrade()
    assert (done.returncode, "the quota store can't be written for now" in done.stderr) == (1, True), done.stderr
    assert gateway.running
    assert gateway.http("/readyz")[0] == 200
    (data / "quotas.db-shm").rmdir()
    assert alter(gateway).startswith("0 ")
    # Another program has the store as soon as this process lets go of it.
    (data / "quotas.lock").unlink()
    with (data / "quotas.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "is in use by another gateway" in str(ask_for_upgrade(control_name(*gateway.admin), within_s=60).error)
        assert "can't be used since" in alter(gateway)
    # A program that writes to it for a while is in no process's way.
    with sqlite3.connect(data / "quotas.db", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        report = ask_for_upgrade(control_name(*gateway.admin), within_s=60)
        assert report.error is None
        upgraded.pids.append(report.pid)
        assert "could not be written" in alter(gateway)
        other.execute("ROLLBACK")
        assert alter(gateway).startswith("0 ")
    other.close()


def owe(gateway: GatewayProcess, client: WireClient, topic: str, *, for_ms: int) -> None:
    """Ask for what is not there, so that a reply is due for so long; back when the gateway has read that."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000}
    body = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [partition]}]}
    limits = {"min_bytes": 1, "max_bytes": 1_000, "isolation_level": 0}

    def is_served() -> bool:
        # A broker says who leads before it is ready to lead itself; until then it waits for nothing.
        answer = client.ask("Fetch", 4, max_wait_ms=0, **body, **limits).body
        return not answer.responses[0].partitions[0].error_code

    def read() -> float:
        return gateway.metric("gateway_requests_total", api="fetch") or 0

    eventually(is_served)
    before = read()
    client.send("Fetch", 4, max_wait_ms=for_ms, **body, **limits)
    eventually(lambda: read() > before)


def test_upgrade_during_a_drain_is_refused_with_the_reason(upgraded: Upgraded, kafka: KafkaCluster) -> None:
    gateway, name = upgraded.gateway, f"t{uuid.uuid4().hex[:8]}"
    with topic_on(kafka, name, [1]):
        with WireClient(gateway.broker(1)) as client:
            owe(gateway, client, name, for_ms=20_000)
            report = ask_for_upgrade(control_name(*gateway.admin), within_s=60)
            assert report.error is None
            upgraded.pids.append(report.pid)
            report = ask_for_upgrade(control_name(*gateway.admin), within_s=60)
            assert "the process before this one still drains" in str(report.error)
            eventually(upgraded.alone)
        with WireClient(gateway.broker(1)) as client:
            owe(gateway, client, name, for_ms=20_000)
            os.kill(upgraded.pids[-1], signal.SIGTERM)
            eventually(lambda: gateway.http("/readyz")[1].startswith("draining"))
            report = ask_for_upgrade(control_name(*gateway.admin), within_s=60)
            assert "the gateway drains" in str(report.error)
