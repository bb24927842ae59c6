"""Model brokers: the responses that matter to a gateway, and brokers' faults.

Topics never run out of records. The bytes of a topic follow from its name, and the bytes that a client writes follow
from its client id. So bytes that reach the wrong client are noticed.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from simulation import messages
from simulation.messages import Frames, Head, read_head
from simulation.network import End, Network, Port
from simulation.world import NS_PER_MS, Event, World
from testkit import wire

PORT: Final = 9092
CLUSTER_ID: Final = "simulated"

_RANGES: Final = {
    messages.PRODUCE: (0, 12),
    messages.FETCH: (4, 12),
    2: (1, 8),
    messages.METADATA: (0, 12),
    8: (2, 8),
    9: (1, 8),
    messages.FIND_COORDINATOR: (0, 4),
    messages.JOIN_GROUP: (0, 9),
    messages.HEARTBEAT: (0, 4),
    13: (0, 5),
    messages.SYNC_GROUP: (0, 5),
    messages.API_VERSIONS: (0, 3),
    messages.CREATE_TOPICS: (2, 7),
    messages.DELETE_TOPICS: (1, 6),
    messages.DESCRIBE_CONFIGS: (1, 4),
    messages.CREATE_PARTITIONS: (0, 3),
    48: (0, 1),
    messages.ALTER_CLIENT_QUOTAS: (0, 1),
}


def _response(name: str, head: Head, **results: Any) -> bytes:
    return wire.response(
        name, head.version, correlation_id=head.correlation_id, throttle_time_ms=0, **results
    )


_PATTERN_BYTES: Final = 1 << 20


@lru_cache(maxsize=256)
def pattern(name: str, size: int = _PATTERN_BYTES) -> bytes:
    """The bytes that records of this name repeat."""
    block = hashlib.blake2b(name.encode(), digest_size=32).digest()
    return (block * (size // 32 + 1))[:size]


def payload(name: str, size: int) -> bytes:
    """The first `size` of these bytes."""
    known = pattern(name)
    return known[:size] if size <= len(known) else pattern(name, 1 << (size - 1).bit_length())[:size]


@dataclass(slots=True)
class Topic:
    """One topic.

    Attributes:
        leaders: the leader of each partition.
        created_by: client id of its creator; empty: it existed from the beginning.
    """

    name: str
    topic_id: UUID
    leaders: list[int]
    created_by: str = ""


@dataclass(slots=True)
class Received:
    """What brokers have received from one client id, and sent to it.

    Attributes:
        produce_bytes: bytes of whole Produce frames, as the quota counts them.
        produced: number of Produce requests.
        fetched_bytes: bytes of Fetch responses that were sent, as the quota counts them.
    """

    produce_bytes: int = 0
    produced: int = 0
    fetched_bytes: int = 0


class Cluster:
    """A cluster: its nodes and their common state.

    Attributes:
        nodes: by id.
        topics: by name.
        received: by client id.
        version: changes after each change of topics or nodes.
        problems: bytes and requests that no gateway should have passed on.
        default_partitions: partitions of a topic that Metadata creates.
        mutated: called with a client id and the number of partitions that were created or deleted for it.
    """

    def __init__(self, world: World, network: Network, *, nodes: int, topics: dict[str, int]) -> None:
        """Creates a cluster in which all nodes serve.

        Args:
            world, network: the world and its network.
            nodes: the number of nodes.
            topics: numbers of partitions by topic name.
        """
        self.world = world
        self.network = network
        self.dice = world.dice("cluster")
        self.topics: dict[str, Topic] = {}
        self.received: dict[str, Received] = {}
        self.version = 0
        self.problems: list[str] = []
        self.default_partitions = 2
        self.counts: Counter[str] = Counter()
        self.mutated: Callable[[str, int], None] = lambda _client_id, _permits: None
        self._metadata: dict[tuple[int, int, bytes], bytes] = {}
        self.nodes = {number: Node(self, number) for number in range(1, nodes + 1)}
        for name, partitions in topics.items():
            self.create(name, partitions, "")

    def of(self, client_id: str) -> Received:
        """What was received from a client."""
        found = self.received.get(client_id)
        if found is None:
            found = self.received[client_id] = Received()
        return found

    # -- topics ----------------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int, client_id: str) -> None:
        """Creates a topic."""
        ids = list(self.nodes)
        topic_id = UUID(bytes=hashlib.blake2b(f"{name}/{self.version}".encode(), digest_size=16).digest())
        first = len(self.topics)
        leaders = [ids[(first + at) % len(ids)] for at in range(partitions)]
        self.topics[name] = Topic(name, topic_id, leaders, client_id)
        self.version += 1
        if client_id:
            self.mutated(client_id, partitions)

    def move_leaders(self) -> None:
        """Makes the next serving node the leader of each partition."""
        ids = [number for number, node in self.nodes.items() if node.serves] or list(self.nodes)
        for topic in self.topics.values():
            topic.leaders = [
                ids[(ids.index(each) + 1) % len(ids)] if each in ids else ids[0] for each in topic.leaders
            ]
        self.version += 1

    def metadata(self, head: Head, frame: bytes) -> bytes:
        """The Metadata response. It is made once for equal requests to an unchanged cluster."""
        body = frame[head.body_at :]
        key = (self.version, head.version, body)
        known = self._metadata.get(key)
        if known is None:
            known = self._made_metadata(head, frame)
            if self.version == key[0]:
                self._metadata[key] = known
        return known[:4] + head.correlation_id.to_bytes(4, "big", signed=True) + known[8:]

    def _made_metadata(self, head: Head, frame: bytes) -> bytes:
        asked = wire.decode_request("Metadata", head.version, frame)
        names: list[str]
        if asked.topics is None:
            names = sorted(self.topics)
        else:
            by_id: dict[UUID | None, str] = {topic.topic_id: topic.name for topic in self.topics.values()}
            names = [
                each.name if each.name is not None else by_id.get(getattr(each, "topic_id", None), "")
                for each in asked.topics
            ]
        may_create = bool(getattr(asked, "allow_auto_topic_creation", False))
        topics = []
        for name in names:
            topic = self.topics.get(name)
            if topic is None and may_create and name:
                self.create(name, self.default_partitions, head.client_id)
                self.counts["auto_created"] += 1
                error = 5  # LEADER_NOT_AVAILABLE
            else:
                error = 0 if topic is not None else 3
            fields: dict[str, Any] = {"error_code": error, "name": name, "is_internal": False}
            if head.version >= 10:
                fields["topic_id"] = None if topic is None else topic.topic_id
            fields["partitions"] = [
                {
                    "error_code": 0,
                    "partition_index": at,
                    "leader_id": leader,
                    "leader_epoch": self.version,
                    "replica_nodes": [leader],
                    "isr_nodes": [leader],
                    "offline_replicas": [],
                }
                for at, leader in enumerate([] if topic is None else topic.leaders)
            ]
            topics.append(fields)
        return wire.response(
            "Metadata",
            head.version,
            correlation_id=0,
            throttle_time_ms=0,
            brokers=[
                {"node_id": number, "host": node.host, "port": PORT, "rack": None}
                for number, node in self.nodes.items()
                if not node.forgotten
            ],
            cluster_id=CLUSTER_ID,
            controller_id=min(self.nodes),
            topics=topics,
        )

    # -- mutations -------------------------------------------------------------------------------------------

    def create_topics(self, head: Head, frame: bytes) -> bytes:
        """CreateTopics."""
        asked = wire.decode_request("CreateTopics", head.version, frame)
        results = []
        for each in asked.topics:
            partitions = each.num_partitions if each.num_partitions > 0 else self.default_partitions
            # Some names are refused by a policy that the gateway cannot know.
            error = 36 if each.name in self.topics else 44 if each.name.endswith("7") else 0
            if not error and not asked.validate_only:
                self.create(each.name, partitions, head.client_id)
            result: dict[str, Any] = {"name": each.name, "error_code": error, "error_message": None}
            if head.version >= 5:
                result |= {"num_partitions": partitions, "replication_factor": 1, "configs": []}
            if head.version >= 7 and not error and each.name in self.topics:
                result["topic_id"] = self.topics[each.name].topic_id
            results.append(result)
        return _response("CreateTopics", head, topics=results)

    def create_partitions(self, head: Head, frame: bytes) -> bytes:
        """CreatePartitions."""
        asked = wire.decode_request("CreatePartitions", head.version, frame)
        results = []
        for each in asked.topics:
            topic = self.topics.get(each.name)
            error = 3 if topic is None else 37 if each.count <= len(topic.leaders) else 0
            if topic is not None and not error and not asked.validate_only:
                self.mutated(head.client_id, each.count - len(topic.leaders))
                ids = list(self.nodes)
                topic.leaders += [ids[at % len(ids)] for at in range(len(topic.leaders), each.count)]
                self.version += 1
            results.append({"name": each.name, "error_code": error, "error_message": None})
        return _response("CreatePartitions", head, results=results)

    def delete_topics(self, head: Head, frame: bytes) -> bytes:
        """DeleteTopics by name."""
        asked = wire.decode_request("DeleteTopics", head.version, frame)
        results = []
        for name in asked.topic_names:
            topic = self.topics.pop(name, None)
            if topic is not None:
                self.mutated(head.client_id, len(topic.leaders))
                self.version += 1
            results.append({"name": name, "error_code": 3 if topic is None else 0})
        return _response("DeleteTopics", head, responses=results)

    def describe_configs(self, head: Head, frame: bytes) -> bytes:
        """DescribeConfigs of a broker."""
        asked = wire.decode_request("DescribeConfigs", head.version, frame)
        values = {"num.partitions": str(self.default_partitions), "auto.create.topics.enable": "true"}
        results = [
            {
                "error_code": 0,
                "error_message": None,
                "resource_type": each.resource_type,
                "resource_name": each.resource_name,
                "configs": [
                    {
                        "name": name,
                        "value": values[name],
                        "read_only": False,
                        "config_source": 4,
                        "is_sensitive": False,
                        "synonyms": [],
                    }
                    for name in each.configuration_keys or sorted(values)
                    if name in values
                ],
            }
            for each in asked.resources
        ]
        return _response("DescribeConfigs", head, results=results)


class Node:
    """One broker.

    Attributes:
        serves: whether it listens.
        forgotten: whether the cluster's metadata leaves it out.
        slow_ns: additional time for each response.
        keeps_fetches: whether it leaves Fetch requests without a response.
        lies: the fault of its next response, which does not match the request: "id", "size".
    """

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.host = f"broker-{number}"
        self.serves = False
        self.forgotten = False
        self.slow_ns = 0
        self.keeps_fetches = False
        self.lies: str | None = None
        self.connections: dict[BrokerConnection, None] = {}
        self.dice: random.Random = cluster.world.dice(f"broker/{number}")
        self.address = (f"10.1.0.{number}", PORT)
        self._port: Port | None = None
        cluster.network.names[self.host] = self.address[0]
        self.start()

    def start(self) -> None:
        """Starts serving."""
        if not self.serves:
            self.serves = True
            self._port = self.cluster.network.listen(self.address, self._accept)

    def stop(self) -> None:
        """Stops: its connections end."""
        if self.serves and self._port is not None:
            self.serves = False
            self._port.close()
            for each in list(self.connections):
                each.end_now()

    def vanish(self) -> None:
        """Loses power: nothing ends its connections."""
        for each in list(self.connections):
            each._forget()
            each.end.vanish()
        self.stop()

    def _accept(self, end: End) -> None:
        self.connections[BrokerConnection(self, end)] = None


@dataclass(slots=True)
class FetchSession:
    """The topic and sizes of a connection's Fetch session (KIP-227)."""

    topic: str
    partition: int
    epoch: int = 0


