"""Produce: acks is read exactly, from however little of the request has arrived (hazard A28)."""

import uuid
from itertools import product
from struct import unpack_from
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api_keys import ApiKey, describe
from protocol.errors import MalformedBody, ProtocolError, TooManyElements, Truncated
from protocol.headers import HEAD
from protocol.produce import (
    MAX_BYTES_BEFORE_ACKS,
    MAX_HEADER_TAGS,
    names_no_broker,
    only_topic,
    read_acks,
    throttle_time_offset,
)
from testkit import wire
from testkit.cases import every_case
from testkit.golden import golden, goldens

VERSIONS = range(14)
CLIENT_IDS: tuple[bytes | None, ...] = (None, b"", b"c", b"\xff" * 300, b"x" * 32_767)
HEADER_TAGS: tuple[wire.Tags, ...] = ((), ((0, b""),), ((7, b"\0\0\0"), (99, b"y" * 200)))
TXN_IDS: tuple[str | None, ...] = (None, "", "t", "t" * 126, "t" * 127, "t" * 128, "t" * 16_383)
ACKS = (0, 1, -1)


def produce(
    version: int,
    *,
    acks: int = 1,
    txn_id: str | None = None,
    client_id: bytes | None = b"c",
    header_tags: wire.Tags = (),
) -> bytes:
    """A Produce request with one small batch."""
    fields: dict[str, Any] = {"acks": acks, "timeout_ms": 257}
    if version >= 3:
        fields["transactional_id"] = txn_id
    if version < 13:
        fields["topic_data"] = [{"name": "t", "partition_data": [{"index": 0, "records": b"r" * 20}]}]
    return wire.request("Produce", version, client_id=client_id, header_tags=header_tags, **fields)


def acks_of(frame: bytes, version: int, *, at: int = 0, end: int | None = None) -> int | None:
    """What `read_acks` says of the frame that starts at `at`, as a session would ask."""
    client_id_length = HEAD.unpack_from(frame, at)[3]
    end = len(frame) if end is None else end
    return read_acks(frame, at, end, client_id_length, describe(ApiKey.PRODUCE, version))


@every_case("version", VERSIONS)
def test_a28_acks_are_read_exactly_whatever_stands_before_them(version: int) -> None:
    for client_id, tags, txn_id, acks in product(CLIENT_IDS, HEADER_TAGS, TXN_IDS, ACKS):
        if (tags and version < 9) or (txn_id is not None and version < 3):
            continue
        frame = produce(version, acks=acks, txn_id=txn_id, client_id=client_id, header_tags=tags)
        assert acks_of(frame, version) == acks, (client_id, tags, txn_id)


@every_case("version", VERSIONS)
def test_a28_a_request_that_arrives_byte_by_byte_gives_no_answer_until_the_right_one(version: int) -> None:
    for client_id, tags, txn_id, acks in product((None, b"client"), HEADER_TAGS, (None, "t" * 127), (0, 1)):
        if (tags and version < 9) or (txn_id is not None and version < 3):
            continue
        frame = produce(version, acks=acks, txn_id=txn_id, client_id=client_id, header_tags=tags)
        answers = [acks_of(frame[:end], version) for end in range(HEAD.size, len(frame) + 1)]
        first = next(i for i, answer in enumerate(answers) if answer is not None)
        assert set(answers[first:]) == {acks}
        # The answer is there as soon as its second byte is, or else a small request could wait for ever.
        before_acks = len(client_id or b"") + HEAD.size
        if version >= 9:
            before_acks += len(wire.tag_section(tags)) + (1 if txn_id is None else 2 + len(txn_id))
        elif version >= 3:
            before_acks += 2 + len(txn_id or "")
        assert first + HEAD.size == before_acks + 2


@every_case("version", VERSIONS)
def test_a28_acks_are_read_from_their_own_request_alone(version: int) -> None:
    tags = HEADER_TAGS[2] if version >= 9 else ()
    frame = produce(version, acks=0, txn_id="txn" if version >= 3 else None, header_tags=tags)
    for end in range(HEAD.size, len(frame) + 1):
        right = acks_of(frame[:end], version)
        for junk in (b"\0", b"\xff", b"\x80"):
            assert acks_of(frame[:end] + junk * 40, version, end=end) == right
    frames = [produce(version, acks=acks, client_id=b"c" * n) for n, acks in enumerate((0, 1, -1, 0))]
    buffer, at = b"".join(frames), 0
    for frame, acks in zip(frames, (0, 1, -1, 0), strict=True):
        assert acks_of(buffer, version, at=at) == acks
        at += len(frame)
    tags = HEADER_TAGS[1] if version >= 9 else ()
    whole = produce(version, txn_id="txn" if version >= 3 else None, header_tags=tags)
    following = produce(version, acks=0)
    acks_end = next(end for end in range(HEAD.size, len(whole) + 1) if acks_of(whole[:end], version) is not None)
    for end in range(HEAD.size, acks_end):
        cut = wire.framed(whole[4:end])
        with pytest.raises(ProtocolError):
            acks_of(cut + following, version)
    assert acks_of(wire.framed(whole[4:acks_end]) + following, version) == 1


@every_case("version", VERSIONS)
@pytest.mark.parametrize("acks", [2, -2, 32_767, -32_768, 256])
def test_a29_odd_acks_are_read_as_they_are_and_are_not_silent(version: int, acks: int) -> None:
    assert acks_of(produce(version, acks=acks), version) == acks


