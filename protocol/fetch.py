"""The parts of Fetch requests and responses that the consumer byte rate needs (KIP-13).

Layout of requests up to the fields that matter: [replica_id (v0-14)] max_wait_ms min_bytes [max_bytes (v3+)]
[isolation_level (v4+)] [session_id session_epoch (v7+)]; of responses: [throttle_time_ms (v1+)] [error_code
session_id (v7+)] topics. A ShareFetch (KIP-932) has group id, member id and epoch in front of max_wait_ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from librt.strings import read_i32_be

from protocol.api_keys import Api, ApiKey
from protocol.error_codes import ErrorCode
from protocol.errors import MalformedBody, Truncated
from protocol.headers import HEAD_BYTES, body_offset, correlation_id_of, response_body_offset
from protocol.primitives import (
    framed,
    read_int32,
    read_string,
    read_uvarint,
    skip,
    skip_string,
    skip_tags,
)

_INT32: Final = Struct(">i")
_SIZES: Final = Struct(">ii")
_SIZES_BYTES: Final = 8
NOT_SEEN: Final = 2**31
"""Stands for an unknown max_bytes; it is more than any request can have."""
_BEFORE_TOPICS: Final = Struct(">ihi")  # throttle_time_ms, error code, session id
_FIRST_VERSION_WITH_MAX_BYTES: Final = 3
_FIRST_VERSION_WITH_SESSIONS: Final = 7
_FIRST_VERSION_WITH_TOPIC_IDS: Final = 13
_FIRST_VERSION_WITHOUT_REPLICA_ID: Final = 15
_MOST_TAGGED: Final = 2_000
"""The most partitions of one Fetch that are walked one by one, because one near them has tags."""

FLEXIBLE_HEADER_BYTES: Final = 1
"""The empty tags of a response's header, which are not counted; see `counted_bytes`."""


def clamped_head(
    data: bytes, at: int, size: int, client_id_length: int, api: Api, most_bytes: int
) -> bytes | None:
    """A request's bytes up to max_bytes, with max_bytes and min_bytes lowered to the quota's window.

    Kafka does the same before it reads: fetchMaxBytes = min(max_bytes, quota * whole windows), fetchMinBytes =
    min(min_bytes, fetchMaxBytes). A broker still sends at least one whole batch, however large. The rest of the
    request, which may be megabytes of topics, is not read.

    Args:
        data: received bytes.
        at: where the request begins, with its size.
        size: the size in its head.
        client_id_length: the length in its head.
        api: its version; below v3 there is no max_bytes.
        most_bytes: the most record bytes that may pass now.

    Returns:
        None when both fields are low enough.

    Raises:
        Truncated: these fields have not been received.
        MalformedBody: the request ends before them.
    """
    if not has_max_bytes(api):
        return None
    fields_at = skip(data, at, HEAD_BYTES + max(client_id_length, 0))
    if api.flexible:
        fields_at = skip_tags(data, fields_at)
    fields_at = _sizes_at(data, fields_at, api)
    end = fields_at + _SIZES.size
    if end > at + 4 + size:
        raise MalformedBody("a Fetch that ends before max_bytes")
    if end > len(data):
        raise Truncated
    min_bytes, max_bytes = _SIZES.unpack_from(data, fields_at)
    lowered = min(max_bytes, max(most_bytes, 1))
    if lowered == max_bytes and min_bytes <= lowered:
        return None
    return data[at:fields_at] + _SIZES.pack(min(min_bytes, lowered), lowered)


def asked_bytes(data: bytes, at: int, client_id_length: int, api: Api) -> int:
    """The max_bytes of a request if it can be read without a walk; else `NOT_SEEN`.

    Args:
        data: received bytes.
        at: where the request begins, with its size; its client id has been received.
        client_id_length: the length in its head.
        api: its version.
    """
    if not has_max_bytes(api):
        return NOT_SEEN
    at += HEAD_BYTES + (client_id_length if client_id_length > 0 else 0)
    if api.flexible:
        if at >= len(data) or data[at]:
            return NOT_SEEN
        at += 1
    try:
        at = _sizes_at(data, at, api)
    except Truncated:
        return NOT_SEEN
    if at + _SIZES_BYTES > len(data):
        return NOT_SEEN
    min_bytes: int = read_i32_be(data, at)
    max_bytes: int = read_i32_be(data, at + 4)
    return max_bytes if max_bytes >= 0 and min_bytes <= max_bytes else NOT_SEEN


