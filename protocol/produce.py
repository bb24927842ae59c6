"""The parts of Produce that a relay needs: acks, throttle_time_ms, and brokers' addresses in responses.

Records are never changed. Layout of requests: v0-2 acks; v3-8 transactional id, acks; v9+ the same with a compact id
after a tagged header. A request with acks=0 has no response. If acks were misread, every later response would be
assigned to the wrong request (hazard A28), so the header is walked exactly. Responses have throttle_time_ms after the
array of topics, and from v10 on brokers' addresses after that (KIP-951).
"""

from __future__ import annotations

from contextlib import suppress
from struct import Struct
from typing import Final

from protocol.addresses import Advertise, copy_brokers
from protocol.api_keys import Api, ApiKey, newest_version
from protocol.error_codes import ErrorCode
from protocol.errors import MalformedBody, ProtocolError, Truncated
from protocol.headers import HEAD_BYTES, response_body_offset
from protocol.primitives import (
    Buffer,
    framed,
    read_array_length,
    read_bytes_at,
    read_int32,
    read_nullable_string,
    read_uvarint,
    skip,
    skip_string,
    skip_tags,
    write_uvarint,
)

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")

_NO_ACKS: Final = frozenset[bytes]()
_LEGACY_ACKS: Final = frozenset({b"\xff\xff\xff\xff", b"\xff\xff\0\1"})  # null transactional id, acks
_FLEXIBLE_ACKS: Final = frozenset({b"\0\0\xff\xff", b"\0\0\0\1"})  # no tags, null transactional id, acks
PLAIN_ACKS: Final = tuple(
    _NO_ACKS if version < 3 else _LEGACY_ACKS if version < 9 else _FLEXIBLE_ACKS
    for version in range(newest_version(ApiKey.PRODUCE) + 1)
)
"""By version: the bytes that nearly always follow the client id, and mean acks -1 or 1. All others are walked."""

VERSIONS_WITH_ENDPOINTS: Final = range(10, newest_version(ApiKey.PRODUCE) + 1)
"""Versions whose responses may have brokers' addresses (KIP-951)."""

_NODE_ENDPOINTS_TAG: Final = 0

MAX_BYTES_BEFORE_ACKS: Final = 131_072
"""Two strings of 32,767 bytes and as much again for tags. A client that sends more may try to exhaust memory."""

MAX_HEADER_TAGS: Final = 100
"""The most tags of a header. They are walked again for every piece that arrives, so their number needs a bound."""


def read_acks(frame: Buffer, at: int, end: int, client_id_length: int, api: Api) -> int | None:
    """The acks field of the Produce request whose size field is at `at`.

    Args:
        frame: received bytes; may end before the field, and may contain more than this request.
        at: offset of the frame's size.
        end: the end of the received bytes in `frame`; later bytes are not read.
        client_id_length: the length in the head, negative for null.
        api: the request's version.

    Returns:
        acks (0 means that there will be no response), or None while the field has not been received.

    Raises:
        ProtocolError: the header is malformed, or the frame ends before the field.
    """
    frame_end: int = at + 4 + _INT32.unpack_from(frame, at)[0]
    body_at = at + HEAD_BYTES + (client_id_length if client_id_length > 0 else 0)
    known_end = end if end < frame_end else frame_end
    # The common case without a walk: no header tags, null transactional id. Two bytes either way.
    if body_at + 4 <= known_end and api.version >= 3:
        nothing = 0 if api.version >= 9 else 0xFF
        if frame[body_at] == nothing and frame[body_at + 1] == nothing:
            acks: int = _INT16.unpack_from(frame, body_at + 2)[0]
            return acks
    try:
        acks_at = walk_to_acks(memoryview(frame)[:known_end], body_at, api)
    except Truncated:
        if end >= frame_end:
            raise
        if end - at > MAX_BYTES_BEFORE_ACKS:
            raise MalformedBody("acks hidden behind too many bytes") from None
        return None
    return int(_INT16.unpack_from(frame, acks_at)[0])


