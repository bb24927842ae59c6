"""A capacity that is divided among real producers: guarantees are kept, and what is lent has an end."""

import json
import signal
import time
from urllib.parse import quote

import confluent_kafka
import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.wire_client import WireClient
from tests.integration.conftest import StartGateway, eventually, takes_records
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration

CAPACITY = 400_000
GUARANTEE = 300_000
RECORD_BYTES = 20_000
TABLES = f"""
[capacity]
producer_byte_rate = {CAPACITY}
[[quotas]]
client_id = "guaranteed"
producer_byte_rate = "100MB"
producer_byte_guarantee = {GUARANTEE}
tier = 0
"""


@pytest.fixture(scope="module")
def topic(kafka: KafkaCluster) -> None:
    with WireClient(kafka.brokers[1]) as client:
        topics = [{"name": "capacity", "num_partitions": 1, "replication_factor": 1}]
        client.ask("CreateTopics", 4, topics=topics, timeout_ms=30_000, validate_only=False)
        eventually(lambda: takes_records(client, "capacity"))


@pytest.fixture
def gateway(start_gateway: StartGateway, kafka: KafkaCluster, topic: None) -> GatewayProcess:
    """One for each test: a reload leaves another configuration."""
    return start_gateway(kafka, GatewayOptions(tables=TABLES))


def produce(gateway: GatewayProcess, client_id: str, records: int) -> float:
    """The seconds that so many records take, one per request."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": str(gateway.bootstrap), "client.id": client_id, "batch.num.messages": 1}
    )
    began_s = time.monotonic()
    for _ in range(records):
        producer.produce("capacity", bytes(RECORD_BYTES))
    assert producer.flush(120) == 0
    return time.monotonic() - began_s


def limit_of(gateway: GatewayProcess, client_id: str) -> float | None:
    return gateway.metric("gateway_produce_byte_rate_limit", client_id=client_id)


def test_what_nobody_uses_is_lent_and_no_more(gateway: GatewayProcess) -> None:
    """A client without any quota has all of the capacity, in its time, and `why` says so."""
    records = 80
    took_s = produce(gateway, "borrower", records)
    # A second of the capacity passes at once, and the last request only has to be begun.
    assert (records - 1) * RECORD_BYTES <= CAPACITY * (took_s + 1)
    assert gateway.metric("gateway_produce_byte_capacity") == CAPACITY
    limit = limit_of(gateway, "borrower")
    assert limit is not None
    assert limit <= CAPACITY
    status, text = gateway.http(f"/why?client_id={quote('borrower')}")
    assert status == 200
    lent = json.loads(text)["throttles"][-1]["lent"]
    assert lent == {"guarantee": 0, "ceiling": None, "weight": 1, "tier": 2}


def test_a_guarantee_is_there_at_once_and_stays(gateway: GatewayProcess) -> None:
    """Its limit is never below, from the first request on, while the other one wants all of the capacity."""
    produce(gateway, "guaranteed", 1)
    limit = limit_of(gateway, "guaranteed")
    assert limit is not None
    assert limit >= GUARANTEE
    produce(gateway, "guaranteed", 20)
    limit = limit_of(gateway, "guaranteed")
    assert limit is not None
    assert limit >= GUARANTEE


def test_a_reload_changes_the_capacity(gateway: GatewayProcess) -> None:
    """And without one, limits are those of the quotas again."""
    text = gateway.config_file.read_text()
    gateway.config_file.write_text(text.replace(str(CAPACITY), str(2 * CAPACITY)))
    gateway.signal(signal.SIGHUP)
    gateway.eventually(lambda: gateway.metric("gateway_produce_byte_capacity") == 2 * CAPACITY)
    gateway.config_file.write_text(text.replace("[capacity]", "[capacity]\nobserve = true"))
    gateway.signal(signal.SIGHUP)

    def limits_are_those_that_are_set() -> bool:
        produce(gateway, "guaranteed", 1)
        return limit_of(gateway, "guaranteed") == 100_000_000

    gateway.eventually(limits_are_those_that_are_set)
