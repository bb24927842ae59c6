"""Clients that would have the gateway hold back gigabytes, or hold its loop: bytes held and stalls stay bounded."""

from __future__ import annotations

import socket
from contextlib import suppress
from struct import pack

import pytest
from prometheus_client.parser import text_string_to_metric_families

from embedded_kafka.kafka import KafkaCluster
from gateway.session.session import MAX_LOCAL_REPLY_BYTES
from testkit import wire
from testkit.quota_frames import alter, entry
from testkit.wire_client import WireClient
from tests.integration.conftest import StartGateway, eventually
from tests.integration.gateway_process import GatewayProcess

pytestmark = pytest.mark.integration

MIB = 1024 * 1024
HELD = "gateway_memory_queued_bytes"


def held(gateway: GatewayProcess) -> float:
    return gateway.metric(HELD) or 0.0


def test_k17_refused_requests_behind_a_long_poll_are_not_collected_without_bound(
    start_gateway: StartGateway, kafka: KafkaCluster
) -> None:
    gateway = start_gateway(kafka)
    refused = alter(*(entry({"no such type": f"{at}{'n' * 30_000}"}, producer_byte_rate=1.0) for at in range(130)))
    with socket.create_connection(gateway.broker(1)) as attacker, WireClient(gateway.broker(1)) as honest:
        honest.ask("Metadata", 12, topics=[])
        poll = wire.request("Fetch", 4, max_wait_ms=60_000, min_bytes=1, max_bytes=1, topics=[
            {"topic": "nothing-here", "partitions": []}
        ])  # fmt: skip
        attacker.settimeout(2.0)
        attacker.sendall(poll)
        sent = 0
        with suppress(TimeoutError):
            for _ in range(60):
                attacker.sendall(refused)
                sent += len(refused)
        assert held(gateway) <= 2 * len(refused) + 2 * MAX_LOCAL_REPLY_BYTES + MIB
        assert sent < 60 * len(refused), "the client was read all the same"
        honest.ask("Metadata", 12, topics=[])
    eventually(lambda: held(gateway) < MIB)


def test_k06_millions_of_empty_names_do_not_hold_the_loop(start_gateway: StartGateway, kafka: KafkaCluster) -> None:
    gateway = start_gateway(kafka)
    body = pack(">i", 1_100_000) + bytes(8 * MIB - 100)
    frame = wire.framed(wire.head(32, 1, flexible=False) + body)
    for _ in range(3):
        with socket.create_connection(gateway.broker(1)) as attacker:
            attacker.settimeout(20.0)
            attacker.sendall(frame)
            with suppress(ConnectionResetError):
                assert attacker.recv(1) == b""
    _, text = gateway.http("/metrics")  # both series of one moment
    ticks = {
        sample.labels["le"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "gateway_event_loop_stall_seconds_bucket"
    }
    assert ticks["+Inf"] == ticks["1.0"], "14 s each before they were refused"
