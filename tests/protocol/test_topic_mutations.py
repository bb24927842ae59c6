"""Topic mutation requests: taken apart exactly, and any part of one is sent on byte for byte as it came."""

import uuid
from struct import pack
from typing import Any

import pytest

from protocol import primitives, topic_mutations
from protocol.api_keys import ApiKey, describe
from protocol.errors import ProtocolError, TooManyElements
from protocol.steps import finish
from protocol.topic_mutations import MAX_NESTED_ELEMENTS, NO_TOPIC_ID, TopicMutations, parse_topic_mutations
from protocol.topic_names import is_valid_topic_name
from testkit import wire
from testkit.cases import every_case
from testkit.golden import api_name, golden, goldens

NAMES = {
    "CreateTopics": (ApiKey.CREATE_TOPICS, range(8)),
    "CreatePartitions": (ApiKey.CREATE_PARTITIONS, range(4)),
    "DeleteTopics": (ApiKey.DELETE_TOPICS, range(7)),
}
EVERY = [(name, version) for name, (_, versions) in NAMES.items() for version in versions]
each_version = every_case(("name", "version"), EVERY)
ID = uuid.UUID(int=77 << 64)
HEADER: dict[str, Any] = {"correlation_id": 2**31 - 1, "client_id": b"\xffodd"}


def parse(name: str, version: int, frame: bytes) -> TopicMutations:
    return finish(parse_topic_mutations(frame, describe(NAMES[name][0], version)))


def topic_rows(name: str, version: int) -> list[Any]:
    """Four topics, as different from each other as the version allows."""
    if name == "CreateTopics":
        assignment = [{"partition_index": i, "broker_ids": [1, 2]} for i in range(3)]
        return [
            {"name": "plain", "num_partitions": 6, "replication_factor": 3},
            {"name": "assigned", "num_partitions": -1, "replication_factor": -1, "assignments": assignment},
            {"name": "gr\u00fc\u00df", "num_partitions": -1, "replication_factor": -1},
            {
                "name": "configured",
                "num_partitions": 1,
                "replication_factor": 1,
                "configs": [{"name": "cleanup.policy", "value": "compact"}, {"name": "x", "value": None}],
            },
        ]
    if name == "CreatePartitions":
        return [
            {"name": "plain", "count": 6, "assignments": None},
            {"name": "assigned", "count": 9, "assignments": [{"broker_ids": [1, 2]}, {"broker_ids": []}]},
            {"name": "gr\u00fc\u00df", "count": 2**31 - 1, "assignments": None},
            {"name": "empty", "count": -5, "assignments": []},
        ]
    if version >= 6:
        return [{"name": "plain"}, {"name": None, "topic_id": ID}, {"name": "gr\u00fc\u00df"}, {"name": ""}]
    return ["plain", "assigned", "gr\u00fc\u00df", ""]


def request(name: str, version: int, rows: list[Any], *, validate_only: bool = False) -> bytes:
    fields: dict[str, Any] = {"timeout_ms": 31_007}
    fields["topic_names" if name == "DeleteTopics" and version < 6 else "topics"] = rows
    if name == "CreatePartitions" or (name == "CreateTopics" and version >= 1):
        fields["validate_only"] = validate_only
    tags = [(5, b"tag")] if version >= 2 else ()
    return wire.request(name, version, header_tags=tags, **HEADER, **fields)


@each_version
def test_every_topic_is_read_in_wire_order_with_its_counts_and_the_flag(name: str, version: int) -> None:
    parsed = parse(name, version, request(name, version, topic_rows(name, version)))
    third = "gr\u00fc\u00df".encode()
    names = {
        "CreateTopics": [b"plain", b"assigned", third, b"configured"],
        "CreatePartitions": [b"plain", b"assigned", third, b"empty"],
        "DeleteTopics": [b"plain", None if version >= 6 else b"assigned", third, b""],
    }[name]
    assert [topic.name for topic in parsed.topics] == names
    assert parsed.timeout_ms == 31_007
    assert parsed.api.version == version
    parsed = parse(name, version, request(name, version, topic_rows(name, version)))
    counts = [(t.num_partitions, t.replication_factor, t.assignment_count) for t in parsed.topics]
    if name == "CreateTopics":
        assert counts == [(6, 3, 0), (-1, -1, 3), (-1, -1, 0), (1, 1, 0)]
    elif name == "CreatePartitions":
        assert counts == [(6, 0, -1), (9, 0, 2), (2**31 - 1, 0, -1), (-5, 0, 0)]
    else:
        assert {(partitions, replicas) for partitions, replicas, _ in counts} == {(0, 0)}
    rows = topic_rows(name, version)
    has_flag = name == "CreatePartitions" or (name == "CreateTopics" and version >= 1)
    assert not parse(name, version, request(name, version, rows)).validate_only
    assert parse(name, version, request(name, version, rows, validate_only=True)).validate_only == has_flag


