"""Hazards A01 to A22: frames that no client should send, and odd ones that clients do send."""

from struct import pack

import pytest

from gateway.observability.events import CloseCause
from gateway.session.announced import PASS_ON_BYTES
from protocol.api_keys import ApiKey
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey, cut_name
from testkit import wire
from testkit.conversation import Conversation
from testkit.core import START_MS, session_settings
from testkit.frames import (
    creatable,
    create_topics,
    heartbeat,
    heartbeat_reply,
    metadata,
    produce,
    produce_reply,
    unknown_api_versions,
    unknown_api_versions_reply,
)
from testkit.golden import golden

MIX = [heartbeat(1), produce(2, size=300), metadata(3, "a"), produce(4, acks=0), heartbeat(5)]
"""Relayed, with a body, collected, without a reply, relayed."""


def after_a_good_request(data: bytes) -> Conversation:
    """A conversation in which these bytes follow a request that was let in and answered."""
    c = Conversation().client_sends(heartbeat(1)).upstream_sees(heartbeat(1))
    return c.upstream_answers(heartbeat_reply(1)).client_sends(data)


# -- sizes ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [-1, *range(10)])
def test_a01_a02_a_negative_size_or_one_too_small_for_a_head_closes(size: int) -> None:
    Conversation().client_sends(pack(">i", size)).closed(CloseCause.INVALID_FRAME_SIZE)
    after_a_good_request(pack(">i", size) + bytes(max(size, 0))).closed(CloseCause.INVALID_FRAME_SIZE)


def test_a03_a_frame_above_its_limit_is_refused_and_the_largest_passes() -> None:
    request = produce(1, size=500)
    c = Conversation(settings=session_settings(max_frame_bytes=len(request) - 4))
    c.client_sends(request).upstream_sees(request)
    small = Conversation(settings=session_settings(max_frame_bytes=len(request) - 5))
    small.client_sends(request).closed(CloseCause.FRAME_TOO_LARGE).upstream_sees()
    c = Conversation(settings=session_settings(max_frame_bytes=1_000))
    c.client_sends(pack(">i", 1_001)).closed(CloseCause.FRAME_TOO_LARGE).upstream_sees()
    head = wire.head(ApiKey.CREATE_TOPICS, 7, flexible=True)
    begun = (pack(">i", 8 * 1024 * 1024 + 1) + head).ljust(PASS_ON_BYTES, b"\0")
    c = Conversation(controller_mutation_rate=1).client_sends(begun)
    c.closed(CloseCause.FRAME_TOO_LARGE).upstream_sees()


def test_a04_an_announced_size_takes_no_memory_before_it_is_there() -> None:
    session = Conversation().session
    announced = pack(">i", 8 * 1024 * 1024) + wire.head(ApiKey.METADATA, 12, flexible=True)
    session.receive_from_client(announced, now_ms=START_MS)
    assert len(session._parser._kept) == len(announced)


# -- other protocols -----------------------------------------------------------------------------------------


# What else they begin with: tests/protocol/test_headers.py.


# -- segments ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 5, 7, 13, 14, 15, 100])
def test_a10_a_session_in_small_segments_is_the_same_session(piece_bytes: int) -> None:
    c = Conversation()
    c.client_sends(*MIX, piece_bytes=piece_bytes).upstream_sees(*MIX)
    replies = [heartbeat_reply(1), produce_reply(2)]
    c.upstream_answers(*replies, piece_bytes=piece_bytes).client_sees(*replies)


@pytest.mark.parametrize("at", range(1, 30))
def test_a11_a_segment_may_end_anywhere_in_a_head(at: int) -> None:
    stream = b"".join(MIX)
    for frame_at in (0, len(MIX[0]), len(MIX[0] + MIX[1]), len(stream) - len(MIX[4])):
        c = Conversation().client_sends(stream[: frame_at + at])
        c.client_sends(stream[frame_at + at :]).upstream_sees(*MIX)


# -- keys and versions ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("key", "version"),
    [
        *((key, 0) for key in (84, 94, 95, 999, 10_000, 32_767, -1, -32_768)),
        (ApiKey.PRODUCE, 14),
        (ApiKey.FETCH, 19),
        (ApiKey.METADATA, 14),
        (ApiKey.CREATE_TOPICS, 8),
        (ApiKey.DESCRIBE_QUORUM, 3),
        (ApiKey.SHARE_FETCH, 3),
        (ApiKey.SHARE_ACKNOWLEDGE, 3),
        (ApiKey.HEARTBEAT, 5),
        (ApiKey.HEARTBEAT, 32_767),
        *((key, -1) for key in (ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.HEARTBEAT, ApiKey.CREATE_TOPICS)),
    ],
)
def test_a12_a13_a14_an_unknown_key_or_version_closes(key: int, version: int) -> None:
    head = wire.framed(wire.head(key, version, flexible=False))
    after_a_good_request(head).closed(CloseCause.UNSUPPORTED_REQUEST)


