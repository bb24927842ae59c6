"""Responses that tell clients where brokers are, rewritten so that only the gateway's own addresses are told.

Everything that is not a broker's host or port stays byte for byte as the broker wrote it. A broker that has no
address here is left out (or answered as not available), never passed on: hazards E01-E08. Layouts follow the
message definitions of MetadataResponse, FindCoordinatorResponse, DescribeClusterResponse and, for KIP-951,
ProduceResponse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from protocol.api_keys import Api
from protocol.errors import MalformedBody
from protocol.primitives import (
    framed,
    read_array_length,
    read_int8,
    read_int16,
    read_int32,
    read_string,
    read_uvarint,
    skip,
    skip_string,
    skip_tags,
    write_array_length,
    write_int16,
    write_int32,
    write_nullable_string,
    write_uvarint,
)

Advertise: TypeAlias = Callable[[int, str, int], tuple[str, int] | None]
"""(broker id, upstream host, upstream port) -> the address clients should use, or None when there is none."""

_PAYLOAD: Final = 4
_COORDINATOR_NOT_AVAILABLE: Final = 15
_BROKER_ENDPOINTS: Final = 1
_NODE_ENDPOINTS_TAG: Final = 0


def _response_body(frame: bytes, api: Api) -> int:
    at = skip(frame, _PAYLOAD, 4)
    return skip_tags(frame, at) if api.flexible_header else at


def _copy_brokers(
    frame: bytes,
    at: int,
    out: bytearray,
    api: Api,
    advertise: Advertise,
    *,
    has_rack: bool,
    fixed_tail: int = 0,
) -> tuple[set[int], int]:
    """Rewrite an array of {id, host, port[, rack][, fixed_tail bytes][, tags]}; return the ids that were kept."""
    flexible = api.flexible
    count, at = read_array_length(frame, at, compact=flexible)
    kept: list[bytes] = []
    ids: set[int] = set()
    for _ in range(max(count, 0)):
        broker_id, at = read_int32(frame, at)
        host, at = read_string(frame, at, compact=flexible)
        port, at = read_int32(frame, at)
        rest = at
        if has_rack:
            at = skip_string(frame, at, compact=flexible)
        at = skip(frame, at, fixed_tail)
        if flexible:
            at = skip_tags(frame, at)
        address = advertise(broker_id, host.decode("utf-8", "replace"), port)
        if address is None:
            continue
        ids.add(broker_id)
        element = bytearray()
        write_int32(element, broker_id)
        write_nullable_string(element, address[0].encode(), compact=flexible)
        write_int32(element, address[1])
        kept.append(bytes(element) + frame[rest:at])
    write_array_length(out, len(kept), compact=flexible)
    for broker in kept:
        out += broker
    return ids, at


def rewrite_metadata(frame: bytes, api: Api, advertise: Advertise) -> bytes:
    """Metadata response v0-13 with our addresses; a controller that is not among the brokers becomes -1 (E08).

    Args:
        frame: the whole response frame, size included.
        api: the version the response is encoded in.
        advertise: gives our address of a broker.

    Raises:
        ProtocolError: the response cannot be read.
    """
    start = _response_body(frame, api)
    at = skip(frame, start, 4) if api.version >= 3 else start
    out = bytearray(frame[_PAYLOAD:at])
    ids, at = _copy_brokers(frame, at, out, api, advertise, has_rack=api.version >= 1)
    rest = at
    if api.version >= 1:
        if api.version >= 2:
            at = skip_string(frame, at, compact=api.flexible)
        out += frame[rest:at]
        controller_id, rest = read_int32(frame, at)
        write_int32(out, controller_id if controller_id in ids else -1)
    out += frame[rest:]
    return framed(out)


def rewrite_find_coordinator(frame: bytes, api: Api, advertise: Advertise) -> bytes:
    """FindCoordinator response v0-6 with our addresses; "none" answers (-1, "", -1) stay as they are (E05)."""
    at = _response_body(frame, api)
    if api.version >= 1:
        at = skip(frame, at, 4)
    if api.version >= 4:
        return _rewrite_coordinators(frame, at, api, advertise)
    error_at = at
    error_code, at = read_int16(frame, at)
    if api.version >= 1:
        at = skip_string(frame, at, compact=api.flexible)
    node_id, after_id = read_int32(frame, at)
    host, after = read_string(frame, after_id, compact=api.flexible)
    port, after = read_int32(frame, after)
    if error_code != 0 or node_id < 0:
        # Nothing stands in these fields in an error answer; empty them all the same.
        address, node_id, error = ("", -1), -1, error_code
    else:
        found = advertise(node_id, host.decode("utf-8", "replace"), port)
        error = 0 if found else _COORDINATOR_NOT_AVAILABLE
        node_id = node_id if found else -1
        address = found or ("", -1)
    out = bytearray(frame[_PAYLOAD:error_at])
    write_int16(out, error)
    out += frame[error_at + 2 : at]
    write_int32(out, node_id)
    write_nullable_string(out, address[0].encode(), compact=api.flexible)
    write_int32(out, address[1])
    out += frame[after:]
    return framed(out)


def _rewrite_coordinators(frame: bytes, at: int, api: Api, advertise: Advertise) -> bytes:
    out = bytearray(frame[_PAYLOAD:at])
    count, at = read_array_length(frame, at, compact=True)
    write_array_length(out, max(count, 0), compact=True)
    for _ in range(max(count, 0)):
        key_at = at
        at = skip_string(frame, at, compact=True)
        out += frame[key_at:at]
        node_id, at = read_int32(frame, at)
        host, at = read_string(frame, at, compact=True)
        port, at = read_int32(frame, at)
        error_code, at = read_int16(frame, at)
        rest = at
        at = skip_string(frame, at, compact=True)
        at = skip_tags(frame, at)
        address = ("", -1)
        found = None
        if error_code == 0 and node_id >= 0:
            found = advertise(node_id, host.decode("utf-8", "replace"), port)
            error_code = 0 if found else _COORDINATOR_NOT_AVAILABLE
        if found is None:
            node_id = -1
        else:
            address = found
        write_int32(out, node_id)
        write_nullable_string(out, address[0].encode(), compact=True)
        write_int32(out, address[1])
        write_int16(out, error_code)
        out += frame[rest:at]
    out += frame[at:]
    return framed(out)


def rewrite_describe_cluster(frame: bytes, api: Api, advertise: Advertise) -> bytes:
    """DescribeCluster response v0-2 with our addresses; controllers' endpoints are left out (E04)."""
    start = _response_body(frame, api)
    at = skip(frame, start, 4 + 2)
    at = skip_string(frame, at, compact=True)
    endpoint_type = _BROKER_ENDPOINTS
    if api.version >= 1:
        endpoint_type, at = read_int8(frame, at)
    at = skip_string(frame, at, compact=True)
    out = bytearray(frame[_PAYLOAD:at])
    controller_id, at = read_int32(frame, at)
    brokers = bytearray()
    only_brokers = advertise if endpoint_type == _BROKER_ENDPOINTS else _nowhere
    fenced_flag = 1 if api.version >= 2 else 0
    ids, at = _copy_brokers(frame, at, brokers, api, only_brokers, has_rack=True, fixed_tail=fenced_flag)
    write_int32(out, controller_id if controller_id in ids else -1)
    out += brokers
    out += frame[at:]
    return framed(out)