def walk_to_acks(received: memoryview, at: int, api: Api) -> int:
    """Offset of acks; raises `Truncated` when not all bytes up to its end were received."""
    if api.version >= 9:
        at = skip_tags(received, at, most=MAX_HEADER_TAGS)
        length, at = read_uvarint(received, at)
        at = skip(received, at, max(length - 1, 0))
    elif api.version >= 3:
        at = skip_string(received, at, compact=False)
    skip(received, at, 2)
    return at


FIRST_VERSION_WITH_TOPIC_IDS: Final = 13
"""From this version on requests name topics by their ids (KIP-516)."""

_NO_TOPICS_YET: Final = 6
"""Bytes of acks and timeout, between the transactional id and the array of topics."""


def only_topic(data: Buffer, body_at: int, end: int, api: Api) -> bytes | None:
    """The name or id of a request's topic if it has exactly one; None when it has more, or none.

    Args:
        data: received bytes.
        body_at: where the body begins, after the client id; in flexible versions with the header's tags.
        end: the end of the request or of its received part.
        api: the request's version.

    Raises:
        Truncated: not enough of it was received.
    """
    received = memoryview(data)[:end]
    at = walk_to_acks(received, body_at, api) + _NO_TOPICS_YET
    # `read_array_length` would refuse an array with more elements than received bytes.
    if api.flexible:
        count, at = read_uvarint(received, at)
        count -= 1
    else:
        count, at = read_int32(received, at)
    if count != 1:
        return None
    if api.version >= FIRST_VERSION_WITH_TOPIC_IDS:
        return read_bytes_at(received, at, 16)[0]
    return read_nullable_string(received, at, compact=api.flexible)[0] or b""


_PLAIN_PARTITION_BYTES: Final = 33
"""index, error code, base offset, append time, start offset; no record errors, null message, no tags."""
_OPTIONAL_AT: Final = 30
"""The offset of the number of record errors in these bytes; the message and the tags follow it."""
_FEW_PARTITIONS: Final = 4

MOST_ERROR_CODES: Final = 16
"""The error codes of a response that `shows_shortage` reads. A broker that lacks replicas reports it for many
partitions."""

_SHORTAGE: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors of leader changes are not included, because they are normal in a healthy cluster."""

_INDEX_BYTES: Final = 4


def _plain_throttle_time_offset(data: bytes, start: int, size: int, version: int) -> int | None:
    """The same as the walk below for the most common response: v9+, one topic, no optional parts.

    The walk takes 13 us, this 1 us. For requests of 16 KiB the walk would be half of the whole relay's cost.

    Args:
        data: received bytes.
        start: where the response's frame begins; it was received completely.
        size: its payload size.
        version: the response's version, at least 9.

    Returns:
        The offset of throttle_time_ms in `data`, None when the response must be walked. If there is an offset, no tag
        follows the field, and so no broker's address.
    """
    end = start + 4 + size
    if size < 26 or data[start + 8] != 0 or data[start + 9] != 2:
        return None
    at = start + (26 if version >= 13 else 10 + data[start + 10])
    if at > end - 7 or (version < 13 and data[start + 10] > 127):
        return None
    partitions = data[at]
    at += 1
    if partitions >= 0x80:
        partitions = partitions & 0x7F | data[at] << 7
        at += 1
    partitions -= 1
    topic_tags_at = at + _PLAIN_PARTITION_BYTES * partitions
    if partitions >= 0x3FFF or topic_tags_at != end - 6 or data[topic_tags_at] != 0 or data[end - 1] != 0:
        return None
    optional_at = at + _OPTIONAL_AT
    if partitions > _FEW_PARTITIONS:
        # The partitions are compared in columns: ten of them take as long as one partition alone otherwise.
        none = bytes(partitions)
        if (
            data[optional_at:topic_tags_at:_PLAIN_PARTITION_BYTES] != b"\x01" * partitions
            or data[optional_at + 1 : topic_tags_at : _PLAIN_PARTITION_BYTES] != none
            or data[optional_at + 2 : topic_tags_at : _PLAIN_PARTITION_BYTES] != none
        ):
            return None
        return topic_tags_at + 1
    for each_at in range(optional_at, topic_tags_at, _PLAIN_PARTITION_BYTES):
        if data[each_at] != 1 or data[each_at + 1] != 0 or data[each_at + 2] != 0:
            return None
    return topic_tags_at + 1


def names_no_broker(version: int, data: bytes, at: int, size: int) -> bool:
    """Whether it is known without a walk that the whole response at `at` of `data` has no broker's address."""
    return _plain_throttle_time_offset(data, at, size, version) is not None