@pytest.mark.parametrize("version", [6, 99, 32_767])
def test_a15_an_unknown_version_of_api_versions_is_answered_and_the_connection_stays(version: int) -> None:
    c = Conversation().client_sends(unknown_api_versions(7, version), heartbeat(8))
    c.client_sees(unknown_api_versions_reply(7)).upstream_sees(heartbeat(8)).alive()


def test_a15_the_answer_is_the_one_that_kafka_gives() -> None:
    c = Conversation().client_sends(golden("api_versions_unsupported", 99, "request"))
    c.client_sees(golden("api_versions_unsupported", 99))


@pytest.mark.parametrize("version", [99, -1, -2, -32_768])
def test_a15_a16_a_header_without_tags_or_a_negative_version_is_answered_too(version: int) -> None:
    frame = wire.framed(wire.head(ApiKey.API_VERSIONS, version, flexible=False, correlation_id=7))
    Conversation().client_sends(frame).client_sees(unknown_api_versions_reply(7)).alive()


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a17_a_refused_software_name_is_the_brokers_to_answer(version: int) -> None:
    request = golden("api_versions_invalid", version, "request")
    c = Conversation().client_sends(request).upstream_sees(request)
    c.upstream_answers(golden("api_versions_invalid", version)).alive()
    assert c.take_client()[8:10] == pack(">h", 42)


@pytest.mark.parametrize("version", range(6))
def test_a18_the_answer_to_api_versions_has_the_short_header_in_every_version(version: int) -> None:
    c = Conversation()
    c.session.broker_id = 1  # which version 5 names
    c.client_sends(golden("api_versions", version, "request")).upstream_answers(golden("api_versions", version))
    body = wire.decode_response("ApiVersions", version, c.take_client())
    assert {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.API_VERSIONS} <= {api.api_key for api in body.api_keys}


# -- client ids ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("length", [-1, -2, -7_530, -32_768])
def test_a20_any_negative_client_id_length_is_null_as_in_kafka(length: int) -> None:
    body = heartbeat(1)[4 + 8 + 2 + len("tests") :]
    frame = wire.framed(pack(">hhih", ApiKey.HEARTBEAT, 4, 1, length) + body)
    Conversation().client_sends(frame, heartbeat(2)).upstream_sees(frame, heartbeat(2)).alive()


@pytest.mark.parametrize("name", ["Heartbeat", "Metadata", "Produce"])
def test_a20_a_client_id_longer_than_its_frame_closes(name: str) -> None:
    frame = bytearray(wire.request(name, 4, client_id="x"))
    frame[12:14] = pack(">h", len(frame) - 13)
    after_a_good_request(bytes(frame)).closed(CloseCause.MALFORMED_FRAME)


@pytest.mark.parametrize("frame", [heartbeat(1), metadata(1), produce(1), create_topics(1)])
def test_a21_the_longest_client_id_passes(frame: bytes) -> None:
    body = frame[14 + len("tests") :]
    longest = wire.framed(frame[4:12] + pack(">h", 32_767) + b"c" * 32_767 + body)
    Conversation().client_sends(longest, piece_bytes=1_000).upstream_sees(longest).alive()


def charged_client_id(client_id: str | bytes | None) -> str:
    """Whose counter a CreateTopics of this client goes to, with a quota for every client id."""
    c = Conversation()
    c.core.limits.set(QuotaEntity(client_id=DEFAULT), QuotaKey.CONTROLLER_MUTATION_RATE, 10)
    c.core.limits.empty_client_id = "as_named"
    c.exchange("CreateTopics", 5, client_id=client_id, topics=creatable(("a", 1)), timeout_ms=1)
    (row,) = c.core.mutations.snapshot(now_ms=c.clock.now_ms)
    return row.client_id


def test_a19_a22_client_ids_are_counted_as_kafka_reads_them() -> None:
    assert charged_client_id(None) == charged_client_id("") == ""
    assert charged_client_id(b"\xff\xfea\xc0\xaf") == "\ufffd\ufffda\ufffd\ufffd"
    assert charged_client_id(b"\xff" * 32_767) == cut_name("\ufffd" * 32_767)


@pytest.mark.parametrize("client_id", ["\x00", "a\r\nb", "\x1b[31m", '"', "\\", "{}", "%s", "<default>", "a/b", " "])
def test_a23_a_client_id_is_counted_as_it_is(client_id: str) -> None:
    assert charged_client_id(client_id) == client_id
