"""A cluster that answers request frames from a dictionary of topics, as KRaft does, without a socket or a clock."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable
from functools import cache
from struct import unpack_from
from typing import Any, Final

from testkit import wire

NO_ID: Final = uuid.UUID(int=0)


@cache
def _names() -> dict[int, str]:
    return {wire.api_key_of(name): name for name in wire.api_names()}


class ScriptedCluster:
    """One broker's view of a cluster.

    Attributes:
        topics: name -> partitions.
        ids: name -> topic id.
        hidden: topics whose descriptions the client may not read.
        errors: error codes of topics, in response to a mutation that is then not done.
        done_late: topics of `errors` that are changed nevertheless.
        throttle_time_ms: the throttle time in the broker's responses to mutations.
        default_num_partitions: num.partitions.
        groups: streams groups -> their topologies, as in requests.
        group_errors: error codes of groups, in response to a heartbeat or a description.
        creates: whether clients may create topics.
        received: (API, version, decoded request) in order.
    """

    def __init__(self, topics: dict[str, int] | None = None, *, default_num_partitions: int = 1) -> None:
        self.topics: dict[str, int] = {}
        self.ids: dict[str, uuid.UUID] = {}
        self.hidden: set[str] = set()
        self.errors: dict[str, int] = {}
        self.done_late: set[str] = set()
        self.throttle_time_ms = 0
        self.default_num_partitions = default_num_partitions
        self.groups: dict[str, list[Any]] = {}
        self.group_errors: dict[str, int] = {}
        self.creates = True
        self.received: list[tuple[str, int, Any]] = []
        for name, partitions in (topics or {}).items():
            self.create(name, partitions)

    def create(self, name: str, partitions: int) -> None:
        """Creates a topic."""
        self.topics[name] = partitions
        self.ids[name] = uuid.uuid5(uuid.NAMESPACE_DNS, name)

    def asked(self, name: str) -> list[Any]:
        """The decoded requests of an API."""
        return [body for api, _, body in self.received if api == name]

    def answer(self, frame: bytes) -> bytes:
        """The broker's response to one whole request frame."""
        key, version, correlation_id = unpack_from(">hhi", frame, 4)
        name = _names()[key]
        body = wire.decode_request(name, version, frame)
        self.received.append((name, version, body))
        answer = {
            "Metadata": self._metadata,
            "Produce": self._produce,
            "CreateTopics": self._create_topics,
            "CreatePartitions": self._create_partitions,
            "DeleteTopics": self._delete_topics,
            "StreamsGroupHeartbeat": self._streams_heartbeat,
            "StreamsGroupDescribe": self._streams_describe,
        }.get(name)
        fields = answer(version, body) if answer is not None else wire.populated(name, version)
        return wire.response(name, version, correlation_id=correlation_id, **fields)

    def _produce(self, version: int, body: Any) -> dict[str, Any]:
        names = {topic_id: name for name, topic_id in self.ids.items()}
        responses = []
        for topic in body.topic_data:
            name = names.get(topic.topic_id) if version >= 13 else topic.name
            error_code = 0 if name in self.topics else 100 if version >= 13 else 3
            partitions = [{"index": each.index, "error_code": error_code} for each in topic.partition_data]
            called = {"topic_id": topic.topic_id} if version >= 13 else {"name": topic.name}
            responses.append({**called, "partition_responses": partitions})
        return {"responses": responses, "throttle_time_ms": 0}

    def _streams_heartbeat(self, version: int, body: Any) -> dict[str, Any]:
        """Topics get the largest partition count of their sub-topology's sources; co-partition groups are ignored."""
        fields = wire.populated("StreamsGroupHeartbeat", version)
        error_code = self.group_errors.get(body.group_id, 0)
        if error_code or body.member_epoch < 0:
            return {**fields, "error_code": error_code, "status": None}
        if body.topology is not None:
            self.groups.setdefault(body.group_id, body.topology.subtopologies)
        topology = self.groups[body.group_id]
        sources = {name for each in topology for name in each.source_topics}
        status = []
        if not sources <= self.topics.keys():
            status.append({"status_code": 1, "status_detail": "Source topics are missing."})
        else:
            missing = self._missing_internal_topics(topology)
            if missing:
                detail = "Internal topics are missing: " + ", ".join(missing)
                if self.creates:
                    for name, partitions in missing.items():
                        if name not in self.errors:
                            self.create(name, partitions)
                else:
                    detail += "; Unauthorized to CREATE on topics " + ", ".join(missing) + "."
                status.append({"status_code": 3, "status_detail": detail})
        return {**fields, "error_code": 0, "throttle_time_ms": self.throttle_time_ms, "status": status}

    def _missing_internal_topics(self, topology: list[Any]) -> dict[str, int]:
        missing: dict[str, int] = {}
        for each in topology:
            most = max((self.topics[name] for name in each.source_topics), default=1)
            for topic in [*each.repartition_source_topics, *each.state_changelog_topics]:
                if topic.name not in self.topics:
                    missing[topic.name] = topic.partitions or most
        return missing

    def _streams_describe(self, version: int, body: Any) -> dict[str, Any]:
        (group,) = body.group_ids
        error_code = self.group_errors.get(group, 0 if group in self.groups else 69)
        subtopologies = [
            {
                "subtopology_id": each.subtopology_id,
                "source_topics": each.source_topics,
                "repartition_sink_topics": each.repartition_sink_topics,
                "state_changelog_topics": _infos(each.state_changelog_topics),
                "repartition_source_topics": _infos(each.repartition_source_topics),
            }
            for each in self.groups.get(group, ())
        ]
        described = {
            "error_code": error_code,
            "error_message": None,
            "group_id": group,
            "group_state": "NotReady",
            "group_epoch": 1,
            "assignment_epoch": 1,
            "topology": None if error_code else {"epoch": 0, "subtopologies": subtopologies},
            "members": [],
        }
        return {"throttle_time_ms": 0, "groups": [described]}

    def _metadata(self, version: int, body: Any) -> dict[str, Any]:
        topics = [self._describe(version, topic) for topic in body.topics or ()]
        fields: dict[str, Any] = {
            "brokers": [{"node_id": 1, "host": "broker.inside", "port": 9092, "rack": None}],
            "cluster_id": "scripted",
            "controller_id": 1,
            "topics": topics,
        }
        return fields

    def _describe(self, version: int, topic: Any) -> dict[str, Any]:
        name = topic.name
        if name is None:
            name = next((known for known, topic_id in self.ids.items() if topic_id == topic.topic_id), None)
            if name is None or name in self.hidden:
                return {"error_code": 100, "name": None, "topic_id": topic.topic_id, "partitions": []}
        if name in self.hidden:
            return {"error_code": 29, "name": name, "topic_id": NO_ID, "partitions": []}
        if name not in self.topics:
            return {"error_code": 3, "name": name, "topic_id": NO_ID, "partitions": []}
        partitions = [
            {
                "error_code": 0,
                "partition_index": index,
                "leader_id": 1,
                "leader_epoch": 0,
                "replica_nodes": [1],
                "isr_nodes": [1],
                "offline_replicas": [],
            }
            for index in range(self.topics[name])
        ]
        return {"error_code": 0, "name": name, "topic_id": self.ids[name], "partitions": partitions}

    def _create_topics(self, version: int, body: Any) -> dict[str, Any]:
        topics = [(topic, topic.name) for topic in body.topics]
        results = []
        for topic in _singles(topics):
            error_code = self.errors.get(topic.name, 36 if topic.name in self.topics else 0)
            partitions = len(topic.assignments or ()) or topic.num_partitions
            if partitions == -1:
                partitions = self.default_num_partitions
            if (not error_code or topic.name in self.done_late) and not body.validate_only:
                self.create(topic.name, partitions)
            results.append(self._created(topic.name, error_code, partitions))
        results += [self._created(name, 42, -1) for name in _repeated(topics)]
        return {"throttle_time_ms": self.throttle_time_ms, "topics": results}

    def _created(self, name: str, error_code: int, partitions: int) -> dict[str, Any]:
        return {
            "name": name,
            "topic_id": NO_ID if error_code else self.ids.get(name, NO_ID),
            "error_code": error_code,
            "error_message": "no" if error_code else None,
            "num_partitions": -1 if error_code else partitions,
            "replication_factor": -1 if error_code else 1,
            "configs": [],
        }

    def _create_partitions(self, version: int, body: Any) -> dict[str, Any]:
        topics = [(topic, topic.name) for topic in body.topics]
        results = []
        for topic in _singles(topics):
            current = self.topics.get(topic.name)
            error_code = self.errors.get(topic.name, 0)
            if current is None:
                error_code = error_code or 3
            elif topic.count <= current:
                error_code = error_code or 37
            if (not error_code or topic.name in self.done_late) and not body.validate_only:
                self.topics[topic.name] = topic.count
            results.append({"name": topic.name, "error_code": error_code, "error_message": None})
        results += [{"name": name, "error_code": 42, "error_message": "twice"} for name in _repeated(topics)]
        return {"throttle_time_ms": self.throttle_time_ms, "results": results}

    def _delete_topics(self, version: int, body: Any) -> dict[str, Any]:
        results = []
        wanted = (
            [(topic.name, topic.topic_id) for topic in body.topics]
            if version >= 6
            else [(name, NO_ID) for name in body.topic_names]
        )
        names = {topic_id: name for name, topic_id in self.ids.items()}
        meant = Counter(names.get(topic_id) if name is None else name for name, topic_id in wanted)
        for name, topic_id in wanted:
            found = names.get(topic_id) if name is None else name
            error_code = self.errors.get(found or "", 42 if found and meant[found] > 1 else 0)
            if found not in self.topics:
                error_code = error_code or (100 if name is None else 3)
            if found in self.topics and (not error_code or found in self.done_late):
                del self.topics[found]
            results.append(
                {
                    "name": found,
                    "topic_id": self.ids.get(found or "", topic_id),
                    "error_code": error_code,
                    "error_message": None,
                }
            )
        return {"throttle_time_ms": self.throttle_time_ms, "responses": results}


def _infos(topics: Iterable[Any]) -> list[dict[str, Any]]:
    unset = {"replication_factor": 0, "topic_configs": []}
    return [{"name": each.name, "partitions": each.partitions, **unset} for each in topics]


def _singles(topics: Iterable[tuple[Any, str]]) -> list[Any]:
    counts = Counter(name for _, name in topics)
    return [topic for topic, name in topics if counts[name] == 1]


def _repeated(topics: Iterable[tuple[Any, str]]) -> list[str]:
    """Names that occur more than once. They get one result each, after all others (as on a real broker)."""
    return [name for name, count in Counter(name for _, name in topics).items() if count > 1]