@every_case(("name", "version"), [each for each in EVERY if each != ("CreateTopics", 0) and "Create" in each[0]])
def test_a_part_that_is_only_to_be_validated_differs_in_the_flag_and_the_correlation_id(
    name: str, version: int
) -> None:
    rows = topic_rows(name, version)
    parsed = parse(name, version, request(name, version, rows))
    expected = request(name, version, rows[1:3], validate_only=True).replace(
        pack(">i", HEADER["correlation_id"]), pack(">i", -77), 1
    )
    assert parsed.encode(parsed.topics[1:3], validation_id=-77) == expected


def test_topics_of_a_deletion_are_identified_by_name_or_by_id() -> None:
    by_name, by_id, *_ = parse("DeleteTopics", 6, request("DeleteTopics", 6, topic_rows("DeleteTopics", 6))).topics
    assert (by_name.name, by_name.topic_id, by_name.identity) == (b"plain", NO_TOPIC_ID, (b"plain", NO_TOPIC_ID))
    assert (by_id.name, by_id.topic_id, by_id.identity) == (None, ID.bytes, (None, ID.bytes))


@each_version
def test_a24_a31_all_topics_together_are_the_request_as_it_came(name: str, version: int) -> None:
    frame = request(name, version, topic_rows(name, version))
    parsed = parse(name, version, frame)
    assert parsed.encode(parsed.topics) == frame
    assert b"".join(topic.raw for topic in parsed.topics) in frame
    frame = wire.framed(request(name, version, topic_rows(name, version))[4:] + b"behind")
    parsed = parse(name, version, frame)
    assert parsed.encode(parsed.topics) == frame
    assert parsed.encode(()).endswith(b"behind")
    compact = describe(NAMES[name][0], version).flexible
    header = wire.head(NAMES[name][0], version, flexible=compact)
    tail = pack(">i", 500) + b"\0" * (2 if compact else 1)
    frame = wire.framed(header + (b"\0" if compact else pack(">i", -1)) + tail)
    assert parse(name, version, frame).topics == ()


@each_version
@pytest.mark.parametrize("kept", [[0], [1, 3], [2], [], [3, 0]])
def test_a24_any_part_of_a_request_is_request_for_that_part(name: str, version: int, kept: list[int]) -> None:
    rows = topic_rows(name, version)
    parsed = parse(name, version, request(name, version, rows, validate_only=True))
    part = parsed.encode([parsed.topics[i] for i in kept])
    assert part == request(name, version, [rows[i] for i in kept], validate_only=True)


@every_case(("name", "version"), [("CreateTopics", 5), ("CreatePartitions", 2), ("DeleteTopics", 6)])
def test_a24_unknown_tags_are_sent_on_byte_for_byte(name: str, version: int) -> None:
    tags = wire.tag_section([(9, b"unknown"), (9, b"twice"), (3, b"")])
    empty = {
        "CreateTopics": b"\x02t"
        + pack(">ih", 1, 1)
        + b"\x02"
        + pack(">i", 0)
        + b"\x01"
        + tags
        + b"\x02\x02k\x02v"
        + tags,
        "CreatePartitions": b"\x02t" + pack(">i", 1) + b"\x02\x01" + tags,
        "DeleteTopics": b"\x02t" + NO_TOPIC_ID,
    }[name]
    element = empty + tags
    flag = b"" if name == "DeleteTopics" else b"\x01"
    header = wire.head(NAMES[name][0], version, flexible=True, header_tags=[(1, b"h")])
    tail = pack(">i", 500) + flag + tags
    frame = wire.framed(header + b"\x03" + element + element.replace(b"\x02t", b"\x02u") + tail)
    parsed = parse(name, version, frame)
    assert [topic.name for topic in parsed.topics] == [b"t", b"u"]
    assert parsed.encode(parsed.topics) == frame
    assert parsed.encode(parsed.topics[:1]) == wire.framed(header + b"\x02" + element + tail)


