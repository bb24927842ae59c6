"""One quota, several ways in: what is set through one listener holds on all, and all of them share a bucket."""

import time
from collections.abc import Iterator
from typing import Final

import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.wire_client import WireClient
from tests.integration.conftest import StartGateway
from tests.integration.gateway_process import GATEWAY_HOST, Address, GatewayOptions, free_ports
from tests.integration.quota_sides import QuotaSide

pytestmark = pytest.mark.integration

ANONYMOUS: Final = {"user": "ANONYMOUS"}
MUTATIONS: Final = "controller_mutation_rate"
TOPICS: Final = [f"shared-bucket-{at}" for at in range(8)]


@pytest.fixture(scope="module")
def listeners(start_gateway: StartGateway, kafka: KafkaCluster) -> Iterator[list[Address]]:
    """The bootstrap ports of a gateway with two listeners, whose clients may all change quotas."""
    ports = free_ports(6)
    second = f"""
[quota_admin]
authorize = "anyone"

[[listeners]]
name = "second"
bind = "{GATEWAY_HOST}:{ports[0]}"
first_broker_port = {ports[1]}
lowest_broker_id = 1
broker_ports = 4
"""
    gateway = start_gateway(kafka, GatewayOptions(tables=second))
    yield [gateway.bootstrap, Address(GATEWAY_HOST, ports[0])]
    with WireClient(kafka.brokers[1]) as client:
        client.ask("DeleteTopics", 6, topics=[{"name": name} for name in TOPICS], timeout_ms=30_000)


def test_g07_a_change_is_visible_through_every_listener_at_once(listeners: list[Address]) -> None:
    with WireClient(listeners[0]) as one, WireClient(listeners[1]) as other:
        setting, looking = QuotaSide(one, "one"), QuotaSide(other, "other")
        for value in (5.0, 6.0, None):
            assert setting.alter((ANONYMOUS, {"request_percentage": value}))[0][0] == 0
            expected = {} if value is None else {(("user", "ANONYMOUS"),): {"request_percentage": value}}
            assert looking.everything() == expected, "at once: no need to ask twice"


def test_c23_connections_listeners_and_client_ids_of_one_user_share_one_bucket(listeners: list[Address]) -> None:
    def create(at: int, partitions: int) -> tuple[int, int]:
        client_id, address = f"shared-{at}", listeners[at % 2]
        topic = {"name": TOPICS[at], "num_partitions": partitions, "replication_factor": 1}
        with WireClient(address, client_id=client_id) as client:
            body = client.ask("CreateTopics", 7, topics=[topic], timeout_ms=30_000, validate_only=False).body
        return body.topics[0].error_code, body.throttle_time_ms

    with WireClient(listeners[0]) as client:
        admin = QuotaSide(client, "admin")
        try:
            assert admin.alter((ANONYMOUS, {MUTATIONS: 1.0}))[0][0] == 0
            began = time.monotonic()
            # Eleven tokens: six and five take them all; one more makes the debt that stops everybody.
            assert [create(at, partitions)[0] for at, partitions in enumerate((6, 5))] == [0, 0]
            codes = [create(2, 50)[0], create(3, 1)[0], create(4, 1)[0]]
            assert codes == [0, 89, 89]
            _, throttle_ms = create(5, 1)
            # All of it but the eleven tokens, at one a second, less the time that has passed.
            assert 50 - (time.monotonic() - began) - 0.1 <= throttle_ms / 1000 <= 50
        finally:
            admin.clear()
