"""Record what a real Kafka answers, byte for byte: `python -m tests.golden.capture`.

Starts three brokers of the embedded Kafka, asks each question once in every version and writes both frames to
`<api>_v<version>_<request|response>.bin` in this folder. Not part of the tests; ORIGIN.md says when it was run last.
"""

import socket
import time
from pathlib import Path
from struct import pack, unpack
from typing import Any

from kafka.record.memory_records import MemoryRecordsBuilder

from embedded_kafka.kafka import KafkaCluster
from testkit import wire
from testkit.frames import streams_heartbeat, subtopology

FOLDER = Path(__file__).parent
HOST = "127.77.0.1"
COORDINATOR_NOT_AVAILABLE = 15


Fields = dict[str, Any]


class Recorder:
    """Asks one broker and keeps what was said."""

    def __init__(self, address: tuple[str, int]) -> None:
        """Connect."""
        self._socket = socket.create_connection(address, timeout=30)

    def ask(self, frame: bytes) -> bytes:
        """The whole answer to a whole request."""
        self._socket.sendall(frame)
        size = self._read(4)
        return size + self._read(unpack(">i", size)[0])

    def record(self, label: str, version: int, frame: bytes) -> bytes:
        """Ask, and write both frames."""
        answer = self.ask(frame)
        (FOLDER / f"{label}_v{version}_request.bin").write_bytes(frame)
        (FOLDER / f"{label}_v{version}_response.bin").write_bytes(answer)
        return answer

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise EOFError("the broker closed the connection")
            data += more
        return data


def records() -> bytes:
    """One small batch."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1024)
    builder.append(timestamp=1_700_000_000_000, key=b"k", value=b"v")
    builder.close()
    return bytes(builder.buffer())


def produce_fields(version: int, name: str, topic_id: Any, partition: int) -> Fields:
    """A Produce request's fields for one batch to one partition."""
    topic: Fields = {"topic_id": topic_id} if version >= 13 else {"name": name}
    topic["partition_data"] = [{"index": partition, "records": records()}]
    return {"acks": 1, "timeout_ms": 5_000, "topic_data": [topic]}


def capture_topics(broker: Recorder) -> None:
    """CreateTopics, CreatePartitions and DeleteTopics, each with a topic that is refused."""
    fields: Fields
    for version in range(2, 8):
        topics = [
            {"name": f"made-v{version}", "num_partitions": 2, "replication_factor": 1},
            {"name": "no/such/name", "num_partitions": 1, "replication_factor": 1},
        ]
        fields = {"topics": topics, "timeout_ms": 10_000, "validate_only": False}
        broker.record("create_topics", version, wire.request("CreateTopics", version, **fields))
    for version in range(4):
        topics = [{"name": f"made-v{version + 2}", "count": 3}, {"name": "absent", "count": 3}]
        fields = {"topics": topics, "timeout_ms": 10_000, "validate_only": False}
        broker.record("create_partitions", version, wire.request("CreatePartitions", version, **fields))
    for version in range(1, 7):
        names = [f"made-v{version + 1}", "absent"]
        if version >= 6:
            fields = {"topics": [{"name": name} for name in names]}
        else:
            fields = {"topic_names": names}
        fields["timeout_ms"] = 10_000
        broker.record("delete_topics", version, wire.request("DeleteTopics", version, **fields))


def capture_cluster(broker: Recorder, topic_id: Any) -> None:
    """What shows clients where brokers are and what they can do."""
    fields: Fields
    software: Fields = {"client_software_name": "tests", "client_software_version": "1"}
    answer = broker.ask(wire.request("DescribeCluster", 0))
    cluster_id = wire.decode_response("DescribeCluster", 0, answer).cluster_id
    for version in range(6):
        fields = software if version >= 3 else {}
        if version >= 5:
            fields = software | {"cluster_id": cluster_id, "node_id": 1}
        broker.record("api_versions", version, wire.request("ApiVersions", version, **fields))
    # A version no one knows, and a software name that Kafka refuses, are answered in two different layouts.
    frame = wire.request("ApiVersions", 4, **software)
    broker.record("api_versions_unsupported", 99, frame[:6] + pack(">h", 99) + frame[8:])
    # KIP-1242: another node than the one that answers, and a cluster without a node.
    for label, node_id in (("api_versions_misrouted", 2), ("api_versions_invalid", -1)):
        frame = wire.request("ApiVersions", 5, **software, cluster_id=cluster_id, node_id=node_id)
        broker.record(label, 5, frame)
    for version in (3, 4):
        fields = {"client_software_name": "-no-", "client_software_version": ""}
        broker.record("api_versions_invalid", version, wire.request("ApiVersions", version, **fields))
    for version in range(14):
        topics: list[Fields] = [{"name": "kept"}]
        if version >= 4:
            topics.append({"name": "absent"})
        fields = {"topics": topics, "allow_auto_topic_creation": False} if version >= 4 else {"topics": topics}
        broker.record("metadata", version, wire.request("Metadata", version, **fields))
    for version in (12, 13):
        fields = {"topics": [{"topic_id": topic_id, "name": None}], "allow_auto_topic_creation": False}
        broker.record("metadata_by_id", version, wire.request("Metadata", version, **fields))
    for version in range(7):
        if version >= 4:
            fields = {"coordinator_keys": ["group-a", "group-b"], "key_type": 0}
        else:
            fields = {"key": "group-a"}
        ask_until_available(broker, version, fields)
        broker.record("find_coordinator", version, wire.request("FindCoordinator", version, **fields))
    partitions = [{"name": "kept", "partitions": [{"partition_index": 0}]}]
    frame = wire.request("OffsetDelete", 0, group_id="group-a", topics=partitions)
    broker.record("offset_delete", 0, frame)
    for version in range(3):
        broker.record("describe_cluster", version, wire.request("DescribeCluster", version))
    for version in range(1, 5):
        resource = {
            "resource_type": 4,
            "resource_name": "1",
            "configuration_keys": ["listeners", "advertised.listeners", "num.partitions", "controller.quorum.voters"],
        }
        fields = {"resources": [resource], "include_synonyms": True}
        broker.record("describe_configs", version, wire.request("DescribeConfigs", version, **fields))