def throttle_time_offset(frame: bytes, api: Api) -> int:
    """Offset of throttle_time_ms in a whole Produce response (v1-13): after the array of topics."""
    flexible = api.flexible
    if flexible:
        plain = _plain_throttle_time_offset(frame, 0, len(frame) - 4, api.version)
        if plain is not None:
            return plain
    return _walk_topics(frame, api, None)


def shows_shortage(frame: bytes, api: Api) -> bool:
    """Whether a Produce response reports that brokers can't store records; reads `MOST_ERROR_CODES` partitions.

    Args:
        frame: the whole response; an unreadable part is ignored.
        api: its version.
    """
    codes: list[int] = []
    # The codes before a fault count.
    with suppress(ProtocolError):
        _walk_topics(frame, api, codes)
    return not _SHORTAGE.isdisjoint(codes)


def _walk_topics(frame: bytes, api: Api, codes: list[int] | None) -> int:
    """The end of the array of topics. With `codes` the walk ends after the codes that `shows_shortage` reads."""
    flexible = api.flexible
    at = response_body_offset(frame, flexible_header=api.flexible_header)
    topics, at = read_array_length(frame, at, compact=flexible, most=len(frame))
    # index, error code, base offset; then log append time (v2+) and log start offset (v5+).
    fixed = 4 + 2 + 8 + (8 if api.version >= 2 else 0) + (8 if api.version >= 5 else 0)
    for _ in range(max(topics, 0)):
        at = skip(frame, at, 16) if api.version >= 13 else skip_string(frame, at, compact=flexible)
        partitions, at = read_array_length(frame, at, compact=flexible, most=len(frame))
        for _ in range(max(partitions, 0)):
            code_at = at + _INDEX_BYTES
            at = skip(frame, at, fixed)
            if codes is not None:
                if len(codes) >= MOST_ERROR_CODES:
                    return at
                codes.append(_INT16.unpack_from(frame, code_at)[0])
            if api.version >= 8:
                errors, at = read_array_length(frame, at, compact=flexible, most=len(frame))
                for _ in range(max(errors, 0)):
                    at = skip_string(frame, skip(frame, at, 4), compact=flexible)
                    at = skip_tags(frame, at) if flexible else at
                at = skip_string(frame, at, compact=flexible)
            if flexible:
                at = skip_tags(frame, at)
        if flexible:
            at = skip_tags(frame, at)
    return at


def rewrite_endpoints(frame: bytes, api: Api, advertise: Advertise) -> bytes:
    """Produce response v10-13 with the gateway's addresses in its node endpoints (KIP-951); leader ids stay (E02)."""
    tags_at = skip(frame, throttle_time_offset(frame, api), 4)
    if tags_at == len(frame) - 1 and frame[tags_at] == 0:
        return frame
    count, at = read_uvarint(frame, tags_at)
    out = bytearray(frame[4:tags_at])
    write_uvarint(out, count)
    for _ in range(count):
        tag_at = at
        tag, at = read_uvarint(frame, at)
        size, at = read_uvarint(frame, at)
        end = skip(frame, at, size)
        if tag == _NODE_ENDPOINTS_TAG:
            endpoints = bytearray()
            _, after = copy_brokers(frame, at, endpoints, api, advertise, has_rack=True)
            if after != end:
                raise MalformedBody("node endpoints do not fill their tag")
            write_uvarint(out, tag)
            write_uvarint(out, len(endpoints))
            out += endpoints
        else:
            out += frame[tag_at:end]
        at = end
    out += frame[at:]
    return framed(out)