def topics_named(
    data: bytes, at: int, size: int, client_id_length: int, api: Api, *, most: int
) -> Iterator[bytes]:
    """The topics of a Fetch: names, from v13 on ids. An incremental Fetch names few or none.

    Args:
        data: received bytes.
        at: where the request begins, with its size.
        size: the size in its head.
        client_id_length: the length in its head.
        api: its version.
        most: the most topics that are read.

    Raises:
        Truncated: not all topics were received, or the request ends before them. The topics before that point have
            been yielded.
        MalformedBody: a varint has more than five bytes.
    """
    if len(data) > at + 4 + size:
        data = data[: at + 4 + size]
    at = skip(data, at, HEAD_BYTES + max(client_id_length, 0))
    version, flexible = api.version, api.flexible
    if flexible:
        at = skip_tags(data, at)
    at = _sizes_at(data, at, api) + (8 if version >= _FIRST_VERSION_WITH_MAX_BYTES else 4)
    at += (1 if version >= 4 else 0) + (8 if version >= _FIRST_VERSION_WITH_SESSIONS else 0)
    # Index, offset, max bytes; log start offset, leader epoch, epoch of the last fetch.
    each = 4 + 8 + 4 + (8 if version >= 5 else 0) + (4 if version >= 9 else 0) + (4 if version >= 12 else 0)
    tagged = 0
    topics, at = _count(data, at, compact=flexible)
    for _ in range(min(topics, most)):
        if version >= _FIRST_VERSION_WITH_TOPIC_IDS:
            called, at = data[at : at + 16], skip(data, at, 16)
        else:
            called, at = read_string(data, at, compact=flexible)
        yield called
        partitions, at = _count(data, at, compact=flexible)
        if not flexible:
            at = skip(data, at, partitions * each)
            continue
        after = at + partitions * (each + 1)
        if after <= len(data) and not any(data[at + each : after : each + 1]):
            at = after
        else:
            for _ in range(partitions):
                tagged += 1
                if tagged > _MOST_TAGGED:
                    return
                at = skip_tags(data, skip(data, at, each))
        at = skip_tags(data, at)


def _count(data: bytes, at: int, *, compact: bool) -> tuple[int, int]:
    """The number of elements of an array that may not be complete yet; null is 0."""
    count, at = read_uvarint(data, at) if compact else read_int32(data, at)
    return max(count - 1 if compact else count, 0), at


def has_max_bytes(api: Api) -> bool:
    """Whether a request of this version has max_bytes."""
    return api.version >= _FIRST_VERSION_WITH_MAX_BYTES or api.key is ApiKey.SHARE_FETCH


def _sizes_at(data: bytes, body_at: int, api: Api) -> int:
    """The offset of min_bytes in a request; max_bytes follows it."""
    if api.key is ApiKey.SHARE_FETCH:
        member_at = skip_string(data, body_at, compact=True)
        return skip_string(data, member_at, compact=True) + 4 + 4
    return body_at + (4 if api.version >= _FIRST_VERSION_WITHOUT_REPLICA_ID else 8)


def counted_bytes(payload_bytes: int, api: Api) -> int:
    """The bytes that Kafka counts of a Fetch response: size field and body, without correlation id and header tags.

    Args:
        payload_bytes: size of the response frame without its size field.
        api: the response's version.
    """
    return payload_bytes - FLEXIBLE_HEADER_BYTES if api.flexible_header else payload_bytes


def without_records(frame: bytes, api: Api) -> bytes:
    """A response without records to a request that is not forwarded to the broker.

    The broker does not get the request's changes to its incremental session (KIP-227): offsets, added and forgotten
    partitions. So the response makes the client start a new session with its next request, which closes the old one.

    Args:
        frame: the whole request.
        api: its version.

    Raises:
        ProtocolError: the request ends before these fields.
    """
    error_code = 0
    if api.version >= _FIRST_VERSION_WITH_SESSIONS:
        at = body_offset(frame, flexible=api.flexible)
        at += 4 if api.version >= _FIRST_VERSION_WITHOUT_REPLICA_ID else 8
        at += 4 + 4 + 1 + 4  # min_bytes, max_bytes, isolation_level, session_id
        skip(frame, at, 4)
        if _INT32.unpack_from(frame, at)[0] > 0:
            error_code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
    out = bytearray(_INT32.pack(correlation_id_of(frame)))
    if api.flexible_header:
        out.append(0)
    out += _BEFORE_TOPICS.pack(0, error_code, 0)[: _bytes_before_topics(api)]
    return _with_no_topics(out, api)


def without_wish_for_records(frame: bytes, api: Api) -> bytes:
    """A ShareFetch whose acknowledgements the broker accepts, and whose response comes at once and without records.

    A broker sends no records for max_records 0 (SharePartition.acquire). The early-access version v0 lacks that
    field.

    Args:
        frame: the whole request.
        api: its version.

    Raises:
        ProtocolError: the request ends before these fields.
    """
    at = _sizes_at(frame, body_offset(frame, flexible=api.flexible), api)
    count = 4 if api.version >= 1 else 3  # max_wait_ms, min_bytes, max_bytes, max_records
    end = skip(frame, at - 4, 4 * count)
    return frame[: at - 4] + bytes(4 * count) + frame[end:]


def emptied(head: bytes, api: Api) -> bytes:
    """A response without topics, from the head of a broker's response; the fetch session continues.

    The broker has processed the request. With the next one it reports each partition again that has records.

    Args:
        head: the first bytes of a response frame, at least up to its topics.
        api: its version.

    Raises:
        ProtocolError: the response ends before its topics.
    """
    at = response_body_offset(head, flexible_header=api.flexible_header)
    return _with_no_topics(bytearray(head[4 : skip(head, at, _bytes_before_topics(api))]), api)


def _bytes_before_topics(api: Api) -> int:
    return (
        _BEFORE_TOPICS.size if api.version >= _FIRST_VERSION_WITH_SESSIONS else 4 if api.version >= 1 else 0
    )


def _with_no_topics(payload: bytearray, api: Api) -> bytes:
    """The frame of a response with an empty array, and with empty tags if the version has tags."""
    payload += b"\1\0" if api.flexible else b"\0\0\0\0"
    return framed(payload)
