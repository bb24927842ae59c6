"""Brokers that wait for a replica in vain: their answers count as those of slow brokers."""

import os
import signal
import time
from contextlib import ExitStack

import pytest

from embedded_kafka.kafka import KafkaCluster
from quotas.overload import LEAST_FOR_ERRORS
from testkit.wire_client import WireClient
from tests.integration.conftest import StartGateway, topic_on
from tests.integration.gateway_process import GatewayOptions, GatewayProcess
from tests.integration.test_operations import records

pytestmark = pytest.mark.integration

TOPIC = "short-brokers"
# The broker times out, later it knows that the replica is away: REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS, and that of a
# request in between.
SHORT = {7, 19, 20}
TIMEOUT_MS = 1_500
# Times say nothing here: only errors do.
TABLES = """
[capacity]
producer_byte_rate = "100MB"
[overload]
mode = "observe"
broker_time_ms = 60000
"""


def errors_of(clients: list[WireClient]) -> set[int]:
    """What the answers to one request of each client say; each waits for all replicas."""
    topic = {"name": TOPIC, "partition_data": [{"index": 0, "records": records(100)}]}
    for client in clients:
        client.send("Produce", 9, transactional_id=None, acks=-1, timeout_ms=TIMEOUT_MS, topic_data=[topic])
    answers = [client.receive().body for client in clients]
    return {answer.responses[0].partition_responses[0].error_code for answer in answers}


def usable(gateway: GatewayProcess) -> float:
    found = gateway.metric("gateway_produce_usable_capacity_ratio")
    assert found is not None
    return found


def test_answers_that_fail_for_want_of_a_replica_are_seen_while_it_is_away(
    kafka3: KafkaCluster, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(kafka3, GatewayOptions(tables=TABLES))
    # With one replica the leader would store records as soon as it knows that the other one is away.
    with topic_on(kafka3, TOPIC, [1, 3], min_insync_replicas=2), ExitStack() as stack:
        address = gateway.behind_tap(1)  # else all clients have its address
        clients = [
            stack.enter_context(WireClient((address.host, address.port), source=f"127.0.0.{number}"))
            for number in (11, 12, 13)
        ]

        def until(wanted: bool) -> set[int]:
            deadline = time.monotonic() + 60
            while True:
                found = errors_of(clients)
                ratio = gateway.metric("gateway_produce_short_answers_ratio")
                if ratio is not None and (ratio > 0.1) is wanted:
                    return found
                assert time.monotonic() < deadline, f"{found}, {ratio}"

        assert until(False) == {0}
        assert usable(gateway) == 1
        os.kill(kafka3.pid(3), signal.SIGSTOP)
        try:
            assert until(True) <= SHORT
            assert usable(gateway) == pytest.approx(LEAST_FOR_ERRORS, rel=0.1)
        finally:
            os.kill(kafka3.pid(3), signal.SIGCONT)
        until(False)
