"""Limits of requests per API before a real Kafka: storms are slowed, honest clients beside them are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.wire_client import WireClient
from tests.integration.conftest import StartGateway
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration

STORM, HONEST = "api-storm", "api-honest"
TOPIC: Final = "api-limits"
RATE: Final = 5
CONNECTIONS: Final = 3
PIPELINED: Final = 8
"""Requests that each connection sends ahead: together more than two seconds' worth."""

STORMS: Final[dict[str, tuple[str, int, dict[str, Any]]]] = {
    "offset_commit": (
        "OffsetCommit",
        7,
        {
            "group_id": "api-limits",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [
                {
                    "name": TOPIC,
                    "partitions": [{"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}],
                }
            ],
        },
    ),
    "metadata": ("Metadata", 8, {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False}),
    "list_offsets": (
        "ListOffsets",
        5,
        {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [
                {"name": TOPIC, "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]}
            ],
        },
    ),
    "find_coordinator": ("FindCoordinator", 2, {"key": "api-limits", "key_type": 0}),
    "describe_configs": (
        "DescribeConfigs",
        2,
        {
            "resources": [{"resource_type": 2, "resource_name": TOPIC, "configuration_keys": None}],
            "include_synonyms": False,
        },
    ),
}


@pytest.fixture(scope="module")
def gateway(start_gateway: StartGateway, kafka: KafkaCluster) -> Iterator[GatewayProcess]:
    """It limits nothing yet."""
    with WireClient(kafka.brokers[1]) as broker:
        topic = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1}
        broker.ask("CreateTopics", 5, topics=[topic], timeout_ms=30_000, validate_only=False)
        # The first one may find no coordinator yet.
        while broker.ask("FindCoordinator", 2, key="api-limits", key_type=0).body.error_code:
            pass
        yield start_gateway(kafka, GatewayOptions(tables='[quota_admin]\nauthorize = "anyone"\n'))
        broker.ask("DeleteTopics", 5, topic_names=[TOPIC], timeout_ms=30_000)


def set_quota(gateway: GatewayProcess, client_id: str, key: str, value: float) -> None:
    entry = {
        "entity": [{"entity_type": "client-id", "entity_name": client_id}],
        "ops": [{"key": key, "value": value, "remove": False}],
    }
    with WireClient(gateway.broker(1)) as admin:
        body = admin.ask("AlterClientQuotas", 1, entries=[entry], validate_only=False).body
        assert [each.error_code for each in body.entries] == [0]
        listed = admin.ask("DescribeClientQuotas", 1, components=[], strict=False).body
    values = [(value.key, value.value) for each in listed.entries for value in each.values]
    assert (key, value) in values


@pytest.mark.parametrize("family", STORMS)
def test_a_storm_is_slowed_and_an_honest_client_beside_it_is_not(gateway: GatewayProcess, family: str) -> None:
    key = f"{family}_request_rate"
    name, version, fields = STORMS[family]
    set_quota(gateway, STORM, key, RATE)
    set_quota(gateway, HONEST, key, 1_000)
    storm = [WireClient(gateway.broker(1), client_id=STORM) for _ in range(CONNECTIONS)]
    for client in storm:
        for _ in range(PIPELINED):
            client.send(name, version, **fields)
    with WireClient(gateway.broker(1), client_id=HONEST) as honest:
        assert [honest.ask(name, version, **fields).body.throttle_time_ms for _ in range(PIPELINED)] == [
            0
        ] * PIPELINED
    # Each is answered, in order.
    waits = [client.receive().body.throttle_time_ms for client in storm for _ in range(PIPELINED)]
    for client in storm:
        client.close()
    assert any(waits)
    found = {"client_id": STORM, "quota": key}
    assert gateway.metric("gateway_api_rate_limit", **found) == RATE
    throttled = gateway.metric("gateway_api_throttled_requests_total", **found)
    assert throttled is not None
    # Those that waited before they were forwarded are counted too.
    assert throttled >= len(list(filter(None, waits)))
    assert gateway.metric("gateway_api_throttled_requests_total", client_id=HONEST, quota=key) == 0
