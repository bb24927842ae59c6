"""Tiers of real producers on a real Kafka: an operator's brake, and brokers that stand still for a while."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final, Self

import confluent_kafka
import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.secure_kafka import PASSWORDS, SecureKafka
from testkit.tap import Tap
from tests.integration.conftest import StartGateway, eventually, topic_on
from tests.integration.gateway_process import GatewayOptions, GatewayProcess
from tests.integration.sasl_gateway import own_user

pytestmark = pytest.mark.integration

CAPACITY: Final = 400_000


class Steady:
    """A producer that always has records, one per request, until the end of a `with`."""

    def __init__(
        self, gateway: GatewayProcess, topic: str, settings: Mapping[str, Any], record_bytes: int = 5_000
    ) -> None:
        self._settings = {
            "bootstrap.servers": str(gateway.bootstrap),
            "batch.num.messages": 1,
            "queue.buffering.max.messages": 20,
            **settings,
        }
        self._topic = topic
        self._record_bytes = record_bytes
        self._passed = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        producer = confluent_kafka.Producer(self._settings)
        while not self._end.is_set():
            with contextlib.suppress(BufferError):
                producer.produce(self._topic, bytes(self._record_bytes), on_delivery=self._count)
            producer.poll(0.005)
        producer.purge()
        producer.flush(1)

    def _count(self, error: object, _message: object) -> None:
        self._passed += self._record_bytes if error is None else 0

    def rate(self, seconds: float) -> float:
        """Bytes per second that pass from now on."""
        before, began_s = self._passed, time.monotonic()
        time.sleep(seconds)
        return (self._passed - before) / (time.monotonic() - began_s)


def shed(gateway: GatewayProcess, *argv: str) -> str:
    done = gateway.command("shed", *argv)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_brake_leaves_a_fifth_to_a_producer_and_its_end_gives_all_back(
    start_gateway: StartGateway, kafka: KafkaCluster
) -> None:
    tier = "[[quotas]]\ndefault_client_id = true\nproducer_byte_rate = 100_000_000\ntier = 3\n"
    tables = f"[capacity]\nproducer_byte_rate = {CAPACITY}\n{tier}"
    gateway = start_gateway(kafka, GatewayOptions(tables=tables))
    with topic_on(kafka, "braked", [1]), Steady(gateway, "braked", {"client.id": "braked"}) as producer:
        eventually(lambda: producer.rate(1) >= 0.8 * CAPACITY)
        shed(gateway, "--tier", "3", "--to", "20%", "--for", "600s")
        gateway.eventually(lambda: bool(gateway.metric("gateway_produce_byte_limit_of_tier", tier="3")))
        left = gateway.metric("gateway_produce_byte_limit_of_tier", tier="3")
        assert left is not None
        assert left <= 0.21 * CAPACITY
        time.sleep(1)  # what the bucket has at first
        # What the producer had no time to use on a busy machine passes in a burst, too.
        eventually(lambda: 0.6 * left <= producer.rate(2) <= 1.2 * left)
        assert shed(gateway, "--tier", "3", "--end") == "no tier has a brake\n"
        eventually(lambda: producer.rate(1) >= 0.8 * CAPACITY)


@pytest.fixture
def gateway_of_users(
    secure_kafka: SecureKafka, tap: Tap, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """Alice has a guarantee and tier 0, all others have tier 3."""
    tables = f"""
[capacity]
producer_byte_rate = {CAPACITY}
[overload]
mode = "enforce"
broker_time_ms = 500
[[quotas]]
user = "alice"
producer_byte_rate = {CAPACITY}
producer_byte_guarantee = {CAPACITY // 4}
tier = 0
[[quotas]]
default_user = true
producer_byte_rate = {CAPACITY}
tier = 3
"""
    options = GatewayOptions(
        upstream=own_user(secure_kafka), listener='security_protocol = "SASL_PLAINTEXT"', tables=tables
    )
    directory = tmp_path_factory.mktemp("overload")
    gateway = GatewayProcess(directory, secure_kafka.addresses("SASL").values(), tap, options)
    gateway.start()
    yield gateway
    gateway.stop()


def test_brokers_that_stand_still_cost_tier_3_and_are_used_again_once_they_answer(
    gateway_of_users: GatewayProcess, secure_kafka: SecureKafka
) -> None:
    gateway = gateway_of_users
    users = ("alice", "bob", "gateway")
    secure_kafka.create_topic("stalled")

    def metric(name: str, **labels: str) -> float:
        return gateway.metric(f"gateway_produce_{name}", **labels) or 0.0

    def usable() -> float:
        return metric("usable_capacity_ratio")

    with ExitStack() as stack:
        _, bob, _ = (
            # Many small requests: those that await their replies are mostly none of the four that are measured.
            stack.enter_context(Steady(gateway, "stalled", {**login(user), "client.id": "stalled"}))
            for user in users
        )
        gateway.eventually(lambda: metric("measured_clients") == len(users) and usable() == 1)
        eventually(lambda: bob.rate(2) >= 0.15 * CAPACITY)
        pid = secure_kafka.cluster.pid(1)
        os.kill(pid, signal.SIGSTOP)
        try:
            # Tier 3 loses first, so it has next to nothing.
            gateway.eventually(
                lambda: usable() < 0.5 and metric("byte_overload_limit_of_tier", tier="3") <= 0.1 * CAPACITY
            )
        finally:
            os.kill(pid, signal.SIGCONT)
        assert "brokers_slow" in gateway.log_file.read_text()
        eventually(lambda: usable() >= 0.7)
        eventually(lambda: bob.rate(2) >= 0.05 * CAPACITY)


def login(user: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORDS[user],
    }