def _nowhere(_broker_id: int, _host: str, _port: int) -> None:
    return None


_PLAIN_PARTITION_BYTES: Final = 33
"""index, error code, base offset, append time, start offset; no record errors, null message, no tags."""


def plain_produce_throttle_offset(data: bytes, start: int, size: int, version: int) -> int | None:
    """The same as the walk below for the reply that nearly always comes: v9+, one topic, nothing optional.

    The walk costs 13 us, this 1: at 16 KiB a request that is half of what the whole relay costs.

    Args:
        data: received bytes.
        start: where the reply's frame begins in them; it is there whole.
        size: its payload size.
        version: of the reply, at least 9.

    Returns:
        The offset of throttle_time_ms in `data`, None when the reply has to be walked. An offset also says that no
        tag stands behind the field, so no address does.
    """
    end = start + 4 + size
    if size < 26 or data[start + 8] != 0 or data[start + 9] != 2:
        return None
    at = start + (26 if version >= 13 else 10 + data[start + 10])
    if at > end - 7 or (version < 13 and data[start + 10] > 127):
        return None
    partitions = data[at] - 1
    topic_tags_at = at + 1 + _PLAIN_PARTITION_BYTES * partitions
    if partitions > 126 or topic_tags_at != end - 6 or data[topic_tags_at] != 0 or data[end - 1] != 0:
        return None
    for optional_at in range(at + 31, topic_tags_at, _PLAIN_PARTITION_BYTES):
        if data[optional_at] != 1 or data[optional_at + 1] != 0 or data[optional_at + 2] != 0:
            return None
    return topic_tags_at + 1


def produce_throttle_offset(frame: bytes, api: Api) -> int:
    """Offset of throttle_time_ms in a whole Produce response (v1-13): behind the array of topics."""
    flexible = api.flexible
    if flexible:
        plain = plain_produce_throttle_offset(frame, 0, len(frame) - 4, api.version)
        if plain is not None:
            return plain
    at = _response_body(frame, api)
    topics, at = read_array_length(frame, at, compact=flexible, most=len(frame))
    # index, error code, base offset; then log append time (v2+) and log start offset (v5+).
    fixed = 4 + 2 + 8 + (8 if api.version >= 2 else 0) + (8 if api.version >= 5 else 0)
    for _ in range(max(topics, 0)):
        at = skip(frame, at, 16) if api.version >= 13 else skip_string(frame, at, compact=flexible)
        partitions, at = read_array_length(frame, at, compact=flexible, most=len(frame))
        for _ in range(max(partitions, 0)):
            at = skip(frame, at, fixed)
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


def rewrite_produce(frame: bytes, api: Api, advertise: Advertise) -> bytes:
    """Produce response v10-13 with our addresses in its node endpoints (KIP-951); the leader ids stay (E02)."""
    tags_at = skip(frame, produce_throttle_offset(frame, api), 4)
    if tags_at == len(frame) - 1 and frame[tags_at] == 0:
        return frame
    count, at = read_uvarint(frame, tags_at)
    out = bytearray(frame[_PAYLOAD:tags_at])
    write_uvarint(out, count)
    for _ in range(count):
        tag_at = at
        tag, at = read_uvarint(frame, at)
        size, at = read_uvarint(frame, at)
        end = skip(frame, at, size)
        if tag == _NODE_ENDPOINTS_TAG:
            endpoints = bytearray()
            _, after = _copy_brokers(frame, at, endpoints, api, advertise, has_rack=True)
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
