"""Encodes the frames of a script's steps."""

from __future__ import annotations

from functools import lru_cache
from struct import pack_into
from typing import Any, Final
from uuid import UUID

from kafka.record.memory_records import MemoryRecordsBuilder

from campaigns.adversary.script import Step
from testkit import wire

CORRELATION_ID_AT: Final = 8
_RIGHTS: Final = ("producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate")


@lru_cache(maxsize=64)
def batch(value_bytes: int) -> bytes:
    """A batch of one record."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=value_bytes + 1_000)
    builder.append(timestamp=1_700_000_000_000, key=None, value=bytes(value_bytes))
    builder.close()
    return bytes(builder.buffer())


def encode(
    step: Step,
    *,
    prefix: str,
    client_id: str | None,
    write_topic: tuple[str, UUID],
    read_topic: tuple[str, UUID],
    ids: dict[str, UUID],
    session: tuple[int, int],
) -> bytes:
    """The frame of a step, with correlation id 0.

    Args:
        step: a step that sends.
        prefix: prefix of the topics that this client creates.
        client_id: client id of the request.
        write_topic: name and id of the topic that it produces to.
        read_topic: the topic that it fetches from.
        ids: ids of topics that it knows.
        session: id and epoch of the fetch session.
    """
    api, version = step["api"], step["version"]
    fields: dict[str, Any]
    match api:
        case "Produce":
            fields = _produce(step, write_topic)
        case "Fetch":
            fields = _fetch(step, read_topic, session)
        case "CreateTopics":
            fields = {
                "topics": [_creatable(prefix, *topic) for topic in step["topics"]],
                "timeout_ms": 10_000,
            }
            fields["validate_only"] = step["validates"]
        case "CreatePartitions":
            topics = [
                {"name": topic_name(prefix, name), "count": count, "assignments": None}
                for name, count in step["topics"]
            ]
            fields = {"topics": topics, "timeout_ms": 10_000, "validate_only": False}
        case "DeleteTopics":
            names = [topic_name(prefix, name) for name in step["topics"]]
            known = {name: ids[name] for name in names if step["by_id"] and name in ids}
            fields = {"timeout_ms": 10_000, "topic_names": names}
            if version >= 6:
                by_name = [{"name": name} for name in names if name not in known]
                by_id = [{"name": None, "topic_id": topic_id} for topic_id in known.values()]
                fields = {"timeout_ms": 10_000, "topics": by_name + by_id}
        case "Metadata":
            names = step["topics"]
            everything: list[dict[str, Any]] | None = [] if version == 0 else None
            fields = {
                "topics": [{"name": topic_name(prefix, name)} for name in names] if names else everything
            }
            fields["allow_auto_topic_creation"] = step["creates"]
        case "DescribeConfigs":
            resources = [
                {"resource_type": 2, "resource_name": f"{prefix}-{at}", "configuration_keys": None}
                for at in range(step["count"])
            ]
            if step["broker"]:
                resources.append({"resource_type": 4, "resource_name": "1", "configuration_keys": None})
            fields = {"resources": resources, "include_synonyms": False}
        case "FindCoordinator":
            keys = [f"{prefix}-{at}" for at in range(step["count"])]
            fields = {"key": prefix, "key_type": 0}
            if version >= 4:
                fields = {"key_type": 0, "coordinator_keys": keys}
        case "AlterClientQuotas":
            entity = [{"entity_type": "client-id", "entity_name": client_id}]
            ops = [{"key": key, "value": 1e9, "remove": False} for key in _RIGHTS]
            fields = {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}
        case "DescribeClientQuotas":
            fields = {"components": [], "strict": False}
        case _:
            fields = {}
    return wire.request(api, version, correlation_id=0, client_id=client_id, **fields)


def number(frame: bytes, correlation_id: int) -> bytes:
    """The frame with this correlation id."""
    numbered = bytearray(frame)
    pack_into(">i", numbered, CORRELATION_ID_AT, correlation_id)
    return bytes(numbered)


def topic_name(prefix: str, name: int | str) -> str:
    """A number stands for one of the client's own topics."""
    return f"{prefix}-{name}" if isinstance(name, int) else name


def _creatable(prefix: str, name: int | str, count: int) -> dict[str, Any]:
    return {
        "name": topic_name(prefix, name),
        "num_partitions": count,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }


def _produce(step: Step, topic: tuple[str, UUID]) -> dict[str, Any]:
    name = {"topic_id": topic[1]} if step["version"] >= 13 else {"name": topic[0]}
    data = [{**name, "partition_data": [{"index": 0, "records": batch(step["bytes"])}]}]
    return {"acks": step["acks"], "timeout_ms": 5_000, "topic_data": data}


def _fetch(step: Step, topic: tuple[str, UUID], session: tuple[int, int]) -> dict[str, Any]:
    name = {"topic_id": topic[1]} if step["version"] >= 13 else {"topic": topic[0]}
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": step["max_bytes"]}
    session_id, epoch = session
    return {
        "replica_id": -1,
        "max_wait_ms": step["wait_ms"],
        "min_bytes": step["min_bytes"],
        "max_bytes": step["max_bytes"],
        "session_id": session_id,
        "session_epoch": epoch,
        # An incremental fetch names changed partitions. The offset goes back, so that there are records to read.
        "topics": [{**name, "partitions": [partition]}],
    }