@each_version
def test_truncated_request_is_a_protocol_error_at_every_byte(name: str, version: int) -> None:
    frame = request(name, version, topic_rows(name, version))
    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            parse(name, version, frame[:end])


@every_case(("label", "version"), [row for row in goldens(kind="request") if api_name(row[0]) in NAMES])
def test_recorded_requests_are_taken_apart_and_put_together(label: str, version: int) -> None:
    name, frame = api_name(label), golden(label, version, "request")
    parsed = parse(name, version, frame)
    assert parsed.encode(parsed.topics) == frame
    assert len(parsed.topics) == (1 if "refused" in label else 2)


def bomb(kind: str, elements: int) -> bytes:
    """A CreateTopics v5 request with this many elements of one kind, as small as they can be, spread over topics."""
    per_topic = 9_000
    head = b"\x02a" + pack(">ih", 1, 1)
    whole, rest = divmod(elements, per_topic)
    topics = b""
    for count in [per_topic] * whole + [rest]:
        topics += (
            head
            + {
                "configs": b"\x01" + wire.uvarint(count + 1) + b"\x01\x01\0" * count + b"\0",
                "assignments": wire.uvarint(count + 1) + b"\0\0\0\0\x01\0" * count + b"\x01\0",
                "tags": b"\x01\x01" + wire.uvarint(count) + b"\x01\0" * count,
            }[kind]
        )
    body = wire.uvarint(whole + 2) + topics + pack(">i", 500) + b"\0\0"
    return wire.framed(wire.head(ApiKey.CREATE_TOPICS, 5, flexible=True) + body)


@pytest.mark.parametrize("kind", ["configs", "assignments", "tags"])
def test_a27_nested_elements_are_counted_over_the_whole_request(kind: str) -> None:
    parse("CreateTopics", 5, bomb(kind, MAX_NESTED_ELEMENTS))
    with pytest.raises(TooManyElements):
        parse("CreateTopics", 5, bomb(kind, MAX_NESTED_ELEMENTS + 1))


@pytest.mark.parametrize("kind", ["configs", "assignments", "tags"])
def test_a27_a_mebibyte_of_the_smallest_elements_is_refused_in_bounded_steps(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = bomb(kind, 1_048_576 // {"configs": 3, "assignments": 6, "tags": 2}[kind])
    assert len(frame) > 1_000_000
    steps = 0
    read_uvarint = primitives.read_uvarint

    def counted(buffer: bytes, at: int) -> tuple[int, int]:
        nonlocal steps
        steps += 1
        return read_uvarint(buffer, at)

    monkeypatch.setattr(primitives, "read_uvarint", counted)
    monkeypatch.setattr(topic_mutations, "read_uvarint", counted)
    with pytest.raises(TooManyElements):
        parse("CreateTopics", 5, frame)
    assert 0 < steps < 4 * MAX_NESTED_ELEMENTS


@each_version
def test_a27_more_topics_than_kafka_takes_are_refused_before_one_is_read(name: str, version: int) -> None:
    compact = describe(NAMES[name][0], version).flexible
    count = primitives.MAX_ELEMENTS + 1
    length = wire.uvarint(count + 1) if compact else pack(">i", count)
    header = wire.head(NAMES[name][0], version, flexible=compact)
    with pytest.raises(TooManyElements):
        parse(name, version, wire.framed(header + length + b"\xff" * count))


@pytest.mark.parametrize(("valid", "names"), [
    (True, [b"a", b"A-Z_0.9", b"...", b"-", b"_", b"x" * 249, b"__consumer_offsets"]),
    (False, [b"", b".", b"..", b"x" * 250, b"a b", b"a/b", b"a\n", b"\n", b"a\0", b"gr\xc3\xbc", b"a,b", b"\xff"]),
])  # fmt: skip
def test_legal_names_are_taken_and_nothing_else_is(valid: bool, names: list[bytes]) -> None:
    assert [is_valid_topic_name(name) for name in names] == [valid] * len(names)
