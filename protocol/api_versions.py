"""ApiVersions: responses reduced to the versions that broker and gateway both support; a request's named node.

All bytes after the array (throttle time, supported and finalized features) stay as the broker wrote them. Sources:
ApiVersionsRequest and ApiVersionsResponse, KIP-511, KIP-1242. Produce keeps its minimum version 0, because old
librdkafka uses it to decide whether it may compress (KAFKA-18659).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from protocol.api_keys import Api, ApiKey, describe, newest_version, offered
from protocol.error_codes import ErrorCode
from protocol.errors import MalformedBody
from protocol.headers import body_offset
from protocol.primitives import (
    framed,
    read_array_length,
    read_int16,
    read_int32,
    read_nullable_string,
    read_string,
    skip,
    skip_tags,
    write_array_length,
    write_int16,
    write_int32,
)

MAX_VERSION: Final = newest_version(ApiKey.API_VERSIONS)
_UNSUPPORTED_VERSION: Final = int(ErrorCode.UNSUPPORTED_VERSION).to_bytes(2, "big")
_V0: Final = describe(ApiKey.API_VERSIONS, 0)
_FIRST_VERSION_WITH_NODE: Final = 5
_NO_NODE: Final = -1


def unsupported_version_reply(correlation_id: int) -> bytes:
    """The v0 response to an ApiVersions request of unknown version: error 35 and ApiVersions' own range (KIP-511).

    The header is the short one in every version (hazards A15, A16, A18).
    """
    out = bytearray()
    write_int32(out, correlation_id)
    write_int16(out, ErrorCode.UNSUPPORTED_VERSION)
    write_array_length(out, 1, compact=False)
    write_int16(out, ApiKey.API_VERSIONS)
    write_int16(out, 0)
    write_int16(out, MAX_VERSION)
    return framed(out)


def named_node(frame: bytes, api: Api) -> tuple[bytes, int] | None:
    """The cluster id and the node id that a client expects (KIP-1242).

    Args:
        frame: the whole request frame, size included.
        api: its version.

    Returns:
        None: the request names neither, or only one of them, which a broker refuses with INVALID_REQUEST.

    Raises:
        ProtocolError: the request cannot be read.
    """
    if api.version < _FIRST_VERSION_WITH_NODE:
        return None
    at = body_offset(frame, flexible=True)
    for _ in range(2):  # the client software's name and version
        _, at = read_string(frame, at, compact=True)
    cluster_id, at = read_nullable_string(frame, at, compact=True)
    node_id, at = read_int32(frame, at)
    skip_tags(frame, at)
    if cluster_id is None or node_id == _NO_NODE:
        return None
    return cluster_id, node_id


def misrouted_reply(correlation_id: int) -> bytes:
    """The response to a request that names another node or cluster: REBOOTSTRAP_REQUIRED and no APIs (KIP-1242)."""
    out = bytearray()
    write_int32(out, correlation_id)
    write_int16(out, ErrorCode.REBOOTSTRAP_REQUIRED)
    write_array_length(out, 0, compact=True)
    write_int32(out, 0)  # throttle_time_ms
    out.append(0)  # no tags
    return framed(out)


def error_code_of(frame: bytes) -> int:
    """The error code of an ApiVersions response, at the same place in every version.

    Raises:
        ProtocolError: the response is too short.
    """
    return read_int16(frame, 8)[0]


def offered_by_broker(frame: bytes) -> dict[int, tuple[int, int]]:
    """The APIs of a broker: api key -> the lowest and the highest version.

    Args:
        frame: the whole response frame to a request of version 0, size included.

    Raises:
        ProtocolError: the response cannot be read, or has an error code.
    """
    if (error_code := error_code_of(frame)) != ErrorCode.NONE:
        raise MalformedBody(f"ApiVersions response with error {error_code}")
    count, at = read_array_length(frame, 10, compact=False)
    found = {}
    for _ in range(max(count, 0)):
        key, at = read_int16(frame, at)
        lowest, at = read_int16(frame, at)
        highest, at = read_int16(frame, at)
        found[key] = (lowest, highest)
    return found


def answered_in(frame: bytes | bytearray, api: Api) -> Api:
    """The version of an ApiVersions response: 0 with UNSUPPORTED_VERSION, else the requested one (KIP-511)."""
    return _V0 if frame[8:10] == _UNSUPPORTED_VERSION else api


def intersect(frame: bytes, api: Api, own: frozenset[ApiKey] = frozenset()) -> bytes:
    """An ApiVersions response with the APIs and versions that may pass, in the broker's order.

    Args:
        frame: the whole response frame, size included.
        api: the requested version; a broker that does not know it responds in version 0 (`answered_in`).
        own: APIs that never reach a broker. They are offered in all the gateway's versions, also if the broker lacks
            them.

    Raises:
        ProtocolError: the response cannot be read.
    """
    api = answered_in(frame, api)
    # Every connection of every client begins with this request, and brokers always send the same response.
    size, body = _intersected(frame[8:], api.flexible, own)
    return size + frame[4:8] + body


@lru_cache(maxsize=64)
def _intersected(body: bytes, flexible: bool, own: frozenset[ApiKey]) -> tuple[bytes, bytes]:
    """The bytes before and after the correlation id."""
    error_code, _ = read_int16(body, 0)
    missing = set(own) if error_code == ErrorCode.NONE else set()
    count, at = read_array_length(body, 2, compact=flexible)
    kept = bytearray()
    kept_count = 0
    for _ in range(max(count, 0)):
        key, at = read_int16(body, at)
        lowest, at = read_int16(body, at)
        highest, at = read_int16(body, at)
        tags_at = at
        at = skip_tags(body, at) if flexible else at
        if not offered(key):
            continue
        if key in missing:
            missing.discard(ApiKey(key))
            lowest, highest = 0, newest_version(ApiKey(key))
        highest = min(highest, newest_version(ApiKey(key)))
        if lowest > highest:
            continue
        kept_count += 1
        write_int16(kept, key)
        write_int16(kept, 0 if key == ApiKey.PRODUCE else lowest)
        write_int16(kept, highest)
        kept += body[tags_at:at]
    for api_key in sorted(missing):
        kept_count += 1
        for value in (api_key, 0, newest_version(api_key)):
            write_int16(kept, value)
        kept += b"\x00" if flexible else b""
    out = bytearray(body[:2])
    write_array_length(out, kept_count, compact=flexible)
    out += kept
    out += body[skip(body, at, 0) :]
    return (4 + len(out)).to_bytes(4, "big"), bytes(out)
