"""Quotas of request time, API by API: the cases of Kafka's RequestQuotaTest, from their description.

A client with a tiny request_percentage gets a throttle time from every API, one with a large one from none. Both are
asked of the broker with a quota of its own, and through the gateway. The original also reads metrics inside the
broker, which no client can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.wire_client import WireClient
from tests.integration.conftest import StartGateway, eventually
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration

SLOW, FREE = "request-slow", "request-free"
TOPIC: Final = "request-quota"
PARTITION: Final = {"name": TOPIC, "partitions": [{"partition_index": 0}]}
TRANSACTION: Final = {"transactional_id": "request-quota", "producer_id": 1, "producer_epoch": 0}
EVERY_ACL: Final = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
APIS: Final[dict[str, tuple[int, dict[str, Any]]]] = {
    "ApiVersions": (2, {}),
    "Metadata": (8, {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False}),
    "ListOffsets": (
        2,
        {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
        },
    ),
    "FindCoordinator": (3, {"key": "request-quota", "key_type": 0}),
    "OffsetFetch": (5, {"group_id": "request-quota", "topics": []}),
    "Heartbeat": (2, {"group_id": "request-quota", "generation_id": 1, "member_id": ""}),
    "LeaveGroup": (2, {"group_id": "request-quota", "member_id": ""}),
    "SyncGroup": (2, {"group_id": "request-quota", "generation_id": 1, "member_id": "", "assignments": []}),
    "DescribeGroups": (3, {"groups": ["request-quota"], "include_authorized_operations": False}),
    "ListGroups": (2, {}),
    "CreateTopics": (
        5,
        {
            "topics": [{"name": TOPIC, "num_partitions": 1, "replication_factor": 1}],
            "timeout_ms": 1_000,
            "validate_only": True,
        },
    ),
    "DeleteTopics": (5, {"topic_names": ["request-quota-unknown"], "timeout_ms": 1_000}),
    "InitProducerId": (2, {"transactional_id": None, "transaction_timeout_ms": 60_000}),
    "AddOffsetsToTxn": (2, {**TRANSACTION, "group_id": "request-quota"}),
    "EndTxn": (2, {**TRANSACTION, "committed": False}),
    "DescribeAcls": (2, EVERY_ACL),
    "DescribeConfigs": (
        2,
        {
            "resources": [{"resource_type": 2, "resource_name": TOPIC, "configuration_keys": None}],
            "include_synonyms": False,
        },
    ),
    "DescribeLogDirs": (1, {"topics": []}),
    "DeleteGroups": (1, {"groups_names": ["request-quota"]}),
    "DescribeClientQuotas": (1, {"components": [], "strict": False}),
    "DescribeCluster": (0, {"include_cluster_authorized_operations": False}),
    "ListTransactions": (0, {"state_filters": [], "producer_id_filters": []}),
    "DescribeTransactions": (0, {"transactional_ids": ["request-quota"]}),
    "DescribeProducers": (0, {"topics": [{"name": TOPIC, "partition_indexes": [0]}]}),
}
"""With a version that each family of clients uses, and what the request says."""

PERCENT: Final = {**{f"{SLOW}-{api}": 0.01 for api in APIS}, FREE: 2000.0}
"""A slow client for each API. After a request that took long, the next ones of its client have to wait, and then
their own time may be too little for a throttle time."""


def set_quotas(broker: WireClient, *, remove: bool) -> None:
    entries = [
        {
            "entity": [{"entity_type": "client-id", "entity_name": f"{name}-direct"}],
            "ops": [{"key": "request_percentage", "value": percent, "remove": remove}],
        }
        for name, percent in PERCENT.items()
    ]
    body = broker.ask("AlterClientQuotas", 1, entries=entries, validate_only=False).body
    assert {entry.error_code for entry in body.entries} == {0}


@pytest.fixture(scope="module")
def gateway(start_gateway: StartGateway, kafka: KafkaCluster) -> Iterator[GatewayProcess]:
    """Before a broker that has quotas too, of client ids that end in "-direct"."""
    tables = '[quota_admin]\nauthorize = "anyone"\n'
    for name, percent in PERCENT.items():
        tables += f'[[quotas]]\nclient_id = "{name}"\nrequest_percentage = {percent}\n'
    with WireClient(kafka.brokers[1]) as broker:
        topic = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1}
        broker.ask("CreateTopics", 5, topics=[topic], timeout_ms=30_000, validate_only=False)
        set_quotas(broker, remove=False)
        yield start_gateway(kafka, GatewayOptions(tables=tables))
        set_quotas(broker, remove=True)
        broker.ask("DeleteTopics", 5, topic_names=[TOPIC], timeout_ms=30_000)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "gateway"])
def test_every_api_tells_a_throttle_time_to_a_slow_client_and_none_to_a_free_one(
    gateway: GatewayProcess, kafka: KafkaCluster, direct: bool, api: str
) -> None:
    address, ending = (kafka.brokers[1], "-direct") if direct else (gateway.broker(1), "")
    version, fields = APIS[api]
    with WireClient(address, client_id=f"{SLOW}-{api}{ending}") as slow:
        eventually(lambda: slow.ask(api, version, **fields).body.throttle_time_ms > 0)
    with WireClient(address, client_id=f"{FREE}{ending}") as free:
        assert [free.ask(api, version, **fields).body.throttle_time_ms for _ in range(3)] == [0, 0, 0]