@pytest.mark.parametrize("length", [-2, -7530, -32_768])
@every_case("version", [2, 8, 9, 13])
def test_a20_negative_client_id_lengths_are_null(version: int, length: int) -> None:
    frame = bytearray(produce(version, acks=0, client_id=None))
    frame[12:14] = length.to_bytes(2, "big", signed=True)
    assert acks_of(bytes(frame), version) == 0


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_buffer_can_be_changed_after_acks_were_read(kind: Any) -> None:
    whole = produce(9, acks=-1, txn_id="txn", header_tags=HEADER_TAGS[1])
    buffer = bytearray(whole)
    assert acks_of(kind(buffer), 9) == -1
    with pytest.raises(Truncated):
        acks_of(kind(wire.framed(whole[4:20])), 9)
    buffer.clear()


@every_case(("label", "version"), [row for row in goldens(kind="request") if row[0].startswith("produce")])
def test_recorded_requests_have_the_acks_that_kafka_answered(label: str, version: int) -> None:
    assert acks_of(golden(label, version, "request"), version) == 1


def test_a24_tags_before_acks_are_bounded_in_number_and_size() -> None:
    most = [(tag, b"") for tag in range(MAX_HEADER_TAGS)]
    assert acks_of(produce(9, acks=0, header_tags=most), 9) == 0
    frame = produce(9, header_tags=[*most, (MAX_HEADER_TAGS, b"")])
    with pytest.raises(TooManyElements):
        acks_of(frame[: HEAD.size + 2], 9)
    frame = produce(9, header_tags=[(0, bytes(1_000_000))])
    assert acks_of(frame[:MAX_BYTES_BEFORE_ACKS], 9) is None
    with pytest.raises(MalformedBody):
        acks_of(frame[: MAX_BYTES_BEFORE_ACKS + 1], 9)
    # What stands before the request does not count.
    assert acks_of(bytes(100_000) + frame[:MAX_BYTES_BEFORE_ACKS], 9, at=100_000) is None
    tags = [(0, bytes(60_000))]
    frame = produce(13, acks=0, client_id=b"c" * 32_767, txn_id="t" * 32_767, header_tags=tags)
    assert unpack_from(">i", frame)[0] > 120_000
    assert all(acks_of(frame[:end], 13) in (0, None) for end in range(HEAD.size, len(frame), 977))
    assert acks_of(frame, 13) == 0


@given(st.sampled_from(VERSIONS), st.binary(min_size=14, max_size=60), st.integers(0, 60))
def test_a39_junk_gives_a_number_nothing_or_a_protocol_error(version: int, junk: bytes, size: int) -> None:
    frame = size.to_bytes(4, "big") + junk[4:]
    try:
        acks = acks_of(frame, version)
    except ProtocolError:
        return
    assert acks is None or -(2**15) <= acks < 2**15


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("partitions", [1, 4, 5, 126, 127, 128, 1_000, 16_381])
def test_a_reply_for_many_partitions_is_known_at_a_glance_to_name_no_broker(version: int, partitions: int) -> None:
    def reply(**last: Any) -> bytes:
        rows: list[dict[str, Any]] = [{"index": at} for at in range(partitions)]
        rows[-1] |= last
        topic = {"topic_id": uuid.UUID(int=1)} if version >= 13 else {"name": "t"}
        return wire.response("Produce", version, responses=[topic | {"partition_responses": rows}])

    plain = reply()
    assert names_no_broker(version, plain, 0, len(plain) - 4)
    assert names_no_broker(version, b"<" + plain + b">", 1, len(plain) - 4)
    assert throttle_time_offset(plain, describe(ApiKey.PRODUCE, version)) == len(plain) - 5
    for other in (reply(error_message="m"), reply(record_errors=[{"batch_index": 1}])):
        assert not names_no_broker(version, other, 0, len(other) - 4)
    # Header tags, two topics; of the last partition record errors, a message, tags.
    for at in (8, 9, -9, -8, -7):
        changed = bytearray(plain)
        changed[at] += 1
        assert not names_no_broker(version, bytes(changed), 0, len(plain) - 4)
    # Without topics the throttle time follows their number at once.
    none = plain[:9] + b"\1" + plain[10:]
    assert throttle_time_offset(none, describe(ApiKey.PRODUCE, version)) == 10


def test_a_number_of_partitions_that_takes_three_bytes_is_left_to_the_walk() -> None:
    rows = [{"index": at} for at in range(16_383)]
    plain = wire.response("Produce", 12, responses=[{"name": "t", "partition_responses": rows}])
    # Also where the third byte is the first one of as many partitions.
    cut = plain.replace(b"\x80\x80\x01", b"\x80\x80")
    for frame in (plain, cut):
        assert not names_no_broker(12, frame, 0, len(frame) - 4)


@every_case("version", VERSIONS)
def test_only_a_single_topic_is_named(version: int) -> None:
    api = describe(ApiKey.PRODUCE, version)
    for number in range(3):
        topics: list[dict[str, Any]] = [
            {"topic_id": uuid.UUID(int=at + 1)} if version >= 13 else {"name": f"topic-{at}"} for at in range(number)
        ]
        frame = wire.request(
            "Produce", version, client_id=b"c", topic_data=[each | {"partition_data": []} for each in topics]
        )
        called = uuid.UUID(int=1).bytes if version >= 13 else b"topic-0"
        assert only_topic(frame + b"behind", HEAD.size + 1, len(frame), api) == (called if number == 1 else None)
        begun = frame[: frame.index(called) + len(called)] if number else frame
        assert only_topic(begun, HEAD.size + 1, len(begun), api) == (called if number == 1 else None)
        if number == 1:
            with pytest.raises(Truncated):
                only_topic(frame, HEAD.size + 1, len(begun) - 1, api)