def capture_groups(brokers: dict[int, Recorder], topic_id: Any) -> None:
    """APIs of groups whose layouts changed in 4.4, and those of streams groups (KIP-1071, KIP-1319, KIP-1331)."""
    group = "golden-streams"
    broker = coordinator(brokers, group, key_type=0)
    for version in range(2):
        frame = streams_heartbeat(group, subtopology("kept", changelogs=[f"{group}-changelog"]), version=version)
        broker.record("streams_group_heartbeat", version, frame)
    node: Fields = {"name": "source", "node_type": 1, "source_topics": ["kept"], "sink_topic": None}
    node |= {"stores": [], "successors": []}
    topology = {"subtopologies": [{"subtopology_id": "0", "nodes": [node]}], "global_stores": []}
    member = {"group_id": group, "member_id": f"member-{group}", "topology_epoch": 0}
    frame = wire.request("StreamsGroupTopologyDescriptionUpdate", 0, **member, topology_description=topology)
    broker.record("streams_group_topology_description_update", 0, frame)
    for version in range(2):
        described: Fields = {"group_ids": [group]}
        if version >= 1:
            described["include_topology_description"] = True
        broker.record("streams_group_describe", version, wire.request("StreamsGroupDescribe", version, **described))
    for version in (2, 3):
        frame = wire.request("DeleteGroups", version, groups_names=[group])
        broker.record("delete_groups", version, frame)
    transaction = "golden-transaction"
    frame = wire.request("InitProducerId", 5, transactional_id=transaction, transaction_timeout_ms=60_000)
    producer = wire.decode_response("InitProducerId", 5, coordinator(brokers, transaction, key_type=1).ask(frame))
    fields: Fields = {"transactional_id": transaction, "group_id": "golden-commits"}
    fields |= {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    broker = coordinator(brokers, "golden-commits", key_type=0)
    partitions = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": None}]
    for version in (5, 6):
        topic: Fields = {"topic_id": topic_id} if version >= 6 else {"name": "kept"}
        frame = wire.request("TxnOffsetCommit", version, **fields, topics=[topic | {"partitions": partitions}])
        broker.record("txn_offset_commit", version, frame)


def coordinator(brokers: dict[int, Recorder], key: str, *, key_type: int) -> Recorder:
    """The broker that coordinates a group or a transaction."""
    fields = {"coordinator_keys": [key], "key_type": key_type}
    ask_until_available(brokers[1], 4, fields)
    answer = brokers[1].ask(wire.request("FindCoordinator", 4, **fields))
    return brokers[wire.decode_response("FindCoordinator", 4, answer).coordinators[0].node_id]


def ask_until_available(broker: Recorder, version: int, fields: Fields) -> None:
    """Wait until the offsets topic exists."""
    for _ in range(100):
        answer = broker.ask(wire.request("FindCoordinator", version, **fields))
        found = wire.decode_response("FindCoordinator", version, answer)
        entries = found.coordinators if version >= 4 else [found]
        if all(entry.error_code != COORDINATOR_NOT_AVAILABLE for entry in entries):
            return
        time.sleep(0.2)
    raise TimeoutError("no coordinator")


def capture_produce(leader: Recorder, other: Recorder, topic_id: Any, partition: int) -> None:
    """Produce at its leader, and at a broker that only knows who the leader is (KIP-951)."""
    for version in range(3, 14):
        frame = wire.request("Produce", version, **produce_fields(version, "kept", topic_id, partition))
        leader.record("produce", version, frame)
        other.record("produce_not_leader", version, frame)


def capture_refused(address: tuple[str, int]) -> None:
    """THROTTLING_QUOTA_EXCEEDED as the controller writes it (KIP-599), for a client that used up its tokens.

    Each question has a connection of its own, because the broker mutes the one that it has throttled.
    """

    def ask(frame: bytes, *, label: str = "", version: int = 0) -> bytes:
        recorder = Recorder(address)
        answer = recorder.record(label, version, frame) if label else recorder.ask(frame)
        recorder.close()
        return answer

    client_id = "limited"
    entry = {
        "entity": [{"entity_type": "client-id", "entity_name": client_id}],
        "ops": [{"key": "controller_mutation_rate", "value": 1.0, "remove": False}],
    }
    ask(wire.request("AlterClientQuotas", 1, entries=[entry], validate_only=False))
    time.sleep(1)
    made = [{"name": f"debt-{i}", "num_partitions": 50, "replication_factor": 1} for i in range(2)]
    common: Fields = {"timeout_ms": 10_000, "validate_only": False}
    answer = ask(wire.request("CreateTopics", 7, client_id=client_id, topics=made[:1], **common))
    topic_id = wire.decode_response("CreateTopics", 7, answer).topics[0].topic_id
    for version in (6, 7):
        frame = wire.request("CreateTopics", version, client_id=client_id, topics=made[1:], **common)
        ask(frame, label="create_topics_refused", version=version)
    more = [{"name": "debt-0", "count": 60}]
    frame = wire.request("CreatePartitions", 3, client_id=client_id, topics=more, **common)
    ask(frame, label="create_partitions_refused", version=3)
    for version, label, fields in (
        (5, "delete_topics_refused", {"topic_names": ["debt-0"]}),
        (6, "delete_topics_refused", {"topics": [{"name": "debt-0"}]}),
        (6, "delete_topics_by_id_refused", {"topics": [{"name": None, "topic_id": topic_id}]}),
    ):
        frame = wire.request("DeleteTopics", version, client_id=client_id, timeout_ms=10_000, **fields)
        ask(frame, label=label, version=version)


def capture_delegation_tokens(broker: Recorder) -> None:
    """kafka-python has no classes for these; the answers are errors, because the brokers have no token key."""
    bodies = {
        # (key, version): body behind the header
        ("create_delegation_token", 38, 1): pack(">iq", 0, 1_000),
        ("create_delegation_token", 38, 2): b"\x01" + pack(">q", 1_000) + b"\x00",
        ("create_delegation_token", 38, 3): b"\x00\x00\x01" + pack(">q", 1_000) + b"\x00",
        ("renew_delegation_token", 39, 1): pack(">i2sq", 2, b"ab", 1_000),
        ("renew_delegation_token", 39, 2): b"\x03ab" + pack(">q", 1_000) + b"\x00",
        ("expire_delegation_token", 40, 1): pack(">i2sq", 2, b"ab", 1_000),
        ("expire_delegation_token", 40, 2): b"\x03ab" + pack(">q", 1_000) + b"\x00",
        ("describe_delegation_token", 41, 1): pack(">i", -1),
        ("describe_delegation_token", 41, 2): b"\x00\x00",
        ("describe_delegation_token", 41, 3): b"\x00\x00",
    }
    for (label, key, version), body in bodies.items():
        header = wire.head(key, version, flexible=version >= 2)
        broker.record(label, version, wire.framed(header + body))


def main() -> None:
    """Start the brokers, ask everything, stop them."""
    cluster = KafkaCluster(brokers=3, host=HOST)
    with cluster:
        recorders = {i: Recorder((address.host, address.port)) for i, address in cluster.brokers.items()}
        broker = recorders[1]
        made = {"name": "kept", "num_partitions": 1, "replication_factor": 1}
        answer = broker.ask(wire.request("CreateTopics", 7, topics=[made], timeout_ms=10_000, validate_only=False))
        topic_id = wire.decode_response("CreateTopics", 7, answer).topics[0].topic_id
        leader = leader_of_kept(broker)
        capture_cluster(broker, topic_id)
        capture_groups(recorders, topic_id)
        capture_topics(broker)
        capture_produce(recorders[leader], recorders[leader % 3 + 1], topic_id, 0)
        capture_delegation_tokens(broker)
        capture_refused((cluster.brokers[1].host, cluster.brokers[1].port))
        for recorder in recorders.values():
            recorder.close()


def leader_of_kept(broker: Recorder) -> int:
    """The leader of the topic's one partition, once every broker can know it."""
    for _ in range(100):
        answer = broker.ask(wire.request("Metadata", 12, topics=[{"name": "kept"}], allow_auto_topic_creation=False))
        topic = wire.decode_response("Metadata", 12, answer).topics[0]
        if topic.error_code == 0 and topic.partitions[0].leader_id > 0:
            time.sleep(1)
            return int(topic.partitions[0].leader_id)
        time.sleep(0.2)
    raise TimeoutError("no leader")


if __name__ == "__main__":
    main()
