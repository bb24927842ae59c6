"""Fetch: the two sizes that a quota lowers, in every version and with everything else as it came."""

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api_keys import ApiKey, describe, newest_version
from protocol.error_codes import ErrorCode
from protocol.errors import ProtocolError
from protocol.fetch import asked_bytes, clamped_head, counted_bytes, topics_named, without_records
from testkit import wire
from testkit.cases import every_case

VERSIONS = range(newest_version(ApiKey.FETCH) + 1)
WITH_MAX_BYTES = VERSIONS[3:]
int32s = st.integers(0, 2**31 - 1)


def fetch(version: int, *, min_bytes: int, max_bytes: int = 0x7FFFFFFF, tagged: bool = True) -> bytes:
    """A Fetch request with an odd header and one partition."""
    fields: dict[str, Any] = {"max_wait_ms": 500, "min_bytes": min_bytes}
    if version >= 3:
        fields["max_bytes"] = max_bytes
    if version < 15:
        fields["replica_id"] = -1
    if version < 13:
        fields["topics"] = [{"topic": "t", "partitions": [{"partition": 0, "partition_max_bytes": 1_048_576}]}]
    tags = [(3, b"tag")] if version >= 12 and tagged else ()
    return wire.request("Fetch", version, client_id=b"\xffid", header_tags=tags, **fields)


def clamp(version: int, frame: bytes, most_bytes: int) -> bytes:
    head = clamped_head(frame, 0, len(frame) - 4, 3, describe(ApiKey.FETCH, version), most_bytes)
    return frame if head is None else head + frame[len(head) :]


@given(st.sampled_from(WITH_MAX_BYTES), int32s, int32s, int32s)
def test_both_sizes_are_lowered_to_what_may_pass_and_nothing_else_changes(
    version: int, min_bytes: int, max_bytes: int, most_bytes: int
) -> None:
    most = min(max_bytes, max(most_bytes, 1))
    expected = fetch(version, min_bytes=min(min_bytes, most), max_bytes=most)
    assert clamp(version, fetch(version, min_bytes=min_bytes, max_bytes=max_bytes), most_bytes) == expected


@every_case("version", WITH_MAX_BYTES)
def test_request_that_asks_for_less_is_the_very_same_frame_and_seen_at_a_glance(version: int) -> None:
    frame = fetch(version, min_bytes=1, max_bytes=10_000)
    assert clamp(version, frame, 10_000) is frame
    frame = fetch(version, min_bytes=1, max_bytes=10_000, tagged=False)
    api = describe(ApiKey.FETCH, version)
    assert asked_bytes(frame, 0, 3, api) == 10_000


@given(st.sampled_from(VERSIONS), int32s, int32s, int32s, st.booleans(), st.integers(0, 200))
def test_what_is_within_at_a_glance_is_not_lowered(
    version: int, min_bytes: int, max_bytes: int, most_bytes: int, tagged: bool, cut: int
) -> None:
    frame = fetch(version, min_bytes=min_bytes, max_bytes=max_bytes, tagged=tagged)
    data = b"before" + frame + b"after"
    api = describe(ApiKey.FETCH, version)
    if asked_bytes(data[: len(data) - cut], 6, 3, api) <= most_bytes:
        assert clamp(version, frame, most_bytes) is frame


@every_case("version", WITH_MAX_BYTES)
def test_c13_a_used_up_quota_still_lets_one_batch_pass(version: int) -> None:
    """A broker answers max_bytes = 1 with one whole batch, so that a slow consumer gets on."""
    for most_bytes in (1, 0, -5):
        expected = fetch(version, min_bytes=1, max_bytes=1)
        assert clamp(version, fetch(version, min_bytes=70_000), most_bytes) == expected


@every_case("version", VERSIONS[:3])
def test_version_without_max_bytes_stays_as_it_is(version: int) -> None:
    frame = fetch(version, min_bytes=70_000)
    assert clamp(version, frame, 1) is frame


@every_case("version", WITH_MAX_BYTES)
def test_truncated_request_is_a_protocol_error_up_to_these_fields(version: int) -> None:
    frame = fetch(version, min_bytes=0x01020304, max_bytes=0x05060708)
    fields_end = frame.index(b"\1\2\3\4\5\6\7\x08") + 8
    for end in range(fields_end):
        with pytest.raises(ProtocolError):
            clamp(version, frame[:end], 1)
    assert clamp(version, frame[:fields_end], 1)[:-8] == frame[: fields_end - 8]


@every_case("version", VERSIONS)
def test_reply_counts_its_size_field_and_its_body(version: int) -> None:
    frame = wire.response("Fetch", version, **wire.populated("Fetch", version))
    size_bytes, correlation_id_bytes, tag_bytes = 4, 4, 1 if version >= 12 else 0
    body = len(frame) - size_bytes - correlation_id_bytes - tag_bytes
    assert counted_bytes(len(frame) - 4, describe(ApiKey.FETCH, version)) == size_bytes + body


@every_case("version", VERSIONS)
def test_topics_are_named_also_where_their_partitions_are_null(version: int) -> None:
    by_id = version >= 13
    wanted = [uuid.UUID(int=at).bytes if by_id else b"topic-%d" % at for at in (1, 2)]
    fields: dict[str, Any] = {"max_wait_ms": 500, "min_bytes": 1, "forgotten_topics_data": []}
    topics = [{"topic_id": uuid.UUID(bytes=each)} if by_id else {"topic": each.decode()} for each in wanted]
    frame = wire.request(
        "Fetch", version, client_id="c", topics=[each | {"partitions": []} for each in topics], **fields
    )
    at, null = frame.index(wanted[0]) + len(wanted[0]), b"\0" if version >= 12 else b"\xff" * 4
    for each in (frame, frame[:at] + null + frame[at + len(null) :]):
        assert list(topics_named(each, 0, len(frame) - 4, 1, describe(ApiKey.FETCH, version), most=9)) == wanted


@every_case("version", VERSIONS[7:])
def test_request_that_is_answered_here_is_read_up_to_its_session(version: int) -> None:
    frame = wire.request("Fetch", version, session_id=0x01020304, session_epoch=0x05060708, topics=[])
    end = frame.index(b"\1\2\3\4\5\6\7\x08") + 8
    api = describe(ApiKey.FETCH, version)
    answer = wire.decode_response("Fetch", version, without_records(frame[:end], api))
    assert answer.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    for cut in range(14, end):
        with pytest.raises(ProtocolError):
            without_records(frame[:cut], api)
