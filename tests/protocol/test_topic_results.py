"""Topic mutation responses: read per topic, and the gateway's own results are written as Kafka writes them."""

import uuid
from struct import pack
from typing import Any

import pytest

from protocol.api_keys import ApiKey, describe
from protocol.error_codes import ErrorCode
from protocol.errors import ProtocolError
from protocol.steps import finish
from protocol.topic_mutations import NO_TOPIC_ID, TopicMutation, parse_topic_mutations
from protocol.topic_results import TopicResults, encode_topic_results, make_result, parse_topic_results
from testkit import wire
from testkit.cases import every_case
from testkit.golden import api_name, golden, goldens

APIS = {
    "CreateTopics": (ApiKey.CREATE_TOPICS, range(8), "topics"),
    "CreatePartitions": (ApiKey.CREATE_PARTITIONS, range(4), "results"),
    "DeleteTopics": (ApiKey.DELETE_TOPICS, range(7), "responses"),
}
EVERY = [(name, version) for name, (_, versions, _) in APIS.items() for version in versions]
each_version = every_case(("name", "version"), EVERY)
ID = uuid.UUID(int=77 << 64)
EXCEEDED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


def parse(name: str, version: int, frame: bytes) -> TopicResults:
    return finish(parse_topic_results(frame, describe(APIS[name][0], version)))


def asked(name: bytes | None, topic_id: bytes = NO_TOPIC_ID) -> TopicMutation:
    return TopicMutation(name, topic_id, 1, 1, 0, b"")


def rows_of(name: str, version: int, frame: bytes) -> list[Any]:
    return list(getattr(wire.decode_response(name, version, frame), APIS[name][2]))


def populated(name: str, version: int, *, nulls: bool = False) -> bytes:
    """A response of two results with every field set."""
    return wire.response(name, version, correlation_id=-9, **wire.populated(name, version, nulls=nulls))


@each_version
@pytest.mark.parametrize("nulls", [False, True])
def test_every_result_is_read_and_all_together_are_the_response_as_it_came(
    name: str, version: int, nulls: bool
) -> None:
    frame = populated(name, version, nulls=nulls)
    parsed = parse(name, version, frame)
    decoded = wire.decode_response(name, version, frame)
    assert parsed.throttle_time_ms == (decoded.throttle_time_ms or 0)
    for result, row in zip(parsed.results, rows_of(name, version, frame), strict=True):
        assert result.name == (None if row.name is None else row.name.encode())
        assert result.error_code == row.error_code
        has_id = (name, version) in {("CreateTopics", 7), ("DeleteTopics", 6)}
        assert result.topic_id == (row.topic_id.bytes if has_id else NO_TOPIC_ID)
        counted = name == "CreateTopics" and version >= 5
        assert result.num_partitions == (row.num_partitions if counted else -1)
    frame = populated(name, version, nulls=nulls)
    parsed = parse(name, version, frame)
    api = describe(APIS[name][0], version)
    assert frame == encode_topic_results(-9, parsed.throttle_time_ms, parsed.results, api, tail=parsed.tail)


@every_case(("label", "version"), [row for row in goldens() if api_name(row[0]) in APIS])
def test_recorded_responses_are_read_and_put_together(label: str, version: int) -> None:
    name, frame = api_name(label), golden(label, version)
    parsed, api = parse(name, version, frame), describe(APIS[name][0], version)
    assert encode_topic_results(1, parsed.throttle_time_ms, parsed.results, api, tail=parsed.tail) == frame
    request = finish(parse_topic_mutations(golden(label, version, "request"), api))
    for topic in request.topics:
        named = [r.name if topic.name is not None else r.topic_id for r in parsed.results]
        assert named.count(topic.topic_id if topic.name is None else topic.name) == 1
    codes = {result.error_code for result in parsed.results}
    assert codes == ({EXCEEDED} if "refused" in label else codes)
    assert ("refused" in label) == (parsed.throttle_time_ms > 30_000)


