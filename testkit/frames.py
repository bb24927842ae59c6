"""Frames that many tests send: one short function for each request or reply, all through `testkit.wire`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import pack
from typing import Any

from testkit import wire


def heartbeat(correlation_id: int, *, group: str = "g") -> bytes:
    """A request that is relayed unread."""
    return wire.request(
        "Heartbeat", 4, correlation_id=correlation_id, group_id=group, generation_id=1, member_id="m"
    )


def heartbeat_reply(correlation_id: int) -> bytes:
    """Its reply."""
    return wire.response("Heartbeat", 4, correlation_id=correlation_id)


def batch(records: int, size: int) -> bytes:
    """A batch whose head gives this number of records."""
    return pack(">qii b 40x i", 0, 49 + size, 0, 2, records) + bytes(size)


def produce(
    correlation_id: int,
    *,
    acks: int = -1,
    version: int = 9,
    size: int = 0,
    transactional_id: str | None = None,
    **header: Any,
) -> bytes:
    """A Produce request with `size` bytes of records."""
    return wire.request(
        "Produce",
        version,
        correlation_id=correlation_id,
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1000,
        topic_data=[{"name": "t", "partition_data": [{"index": 0, "records": b"r" * size}]}],
        **header,
    )


def produce_to(**topics: int) -> bytes:
    """A Produce request with so many bytes of records for each topic."""
    data = [
        {"name": name, "partition_data": [{"index": 0, "records": bytes(size)}]}
        for name, size in topics.items()
    ]
    return wire.request("Produce", 9, correlation_id=1, acks=1, timeout_ms=1, topic_data=data)


def produce_without_name(correlation_id: int, *, version: int = 9) -> bytes:
    """A Produce request to a topic whose name is null, which no library sends."""
    head = wire.head(0, version, flexible=True, correlation_id=correlation_id)
    partition = pack(">i", 0) + b"\4abc" + b"\0"
    return wire.framed(head + b"\0" + pack(">hi", 1, 1_000) + b"\2" + b"\0" + b"\2" + partition + b"\0" * 2)


def produce_reply(correlation_id: int, *, version: int = 9, **fields: Any) -> bytes:
    """Its reply."""
    return wire.response("Produce", version, correlation_id=correlation_id, responses=[], **fields)


def fetch(correlation_id: int = 1, *, client_id: str | bytes | None = "tests") -> bytes:
    """An empty Fetch request. Scripted brokers answer it at once, and long polls begin with it."""
    return wire.request("Fetch", 4, correlation_id=correlation_id, client_id=client_id, topics=[])


def metadata(correlation_id: int, *names: str, version: int = 12, create: bool = False) -> bytes:
    """A request that is collected, and whose reply is rewritten."""
    return wire.request(
        "Metadata",
        version,
        correlation_id=correlation_id,
        topics=[{"name": name} for name in names],
        allow_auto_topic_creation=create,
    )


def unknown_api_versions(correlation_id: int, version: int = 99) -> bytes:
    """A request that the gateway answers itself."""
    header = wire.head(18, version, flexible=version >= 3, correlation_id=correlation_id)
    return wire.framed(header + b"\x04abc\x041.0\x00")


def unknown_api_versions_reply(correlation_id: int) -> bytes:
    """Its answer: v0, error 35, ApiVersions' own range (KIP-511)."""
    return wire.framed(pack(">ihihhh", correlation_id, 35, 1, 18, 0, 5))


def create_topics(
    correlation_id: int = 1,
    *topics: tuple[str, int],
    version: int = 7,
    validate_only: bool = False,
    client_id: str | bytes | None = "tests",
) -> bytes:
    """A CreateTopics request for (name, partitions)."""
    return wire.request(
        "CreateTopics",
        version,
        correlation_id=correlation_id,
        client_id=client_id,
        topics=creatable(*topics),
        timeout_ms=30_000,
        validate_only=validate_only,
    )


def creatable(*topics: tuple[str, int]) -> list[dict[str, Any]]:
    """The topics of a CreateTopics request, from (name, partitions)."""
    return [
        {"name": name, "num_partitions": count, "replication_factor": 1, "assignments": [], "configs": []}
        for name, count in topics
    ]


def subtopology(
    *sources: str,
    name: str = "0",
    changelogs: Iterable[str] = (),
    sinks: Iterable[str] = (),
    repartitions: Mapping[str, int] | None = None,
    copartitioned: Iterable[tuple[Sequence[int], Sequence[int]]] = (),
) -> dict[str, Any]:
    """A part of the topology of a streams application.

    Args:
        sources: topics that it reads.
        name: its id.
        changelogs: changelog topics of its stores.
        sinks: repartition topics that it writes to.
        repartitions: repartition topics that it reads, with their number of partitions; 0: it is derived.
        copartitioned: co-partition groups, by indices among `sources` and among `repartitions`.
    """
    unset = {"replication_factor": 0, "topic_configs": []}
    return {
        "subtopology_id": name,
        "source_topics": list(sources),
        "source_topic_regex": [],
        "state_changelog_topics": [{"name": each, "partitions": 0, **unset} for each in changelogs],
        "repartition_sink_topics": list(sinks),
        "repartition_source_topics": [
            {"name": each, "partitions": count, **unset} for each, count in (repartitions or {}).items()
        ],
        "copartition_groups": [
            {
                "source_topics": list(first),
                "source_topic_regex": [],
                "repartition_source_topics": list(second),
            }
            for first, second in copartitioned
        ],
    }


def streams_heartbeat(
    group: str,
    *subtopologies: dict[str, Any],
    member_epoch: int = 0,
    member: str = "",
    topology_epoch: int = 0,
    version: int = 0,
    correlation_id: int = 1,
    client_id: str = "tests",
) -> bytes:
    """A StreamsGroupHeartbeat request that joins with a topology; or a later one, without a topology.

    Args:
        group: its id.
        subtopologies: parts of the topology; none: no topology is sent.
        member_epoch: 0 for a join.
        member: the member's id; "member-" and the group's if empty.
        topology_epoch: the topology's.
        version: of the request.
        correlation_id: of the request.
        client_id: of the request.
    """
    joins = bool(subtopologies)
    return wire.request(
        "StreamsGroupHeartbeat",
        version,
        correlation_id=correlation_id,
        client_id=client_id,
        group_id=group,
        member_id=member or "member-" + group,
        member_epoch=member_epoch,
        rebalance_timeout_ms=60_000 if joins else -1,
        topology={"epoch": topology_epoch, "subtopologies": list(subtopologies)} if joins else None,
        active_tasks=[] if joins else None,
        standby_tasks=[] if joins else None,
        warmup_tasks=[] if joins else None,
        process_id="process" if joins else None,
        client_tags=[] if joins else None,
    )
