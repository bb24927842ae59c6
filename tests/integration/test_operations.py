"""`sluice serve` as an operator meets it: started too early, stopped during work."""

import signal
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from kafka.record.memory_records import MemoryRecordsBuilder

from embedded_kafka.kafka import KafkaCluster
from testkit.kafka_cluster import KAFKA_HOST
from testkit.tap import Tap
from testkit.wire_client import ConnectionEnded, WireClient
from tests.integration.gateway_process import GatewayProcess

pytestmark = pytest.mark.integration

UNKNOWN_MEMBER_ID: Final = 25


def records(size: int = 100) -> bytes:
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=2 * size)
    builder.append(timestamp=1_700_000_000_000, key=None, value=b"v" * size)
    builder.close()
    return bytes(builder.buffer())


def test_j11_gateway_started_before_its_broker_is_not_ready_and_serves_once_the_broker_is_there(
    tap: Tap, tmp_path: Path
) -> None:
    cluster = KafkaCluster(host=KAFKA_HOST)
    gateway = GatewayProcess(tmp_path, cluster.brokers.values(), tap)
    gateway.start(ready=False)
    try:
        # The admin port answers while the quota store is still being read.
        refused = f"{KAFKA_HOST}:{cluster.brokers[1].port}: Connection refused\n"
        gateway.eventually(lambda: gateway.http("/readyz")[1].endswith(refused))
        assert gateway.http("/readyz")[0] == 503
        assert gateway.http("/healthz")[0] == 200
        with WireClient(gateway.bootstrap) as early, pytest.raises(ConnectionEnded):
            early.ask("ApiVersions", 2)
        with cluster:
            gateway.eventually(lambda: gateway.http("/readyz")[0] == 200)
            with WireClient(gateway.bootstrap) as client:
                brokers = client.ask("Metadata", 12, topics=[]).body.brokers
            assert [(broker.host, broker.port) for broker in brokers] == [gateway.broker(1)]
        gateway.signal(signal.SIGTERM)
        assert gateway.wait(60) == 0
    finally:
        gateway.stop()


def test_l09_drain_does_not_wait_for_members_of_groups_that_wait_for_each_other(
    kafka: KafkaCluster, tap: Tap, tmp_path: Path
) -> None:
    """As after a broker's restart: those that are gone can't come back here any more."""
    gateway = GatewayProcess(tmp_path, kafka.brokers.values(), tap)
    gateway.start()
    try:
        with (
            WireClient(gateway.broker(1)) as first,
            WireClient(gateway.broker(1)) as joining,
            WireClient(gateway.broker(1)) as leader,
            WireClient(gateway.broker(1)) as syncing,
        ):
            for group in ("one", "two"):
                gateway.eventually(partial(_is_coordinated, first, f"drained-{group}"))
            first.ask("JoinGroup", 3, **_member_of("one"))
            joining.send("JoinGroup", 3, **_member_of("one"))
            leading = leader.ask("JoinGroup", 3, **_member_of("two")).body.member_id
            syncing.send("JoinGroup", 3, **_member_of("two"))
            for group in ("one", "two"):
                gateway.eventually(partial(_awaits_members, first, f"drained-{group}"))
            leader.ask("JoinGroup", 3, **_member_of("two", leading))
            joined = syncing.receive().body
            names = {"group_id": "drained-two", "generation_id": joined.generation_id, "member_id": joined.member_id}
            syncing.send("SyncGroup", 2, **names, assignments=[])
            time.sleep(0.5)
            gateway.signal(signal.SIGTERM)
            assert gateway.wait(60) == 0
            for client in (joining, syncing):
                with pytest.raises(ConnectionEnded):
                    client.receive()
    finally:
        gateway.stop()


def _is_coordinated(client: WireClient, group: str) -> bool:
    found = client.ask("FindCoordinator", 2, key=group, key_type=0).body
    answer = client.ask("Heartbeat", 2, group_id=group, generation_id=1, member_id="nobody").body
    return found.error_code == 0 and answer.error_code == UNKNOWN_MEMBER_ID


def _awaits_members(client: WireClient, group: str) -> bool:
    described = client.ask("DescribeGroups", 4, groups=[group], include_authorized_operations=False).body
    return bool(described.groups[0].group_state == "PreparingRebalance")


def _member_of(group: str, member_id: str = "") -> dict[str, Any]:
    return {
        "group_id": f"drained-{group}", "session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000,
        "member_id": member_id, "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}],
    }  # fmt: skip
