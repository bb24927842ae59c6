"""Clients that announce more than they send, or flood the gateway with what it answers itself; a real broker."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from struct import pack
from typing import Final

import pytest

from campaigns.adversary.requests import batch
from embedded_kafka.kafka import KafkaCluster
from gateway.session.announced import PASS_ON_BYTES
from testkit import wire
from testkit.wire_client import WireClient
from tests.integration.conftest import StartGateway, eventually
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration

ANNOUNCED: Final = 100_000_000
ATTACKERS: Final = 200
TABLES: Final = """
[limits]
announced_max_request_bytes = 150000000
[[quotas]]
client_id = "victim"
producer_byte_rate = 1000000
[[quotas]]
client_id = "flooder"
request_percentage = 1.0
"""


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two workers"])
def gateway(request: pytest.FixtureRequest, start_gateway: StartGateway, kafka: KafkaCluster) -> GatewayProcess:
    tables = f"[server]\nworkers = {request.param}\n{TABLES}"
    return start_gateway(kafka, GatewayOptions(tables=tables))


@pytest.fixture(scope="module")
def topic(gateway: GatewayProcess) -> str:
    name = "announced"
    with WireClient(gateway.broker(1), client_id="operator") as operator:
        wanted = [{"name": name, "num_partitions": 1, "replication_factor": 1}]
        operator.ask("CreateTopics", 7, topics=wanted, timeout_ms=30_000)

        def led() -> bool:
            answer = operator.ask("Metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=False)
            return bool(answer.body.topics[0].partitions)

        eventually(led)
    return name


def begun(client_id: str, sent_bytes: int, announced_bytes: int = ANNOUNCED) -> bytes:
    """The beginning of a Produce that says to be so large."""
    head = wire.head(0, 9, client_id=client_id, flexible=True) + b"\0\0\1" + pack(">i", 1_000) + b"\2"
    return (pack(">i", announced_bytes) + head).ljust(sent_bytes, b"r")[:sent_bytes]


def produce(client: WireClient, topic: str) -> int:
    """One record is written; what its answer says to wait."""
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch(1_000)}]}]
    body = client.ask("Produce", 9, acks=1, timeout_ms=10_000, topic_data=data).body
    assert body.responses[0].partition_responses[0].error_code in (0, 6)
    return int(body.throttle_time_ms)


def attack(stack: ExitStack, gateway: GatewayProcess, frame: bytes, count: int) -> None:
    """So many connections send this, and stay."""
    for _ in range(count):
        attacker = stack.enter_context(socket.create_connection(gateway.behind_tap(1)))
        attacker.sendall(frame)


@pytest.mark.parametrize("sent_bytes", [35, 10_000])
def test_m01_m02_what_is_announced_in_a_clients_name_reaches_no_broker_and_costs_it_nothing(
    gateway: GatewayProcess, topic: str, sent_bytes: int
) -> None:
    with WireClient(gateway.broker(1), client_id="victim") as victim:
        assert produce(victim, topic) == 0
        with ExitStack() as stack:
            attack(stack, gateway, begun("victim", sent_bytes), ATTACKERS)
            eventually(lambda: (gateway.metric("gateway_memory_queued_bytes") or 0) >= ATTACKERS * sent_bytes)
            assert gateway.metric("gateway_announced_request_bytes") == 0
            assert produce(victim, topic) == 0
        eventually(lambda: gateway.metric("gateway_memory_queued_bytes") == 0)
        assert produce(victim, topic) == 0
    rate = gateway.metric("gateway_produce_byte_rate", client_id="victim")
    assert rate is not None
    assert rate < 10_000


def test_m02_brokers_are_told_of_no_more_than_they_bear_and_honest_clients_are_served(
    gateway: GatewayProcess, topic: str
) -> None:
    collected = gateway.metric("gateway_requests_collected_before_relay_total") or 0
    with WireClient(gateway.broker(1), client_id="honest") as honest, ExitStack() as stack:
        attack(stack, gateway, begun("attacker", PASS_ON_BYTES + 1), ATTACKERS)
        # One for each process and broker is passed on, as nothing else is announced; 75 MB fit at most beside it.
        eventually(
            lambda: (
                (gateway.metric("gateway_requests_collected_before_relay_total") or 0) >= collected + ATTACKERS - 2
            )
        )
        announced = gateway.metric("gateway_announced_request_bytes")
        assert announced is not None
        assert ANNOUNCED - PASS_ON_BYTES - 1 <= announced <= 2 * ANNOUNCED
        for _ in range(20):
            assert produce(honest, topic) == 0
        large = [{"name": topic, "partition_data": [{"index": 0, "records": batch(900_000)}]}]
        answer = honest.ask("Produce", 9, acks=1, timeout_ms=10_000, topic_data=large).body
        assert answer.responses[0].partition_responses[0].error_code == 0
    eventually(lambda: gateway.metric("gateway_announced_request_bytes") == 0)


def test_m03_a_flood_of_what_the_gateway_answers_is_throttled_and_booked(gateway: GatewayProcess, topic: str) -> None:
    frames = b"".join(
        wire.framed(wire.head(18, 99, flexible=True, client_id="flooder", correlation_id=i) + b"\4abc\0041.0\0")
        for i in range(1_000)
    )

    def throttled() -> float:
        return gateway.metric("gateway_throttled_requests_total", api="api_versions") or 0.0

    with socket.create_connection(gateway.behind_tap(1)) as flooder:
        flooder.settimeout(0.2)
        for _ in range(2_000):
            with suppress(TimeoutError):
                flooder.sendall(frames)
                flooder.recv(1 << 20)
            if throttled():
                break
        with WireClient(gateway.broker(1), client_id="honest") as honest:
            assert produce(honest, topic) == 0
    assert throttled() > 0
