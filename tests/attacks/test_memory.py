"""Clients that would have the gateway keep gigabytes, or block its loop: bytes in memory and stalls stay bounded."""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from struct import pack
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from embedded_kafka.kafka import KafkaCluster
from gateway.session.session import MAX_LOCAL_REPLY_BYTES
from testkit import wire
from testkit.quota_frames import alter, describe, entry
from testkit.wire_client import WireClient
from tests.integration.conftest import StartGateway, eventually
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration

MIB = 1024 * 1024
HELD = "gateway_memory_queued_bytes"


BUDGET: Final = 256 * MIB
HOARDERS: Final = 250
ONE_READ: Final = 256 * 1024
NAMES: Final = 1_000
QUOTAS: Final = 20_000
TABLES: Final = """
[quota_admin]
authorize = "anyone"
[[quotas]]
default_client_id = true
producer_byte_rate = 1000000000
[[quotas]]
client_id = "lister"
request_percentage = 1.0
[[quotas]]
client_id = "hoarder"
producer_byte_rate = 20000
"""


@pytest.fixture(scope="module")
def gateway(start_gateway: StartGateway, kafka: KafkaCluster) -> GatewayProcess:
    return start_gateway(kafka, GatewayOptions(tables=TABLES))


def rss(gateway: GatewayProcess) -> int:
    """Resident memory in bytes."""
    pages = int(Path(f"/proc/{gateway.pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def held(gateway: GatewayProcess) -> float:
    return gateway.metric(HELD) or 0.0


def no_stall_beyond_a_second(gateway: GatewayProcess) -> bool:
    _, text = gateway.http("/metrics")  # both series of one moment
    ticks = {
        sample.labels["le"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "gateway_event_loop_stall_seconds_bucket"
    }
    return ticks["+Inf"] == ticks["1.0"]


def test_k17_refused_requests_behind_a_long_poll_are_not_collected_without_bound(
    start_gateway: StartGateway, kafka: KafkaCluster
) -> None:
    gateway = start_gateway(kafka)
    refused = alter(*(entry({"no such type": f"{at}{'n' * 30_000}"}, producer_byte_rate=1.0) for at in range(130)))
    with socket.create_connection(gateway.broker(1)) as attacker, WireClient(gateway.broker(1)) as honest:
        honest.ask("Metadata", 12, topics=[])
        before = rss(gateway)
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
        # What a request comes to while it is looked through is several times its bytes, for one at a time.
        assert rss(gateway) - before < 128 * MIB
        honest.ask("Metadata", 12, topics=[])
    eventually(lambda: held(gateway) < MIB)


def test_requests_that_are_read_on_at_the_bound_leave_half_of_the_budget_to_others(
    start_gateway: StartGateway, kafka: KafkaCluster
) -> None:
    gateway = start_gateway(kafka, GatewayOptions(tables=TABLES))
    before = rss(gateway)
    head = wire.head(0, 7, client_id="hoarder", flexible=False)
    frame = pack(">i", len(head) + 2 * MIB) + head + bytes(2 * MIB)
    with WireClient(gateway.broker(1)) as honest, ExitStack() as stack:
        attackers = []
        for _ in range(HOARDERS):
            # Not by the tap, which would take most of it, and make an end in order of a reset.
            attacker = stack.enter_context(socket.create_connection(gateway.behind_tap(1)))
            # Behind bytes that have no room at the gateway an end in order does not come.
            attacker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
            attacker.setblocking(False)
            attackers.append([attacker, memoryview(frame)])
        deadline_s = time.monotonic() + 60
        while attackers and time.monotonic() < deadline_s:
            moved = False
            for each in list(attackers):
                with suppress(BlockingIOError):
                    each[1] = each[1][each[0].send(each[1]) :]
                    moved = True
                if not each[1]:
                    attackers.remove(each)
            if not moved:
                time.sleep(0.05)
                if held(gateway) >= BUDGET / 2:
                    break
        honest.ask("Metadata", 12, topics=[])
        # Half of the budget, and of each one read that was under way when it was reached.
        most = BUDGET / 2 + HOARDERS * ONE_READ
        assert BUDGET / 4 < held(gateway) < most
        assert rss(gateway) - before < 1.3 * most
        assert no_stall_beyond_a_second(gateway)
        for _ in range(5):
            honest.ask("Metadata", 12, topics=[])
    eventually(lambda: held(gateway) < MIB)


def test_k06_millions_of_empty_names_do_not_hold_the_loop(gateway: GatewayProcess) -> None:
    body = pack(">i", 1_100_000) + bytes(8 * MIB - 100)
    frame = wire.framed(wire.head(32, 1, flexible=False) + body)
    for _ in range(3):
        with socket.create_connection(gateway.broker(1)) as attacker:
            attacker.settimeout(20.0)
            attacker.sendall(frame)
            with suppress(ConnectionResetError):
                assert attacker.recv(1) == b""
    assert no_stall_beyond_a_second(gateway), "14 s each before they were refused"


def test_k07_a_thousand_long_client_ids_leave_little_behind(gateway: GatewayProcess) -> None:
    def send(client: WireClient, count: int, what: str) -> None:
        for at in range(count):
            client.send_bytes(
                wire.request("Produce", 3, client_id=f"{what}{at}-{'x' * 31_000}\U0001f600", acks=1, timeout_ms=1_000)
            )
            client.receive_frame()

    with WireClient(gateway.broker(1)) as client:
        send(client, 50, "warm")
        before = rss(gateway)
        send(client, NAMES, "cold")
        # 120 MiB when they were kept as they came.
        assert rss(gateway) - before < NAMES * 24 * 1024


def test_k18_a_client_with_a_percent_of_a_core_does_not_list_thousands_of_quotas_all_the_time(
    gateway: GatewayProcess,
) -> None:
    with WireClient(gateway.broker(1), client_id="operator") as operator:
        for start in range(0, QUOTAS, 2_000):
            changes = (entry({"user": f"user-{at}"}, producer_byte_rate=1e6) for at in range(start, start + 2_000))
            operator.send_bytes(alter(*changes))
            operator.receive_frame()
    assert gateway.metric("gateway_quota_store_quotas", quota="producer_byte_rate") == QUOTAS
    told = []
    with WireClient(gateway.broker(1), client_id="lister", timeout_s=4) as lister, suppress(TimeoutError):
        for _ in range(15):
            wanted = [{"entity_type": "user", "match_type": 2, "match": None}]
            answer = lister.ask("DescribeClientQuotas", 1, components=wanted, strict=False).body
            told.append(answer.throttle_time_ms)
    # A percent of two windows of 11 s is 220 ms, and the request that goes beyond.
    assert len(told) < 15
    assert max(told) > 0


def test_k23_thousands_of_small_requests_at_once_do_not_hold_the_loop(
    start_gateway: StartGateway, kafka: KafkaCluster
) -> None:
    gateway = start_gateway(kafka, GatewayOptions(tables=TABLES))
    with WireClient(gateway.broker(1), client_id="operator") as operator:
        operator.send_bytes(alter(*(entry({"user": f"user-{at}"}, producer_byte_rate=1e6) for at in range(900))))
        operator.receive_frame()
    lists = describe(("user", 2, None)) * 1_000
    refused = alter(entry({"no such type": "a"}, producer_byte_rate=1.0)) * 1_000
    with WireClient(gateway.broker(1)) as honest, ExitStack() as attackers:
        for at in range(100):
            attacker = attackers.enter_context(socket.create_connection(gateway.broker(1)))
            attacker.sendall(lists if at % 2 else refused)
        for _ in range(10):
            honest.ask("Metadata", 12, topics=[])
    assert no_stall_beyond_a_second(gateway), "10 s and more when a client's lists were all made in one event"