@dataclass(slots=True, eq=False)
class BrokerConnection:
    """One connection, which processes one request at a time, as in Kafka."""

    node: Node
    end: End
    frames: Frames = field(default_factory=Frames)
    waiting: deque[bytes] = field(default_factory=deque)
    unsent: deque[bytes] = field(default_factory=deque)
    sessions: dict[int, FetchSession] = field(default_factory=dict)
    busy: bool = False
    gone: bool = False
    due: Event | None = None

    def __post_init__(self) -> None:
        self.end.owner = self

    # -- the network -----------------------------------------------------------------------------------------

    def received(self, end: End) -> None:
        """See `Peer`."""
        data = end.take()
        if data:
            try:
                self.waiting.extend(self.frames.add(data))
            except ValueError as exc:
                self.node.cluster.problems.append(f"broker {self.node.number} got {exc}")
                self.end_now()
                return
            self._next()
        if end.ended and not self.busy and not self.waiting:
            self._forget()
            end.close()

    def sent(self, end: End) -> None:
        """See `Peer`."""
        self._send()

    def lost(self, end: End) -> None:
        """See `Peer`."""
        self._forget()
        end.close()

    def end_now(self) -> None:
        """Closes the connection."""
        self._forget()
        self.end.abort()

    def _forget(self) -> None:
        self.gone = True
        self.node.connections.pop(self, None)
        if self.due is not None:
            self.due.cancel()

    # -- requests --------------------------------------------------------------------------------------------

    def _next(self) -> None:
        while self.waiting and not self.busy and not self.gone:
            frame = self.waiting.popleft()
            self.busy = True
            node = self.node
            delay_ns = node.dice.randrange(80_000, 900_000) + node.slow_ns
            self.due = node.cluster.world.after(delay_ns, self._serve, frame)

    def _serve(self, frame: bytes) -> None:
        self.due = None
        if self.gone:
            return
        head = read_head(frame)
        answer = _ANSWERS.get(head.key)
        if answer is None:
            self.node.cluster.problems.append(f"broker {self.node.number} was asked api key {head.key}")
            self.end_now()
            return
        answer(self, head, frame)

    def answer(self, frame: bytes | None) -> None:
        """Answers the current request; None: it gets no response."""
        self.busy = False
        if self.gone:
            return
        if frame is not None:
            lies = self.node.lies
            if lies is not None:
                self.node.lies = None
                self.node.cluster.counts["lies"] += 1
                if lies == "id":
                    frame = frame[:4] + (0x7ABBCCDD).to_bytes(4, "big") + frame[8:]
                else:
                    frame = (0x7FFFFFF0).to_bytes(4, "big") + frame[4:]
            self.unsent.append(frame)
            self._send()
        self._next()
        if self.end.ended and not self.busy and not self.waiting and not self.unsent and not self.gone:
            self._forget()
            self.end.close()

    def _send(self) -> None:
        unsent = self.unsent
        while unsent and not self.gone:
            try:
                sent = self.end.send(unsent[0])
            except OSError:
                self.end_now()
                return
            if sent < len(unsent[0]):
                unsent[0] = unsent[0][sent:]
                return
            unsent.popleft()

    def produce(self, head: Head, frame: bytes) -> None:
        """Produce."""
        cluster = self.node.cluster
        asked = messages.read_produce(frame, head)
        known = cluster.of(head.client_id)
        known.produced += 1
        known.produce_bytes += head.size
        body_at = asked.records_at + messages.BATCH_BYTES
        size = asked.records_bytes - messages.BATCH_BYTES
        if frame[body_at : body_at + size] != payload(head.client_id, size):
            cluster.problems.append(f"a Produce of {head.client_id} holds what that client did not write")
        topic = cluster.topics.get(asked.topic)
        error = 3 if topic is None or asked.partition >= len(topic.leaders) else 0
        if not error and topic is not None and topic.leaders[asked.partition] != self.node.number:
            error = 6
        if asked.acks == 0:
            self.answer(None)
            return
        self.answer(
            messages.produce_response(head.version, head.correlation_id, asked.topic, asked.partition, error)
        )

    def fetch(self, head: Head, frame: bytes) -> None:
        """Fetch, including sessions."""
        cluster, dice = self.node.cluster, self.node.dice
        asked = messages.read_fetch(frame, head)
        topic, partition, session_id, error = asked.topic, asked.partition, 0, 0
        if head.version >= 7 and asked.session_epoch >= 0:
            if asked.session_epoch == 0:
                session_id = len(self.sessions) + 1 + 1000 * self.end.link.number
                if topic is not None:
                    self.sessions[session_id] = FetchSession(topic, partition)
            else:
                session_id = asked.session_id
                session = self.sessions.get(session_id)
                if session is None:
                    error, topic = messages.INVALID_FETCH_SESSION_EPOCH, None
                else:
                    topic, partition = session.topic, session.partition
        if self.node.keeps_fetches:
            cluster.counts["kept_fetches"] += 1
            return  # without a response: the connection stays busy for ever
        known = None if topic is None else cluster.topics.get(topic)
        size = 0
        wait_ns = 0
        if known is not None and partition < len(known.leaders):
            if dice.random() < 0.7:
                size = max(1, min(asked.max_bytes - messages.BATCH_BYTES, _batch_bytes(dice)))
            else:
                wait_ns = asked.max_wait_ms * NS_PER_MS
        records = b"" if not size else messages.batch(payload(known.name if known else "", size))
        reply = messages.fetch_response(
            head.version,
            head.correlation_id,
            topic=topic if size else None,
            partition=partition,
            records=records,
            session_id=session_id,
            error_code=error,
        )
        if wait_ns:
            self.due = cluster.world.after(wait_ns, self._fetched, head, reply)
        else:
            self._fetched(head, reply)

    def _fetched(self, head: Head, reply: bytes) -> None:
        if not self.gone:
            counted = len(reply) - 4 - (1 if head.version >= 12 else 0)
            self.node.cluster.of(head.client_id).fetched_bytes += counted
            self.answer(reply)

    def made_by_cluster(
        self, make: Callable[[Cluster, Head, bytes], bytes], head: Head, frame: bytes
    ) -> None:
        """Responses that any node makes in the same way."""
        self.answer(make(self.node.cluster, head, frame))

    def heartbeat(self, head: Head, frame: bytes) -> None:
        """Heartbeat."""
        self.answer(messages.heartbeat_response(head.version, head.correlation_id))

    def api_versions(self, head: Head, frame: bytes) -> None:
        """ApiVersions."""
        self.answer(messages.api_versions_response(head.version, head.correlation_id, _RANGES))


def _batch_bytes(dice: random.Random) -> int:
    return int(200 * 2 ** (dice.random() * 9))  # up to 100 KB


def _by_cluster(
    make: Callable[[Cluster, Head, bytes], bytes],
) -> Callable[[BrokerConnection, Head, bytes], None]:
    def answer(connection: BrokerConnection, head: Head, frame: bytes) -> None:
        connection.made_by_cluster(make, head, frame)

    return answer


_ANSWERS: Final[dict[int, Callable[[BrokerConnection, Head, bytes], None]]] = {
    messages.PRODUCE: BrokerConnection.produce,
    messages.FETCH: BrokerConnection.fetch,
    messages.METADATA: _by_cluster(Cluster.metadata),
    messages.HEARTBEAT: BrokerConnection.heartbeat,
    messages.API_VERSIONS: BrokerConnection.api_versions,
    messages.CREATE_TOPICS: _by_cluster(Cluster.create_topics),
    messages.CREATE_PARTITIONS: _by_cluster(Cluster.create_partitions),
    messages.DELETE_TOPICS: _by_cluster(Cluster.delete_topics),
    messages.DESCRIBE_CONFIGS: _by_cluster(Cluster.describe_configs),
}
