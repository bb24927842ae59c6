"""A group of users before a real Kafka: what one member produces, the other waits for, and no other client does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testkit.secure_kafka import SecureKafka
from testkit.tap import Tap
from testkit.wire_client import WireClient
from tests.integration.gateway_process import GatewayOptions, GatewayProcess
from tests.integration.sasl_gateway import log_in, own_user
from tests.integration.test_operations import records

pytestmark = pytest.mark.integration

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
