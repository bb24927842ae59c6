"""The frames that the simulation writes by hand are those of kafka-python."""

from __future__ import annotations

import pytest

from simulation import messages
from testkit import wire

RECORDS = messages.batch(b"x" * 40)


@pytest.mark.parametrize("version", range(3, 13))
def test_produce(version: int) -> None:
    frame = messages.produce_request(version, 7, "me", "a", 2, RECORDS, -1)
    body = wire.decode_request("Produce", version, frame)
    (topic,) = body.topic_data
    (partition,) = topic.partition_data
    assert (body.acks, topic.name, partition.index, bytes(partition.records)) == (-1, "a", 2, RECORDS)
    head = messages.read_head(frame)
    assert (head.key, head.version, head.correlation_id, head.client_id) == (0, version, 7, "me")
    asked = messages.read_produce(frame, head)
    assert (asked.acks, asked.topic, asked.partition) == (-1, "a", 2)
    assert frame[asked.records_at : asked.records_at + asked.records_bytes] == RECORDS


@pytest.mark.parametrize("version", range(3, 13))
def test_produce_answer(version: int) -> None:
    frame = messages.produce_response(version, 7, "a", 2, 6, 300)
    body = wire.decode_response("Produce", version, frame)
    assert body.throttle_time_ms == 300
    assert body.responses[0].partition_responses[0].error_code == 6
    assert messages.read_produce_throttle(version, frame) == 300
    assert messages.read_produce_error(version, frame, "a") == 6


@pytest.mark.parametrize("version", range(4, 13))
def test_fetch(version: int) -> None:
    frame = messages.fetch_request(
        version, 7, "me", topic="a", partition=1, max_wait_ms=500, max_bytes=1_000, session=(5, 3)
    )
    body = wire.decode_request("Fetch", version, frame)
    assert (body.max_wait_ms, body.max_bytes, body.topics[0].topic) == (500, 1_000, "a")
    asked = messages.read_fetch(frame, messages.read_head(frame))
    assert (asked.max_wait_ms, asked.max_bytes, asked.topic, asked.partition) == (500, 1_000, "a", 1)
    if version >= 7:
        assert (body.session_id, body.session_epoch) == (asked.session_id, asked.session_epoch) == (5, 3)


@pytest.mark.parametrize("topic", ["a", None])
@pytest.mark.parametrize("version", range(4, 13))
def test_fetch_answer(version: int, topic: str | None) -> None:
    frame = messages.fetch_response(
        version, 7, topic=topic, partition=1, records=RECORDS, session_id=5, throttle_ms=9
    )
    body = wire.decode_response("Fetch", version, frame)
    got = messages.read_fetch_response(version, frame)
    assert body.throttle_time_ms == got.throttle_ms == 9
    assert [each.topic for each in body.responses] == ([] if topic is None else ["a"])
    assert got.topic == topic
    if topic is not None:
        assert bytes(body.responses[0].partitions[0].records) == RECORDS
        assert frame[got.records_at : got.records_at + got.records_bytes] == RECORDS


@pytest.mark.parametrize("version", range(5))
def test_heartbeat(version: int) -> None:
    body = wire.decode_request("Heartbeat", version, messages.heartbeat_request(version, 7, "me"))
    assert (body.group_id, body.generation_id, body.member_id) == ("group", 1, "member")
    if version >= 1:
        frame = messages.heartbeat_response(version, 7, 80)
        assert wire.decode_response("Heartbeat", version, frame).throttle_time_ms == 80
        assert messages.throttle_in_head(messages.HEARTBEAT, version, frame) == 80


@pytest.mark.parametrize("version", range(4))
def test_api_versions(version: int) -> None:
    wire.decode_request("ApiVersions", version, messages.api_versions_request(version, 7, "me"))
    frame = messages.api_versions_response(version, 7, {0: (3, 12), 1: (4, 12)})
    body = wire.decode_response("ApiVersions", version, frame)
    assert [(each.api_key, each.min_version, each.max_version) for each in body.api_keys] == [(0, 3, 12), (1, 4, 12)]


def test_frames_in_any_pieces() -> None:
    stream = b"".join(messages.heartbeat_request(3, number, "me") for number in range(5))
    for size in (1, 3, 7, 50, 1_000):
        frames = messages.Frames()
        found = [frame for at in range(0, len(stream), size) for frame in frames.add(stream[at : at + size])]
        assert [messages.read_head(frame).correlation_id for frame in found] == list(range(5))