@every_case(("label", "version"), [
    ("create_topics_refused", 6), ("create_topics_refused", 7), ("create_partitions_refused", 3),
    ("delete_topics_refused", 5),
])  # fmt: skip
def test_our_refusal_is_byte_for_byte_what_kafka_answers(label: str, version: int) -> None:
    api = describe(APIS[api_name(label)][0], version)
    from_kafka = golden(label, version)
    time_ms = parse(api_name(label), version, from_kafka).throttle_time_ms
    topics = finish(parse_topic_mutations(golden(label, version, "request"), api)).topics
    results = [make_result(topic, EXCEEDED, api) for topic in topics]
    assert encode_topic_results(1, time_ms, results, api) == from_kafka


@each_version
def test_our_result_is_read_by_clients_and_by_us_in_every_version(name: str, version: int) -> None:
    api = describe(APIS[name][0], version)
    topics = [asked("gr\u00fc\u00df".encode()), asked(b"")]
    if (name, version) == ("DeleteTopics", 6):
        topics.append(asked(None, ID.bytes))
    results = [make_result(topic, EXCEEDED, api) for topic in topics]
    frame = encode_topic_results(-7, 1234, results, api)
    assert wire.correlation_id_of(frame) == -7
    decoded = wire.decode_response(name, version, frame)
    if "throttle_time_ms" in wire.populated(name, version):
        assert decoded.throttle_time_ms == 1234
    rows = rows_of(name, version, frame)
    assert [row.name for row in rows] == ["gr\u00fc\u00df", "", None][: len(topics)]
    assert {row.error_code for row in rows} == {EXCEEDED}
    assert not any(row.error_message for row in rows)
    if len(topics) == 3:
        assert [row.topic_id for row in rows] == [None, None, ID]
    if name == "CreateTopics" and version >= 5:
        assert {(row.num_partitions, row.replication_factor, len(row.configs)) for row in rows} == {(-1, -1, 0)}
    api = describe(APIS[name][0], version)
    made = [make_result(asked(b"a"), EXCEEDED, api), make_result(asked(b"b"), ErrorCode.NONE, api)]
    assert parse(name, version, encode_topic_results(1, 0, made, api)).results == tuple(made)


@each_version
def test_refusals_stand_between_the_brokers_results_in_the_order_asked_for(name: str, version: int) -> None:
    api = describe(APIS[name][0], version)
    from_broker = parse(name, version, populated(name, version))
    first, second = from_broker.results
    ours = make_result(asked(b"refused"), EXCEEDED, api)
    frame = encode_topic_results(5, 99, [first, ours, second], api, tail=from_broker.tail)
    rows = rows_of(name, version, frame)
    assert [row.error_code for row in rows] == [first.error_code, EXCEEDED, second.error_code]
    alone = rows_of(name, version, populated(name, version))
    assert [rows[0].to_dict(), rows[2].to_dict()] == [row.to_dict() for row in alone]


@every_case(("name", "version"), [("CreateTopics", 5), ("CreatePartitions", 2), ("DeleteTopics", 6)])
def test_a24_unknown_tags_of_the_broker_stay_byte_for_byte(name: str, version: int) -> None:
    tags = wire.tag_section([(4, b"unknown"), (2, b"")])
    element = {
        "CreateTopics": b"\x02t" + pack(">h", 0) + b"\0" + pack(">ih", 1, 1) + b"\x02\x02k\0\0\x01\0" + tags,
        "CreatePartitions": b"\x02t" + pack(">h", 0) + b"\0",
        "DeleteTopics": b"\x02t" + ID.bytes + pack(">h", 0) + b"\0",
    }[name]
    body = pack(">i", 0) + b"\0" + pack(">i", 3) + b"\x02" + element + tags + tags + b"behind"
    api = describe(APIS[name][0], version)
    parsed = parse(name, version, wire.framed(body))
    assert parsed.tail == tags + b"behind"
    assert encode_topic_results(0, 3, parsed.results, api, tail=parsed.tail) == wire.framed(body)


@each_version
def test_truncated_response_is_a_protocol_error_at_every_byte_of_its_results(name: str, version: int) -> None:
    frame = populated(name, version)
    tail = len(parse(name, version, frame).tail)
    for end in range(len(frame) - tail):
        with pytest.raises(ProtocolError):
            parse(name, version, frame[:end])
