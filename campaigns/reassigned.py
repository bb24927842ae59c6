"""``python -m campaigns.reassigned``: a partition moves between three real brokers, and producers follow it.

In each round the only replica of a partition moves to a random other broker. Once the new leader accepts records, two
clients ask for Metadata and produce to the leader in the answer: one directly and one through the gateway, in
alternating order. Each time the broker at the port is asked for its settings by the id that it should have. Only the
broker with this id answers that request.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from campaigns.adversary.requests import batch
from embedded_kafka.kafka import KafkaCluster
from protocol.error_codes import ErrorCode
from testkit.gateway import gateway_process
from testkit.raw_client import HOST
from testkit.wire_client import WireClient

GOAL_S: Final = 1.0
TOPIC: Final = "moving"
_BROKER: Final = 4
_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.005
_KINDS: Final = ("direct", "gateway")


@dataclass(slots=True)
class Found:
    """Results of one way to the brokers.

    Attributes:
        took_s: seconds of each round until a record was accepted.
        wrong: number of ports at which another broker answered.
        asked: number of ports that were asked.
        sent_back: records that were refused because the broker was no longer the leader.
    """

    took_s: list[float] = field(default_factory=list)
    wrong: int = 0
    asked: int = 0
    sent_back: int = 0


def create(cluster: KafkaCluster) -> None:
    """Create the topic on the first broker."""
    assignments = [{"partition_index": 0, "broker_ids": [1]}]
    topic = {"name": TOPIC, "num_partitions": -1, "replication_factor": -1, "assignments": assignments}
    with WireClient(cluster.brokers[1]) as client:
        client.ask("CreateTopics", 7, topics=[topic], timeout_ms=30_000)
        assert [is_broker(client, each) for each in cluster.brokers] == [True, False, False]
    takes_records(cluster, 1)


def move(cluster: KafkaCluster, controller: WireClient, to: int) -> None:
    """Move the partition, and wait until its new leader accepts records."""
    moved = [{"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": [to]}]}]
    controller.ask("AlterPartitionReassignments", 0, topics=moved, timeout_ms=30_000)
    takes_records(cluster, to)


def takes_records(cluster: KafkaCluster, leader: int) -> None:
    """Wait until a broker leads the partition."""
    wanted = [{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    end_s = time.monotonic() + _PATIENCE_S
    with WireClient(cluster.brokers[leader]) as client:
        while time.monotonic() < end_s:
            found = client.ask("ListOffsets", 2, replica_id=-1, isolation_level=0, topics=wanted).body.topics[
                0
            ]
            if found.partitions[0].error_code == ErrorCode.NONE:
                return
            time.sleep(_PAUSE_S)
    raise TimeoutError(f"broker {leader} does not lead the partition")


def follow(bootstrap: tuple[str, int], found: Found) -> None:
    """Ask for the leader and produce to it until a record is accepted; notes how long that took."""
    begun_s = time.monotonic()
    data = [{"name": TOPIC, "partition_data": [{"index": 0, "records": batch(100)}]}]
    with WireClient(bootstrap) as client:
        while time.monotonic() < begun_s + _PATIENCE_S:
            body = client.ask("Metadata", 12, topics=[{"name": TOPIC}], allow_auto_topic_creation=False).body
            (topic,) = body.topics
            leader = topic.partitions[0].leader_id if topic.partitions else -1
            addresses = {broker.node_id: (broker.host, broker.port) for broker in body.brokers}
            if leader in addresses:
                with WireClient(addresses[leader]) as at_leader:
                    answer = at_leader.ask("Produce", 9, acks=1, timeout_ms=10_000, topic_data=data).body
                    code = answer.responses[0].partition_responses[0].error_code
                    if code == ErrorCode.NONE:
                        found.took_s.append(time.monotonic() - begun_s)
                    found.sent_back += code != ErrorCode.NONE
                    found.asked += 1
                    found.wrong += not is_broker(at_leader, leader)
                    if code == ErrorCode.NONE:
                        return
            time.sleep(_PAUSE_S)
    raise TimeoutError("no record was taken")


def is_broker(client: WireClient, broker_id: int) -> bool:
    """Whether the broker at the other end has this id: a broker describes only itself."""
    asked = [{"resource_type": _BROKER, "resource_name": str(broker_id), "configuration_keys": ["broker.id"]}]
    (found,) = client.ask("DescribeConfigs", 2, resources=asked, include_synonyms=False).body.results
    return bool(found.error_code == ErrorCode.NONE)


def offset(cluster: KafkaCluster, leader: int) -> int:
    """How many records the partition has."""
    wanted = [{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    with WireClient(cluster.brokers[leader]) as client:
        found = client.ask("ListOffsets", 2, replica_id=-1, isolation_level=0, topics=wanted).body.topics[0]
    return int(found.partitions[0].offset)


def rounds(cluster: KafkaCluster, port: int, count: int, seed: int) -> tuple[dict[str, Found], int]:
    """Play all rounds; the results of each way, and the number of missing or extra records."""
    dice = random.Random(seed)
    found = {kind: Found() for kind in _KINDS}
    leader = 1
    for number in range(count):
        leader = dice.choice([each for each in cluster.brokers if each != leader])
        bootstraps = {"direct": cluster.brokers[leader], "gateway": (HOST, port)}
        with WireClient(cluster.brokers[1]) as controller:
            move(cluster, controller, leader)
        for kind in _KINDS if number % 2 else reversed(_KINDS):
            follow(bootstraps[kind], found[kind])
    taken = sum(len(each.took_s) for each in found.values())
    return found, offset(cluster, leader) - taken


async def campaign(count: int, seed: int) -> tuple[dict[str, Found], int]:
    """Run it; see `rounds`."""
    with KafkaCluster(3) as cluster, tempfile.TemporaryDirectory() as folder:
        create(cluster)
        ports = [address.port for address in cluster.brokers.values()]
        async with gateway_process(Path(folder), *ports) as gateway:
            return await asyncio.to_thread(rounds, cluster, gateway.port, count, seed)


def main() -> int:
    """Run it; 1 when a leader was reached too late, or a wrong broker was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=100)
    parser.add_argument("--seed", type=int, default=18)
    options = parser.parse_args()
    found, difference = asyncio.run(campaign(options.moves, options.seed))
    ours, direct = found["gateway"], found["direct"]
    print(
        f"**{options.moves} reassignments: the leader reached after at most {max(ours.took_s):.3f} s, "
        f"directly {max(direct.took_s):.3f} s; {ours.wrong} of {ours.asked} at a wrong broker, "
        f"{difference} records lost or doubled**"
    )
    print(
        f"refused by a broker that does not lead: {ours.sent_back}, directly {direct.sent_back}",
        file=sys.stderr,
    )
    return int(max(ours.took_s) > GOAL_S or ours.wrong > 0 or difference != 0)


if __name__ == "__main__":
    sys.exit(main())
