"""Groups of users before a real Kafka: what one member uses, the other waits for, and no other client does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from protocol.error_codes import ErrorCode
from testkit.secure_kafka import SecureKafka
from testkit.tap import Tap
from testkit.wire_client import WireClient
from tests.integration.gateway_process import GatewayOptions, GatewayProcess
from tests.integration.sasl_gateway import log_in, own_user
from tests.integration.test_operations import records

pytestmark = pytest.mark.integration

INVALID_REPLICATION_FACTOR = 38
TEAM = [{"entity_type": "group", "entity_name": "team"}]
TABLES = """
[quota_admin]
admins = ["User:gateway"]

[[groups]]
name = "team"
users = ["alice", "bo*"]

[[quotas]]
group = "team"
producer_byte_rate = 5_000

[[groups]]
name = "builders"
users = ["alice", "bo*"]

[[quotas]]
group = "builders"
controller_mutation_rate = 1
"""


@pytest.fixture
def gateway(
    secure_kafka: SecureKafka, tap: Tap, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """It has one group."""
    options = GatewayOptions(
        upstream=own_user(secure_kafka), listener='security_protocol = "SASL_PLAINTEXT"', tables=TABLES
    )
    addresses = secure_kafka.addresses("SASL").values()
    gateway = GatewayProcess(tmp_path_factory.mktemp("groups"), addresses, tap, options)
    gateway.start()
    yield gateway
    gateway.stop()


def produce(gateway: GatewayProcess, user: str, size: int) -> int:
    """As this user; the throttle time."""
    with WireClient(gateway.bootstrap, client_id=f"groups-{user}") as client:
        assert log_in(client, "PLAIN", user).error_code == 0
        topic = {"name": "of-groups", "partition_data": [{"index": 0, "records": records(size)}]}
        reply = client.ask("Produce", 9, acks=1, timeout_ms=20_000, topic_data=[topic]).body
        return int(reply.throttle_time_ms)


def test_two_users_of_a_group_share_its_quota_and_its_quota_is_changed_as_any_other(
    gateway: GatewayProcess, secure_kafka: SecureKafka
) -> None:
    secure_kafka.create_topic("of-groups")
    assert produce(gateway, "alice", 40_000) == 0
    assert produce(gateway, "bob", 40_000) > 0  # 50,000 pass in a window
    assert produce(gateway, "gateway", 90_000) == 0
    with WireClient(gateway.bootstrap) as client:
        assert log_in(client, "PLAIN", "gateway").error_code == 0
        component = {"entity_type": "group", "match_type": 0, "match": "team"}
        for value in (5_000.0, 1e9):
            found = client.ask("DescribeClientQuotas", 1, components=[component], strict=True).body
            assert [[(each.key, each.value) for each in entry.values] for entry in found.entries] == [
                [("producer_byte_rate", value)]
            ]
            ops = [{"key": "producer_byte_rate", "value": 1e9, "remove": False}]
            entry = {"entity": TEAM, "ops": ops}
            answer = client.ask("AlterClientQuotas", 1, entries=[entry], validate_only=False).body
            assert [each.error_code for each in answer.entries] == [0]
    assert produce(gateway, "bob", 40_000) == 0


def create(
    gateway: GatewayProcess, user: str, topic: str, partitions: int, *, replication_factor: int = 1
) -> tuple[int, int]:
    """As this user; error code and throttle time."""
    with WireClient(gateway.bootstrap, client_id=f"groups-{user}") as client:
        assert log_in(client, "PLAIN", user).error_code == 0
        wanted = [{"name": topic, "num_partitions": partitions, "replication_factor": replication_factor}]
        reply = client.ask("CreateTopics", 7, topics=wanted, timeout_ms=20_000).body
        return int(reply.topics[0].error_code), int(reply.throttle_time_ms)


def test_two_users_of_a_group_share_its_mutations_and_permits_of_a_refused_topic_come_back(
    gateway: GatewayProcess,
) -> None:
    refused = create(gateway, "alice", "of-too-many", 30, replication_factor=9)
    assert refused[0] == INVALID_REPLICATION_FACTOR
    assert create(gateway, "alice", "of-alice", 30) == (ErrorCode.NONE, 0)  # 11 are in the bucket
    code, throttle_ms = create(gateway, "bob", "of-bob", 1)
    assert code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert 10_000 < throttle_ms <= 19_000
    assert create(gateway, "gateway", "of-gateway", 12) == (ErrorCode.NONE, 0)
    of_builders = {"group": "builders", "quota": "controller_mutation"}
    assert gateway.metric("gateway_group_throttles_total", **of_builders) == 1
    assert gateway.metric("gateway_group_limit", **of_builders) == 1
