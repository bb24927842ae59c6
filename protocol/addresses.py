"""Rewrites brokers' addresses in responses, so that clients see only the gateway's own.

All other bytes stay as the broker wrote them. A broker that has no address here is left out (or reported as not
available), and its own address is never passed on: hazards E01-E08. Layouts follow the message definitions of
MetadataResponse, FindCoordinatorResponse, DescribeClusterResponse and DescribeQuorumResponse. ProduceResponse is
rewritten in `protocol.produce`, and responses that end with node endpoints in `protocol.node_endpoints`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from protocol.api_keys import Api
from protocol.headers import response_body_offset
from protocol.primitives import (
    framed,
    read_array_length,
    read_int8,
    read_int16,
    read_int32,
    read_string,
    skip,
    skip_string,
    skip_tags,
    write_array_length,
    write_int16,
    write_int32,
    write_nullable_string,
)
from protocol.steps import STEP_ELEMENTS, Steps

Advertise: TypeAlias = Callable[[int, str, int], tuple[str, int] | None]
"""(broker id, upstream host, upstream port) -> the address that clients should use, or None when there is none."""

_PAYLOAD: Final = 4
_COORDINATOR_NOT_AVAILABLE: Final = 15
_BROKER_ENDPOINTS: Final = 1
_FIRST_QUORUM_WITH_LISTENERS: Final = 2


def copy_brokers(
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
    """Metadata response v0-13 with the gateway's addresses; a controller that is no listed broker becomes -1 (E08).

    Args:
        frame: the whole response frame, size included.
        api: the version the response is encoded in.
        advertise: returns the gateway's address of a broker.

    Raises:
        ProtocolError: the response cannot be read.
    """
    start = response_body_offset(frame, flexible_header=api.flexible_header)
    at = skip(frame, start, 4) if api.version >= 3 else start
    out = bytearray(frame[_PAYLOAD:at])
    ids, at = copy_brokers(frame, at, out, api, advertise, has_rack=api.version >= 1)
    rest = at
    if api.version >= 1:
        if api.version >= 2:
            at = skip_string(frame, at, compact=api.flexible)
        out += frame[rest:at]
        controller_id, rest = read_int32(frame, at)
        write_int32(out, controller_id if controller_id in ids else -1)
    out += frame[rest:]
    return framed(out)


def rewrite_find_coordinator(frame: bytes, api: Api, advertise: Advertise) -> Steps[bytes]:
    """FindCoordinator response v0-6 with the gateway's addresses; "none" (-1, "", -1) stays as it is (E05)."""
    at = response_body_offset(frame, flexible_header=api.flexible_header)
    if api.version >= 1:
        at = skip(frame, at, 4)
    if api.version >= 4:
        return (yield from _rewrite_coordinators(frame, at, api, advertise))
    error_at = at
    error_code, at = read_int16(frame, at)
    if api.version >= 1:
        at = skip_string(frame, at, compact=api.flexible)
    node_id, after_id = read_int32(frame, at)
    host, after = read_string(frame, after_id, compact=api.flexible)
    port, after = read_int32(frame, after)
    if error_code != 0 or node_id < 0:
        # In an error response these fields are empty. They are cleared in any case.
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


def _rewrite_coordinators(frame: bytes, at: int, api: Api, advertise: Advertise) -> Steps[bytes]:
    out = bytearray(frame[_PAYLOAD:at])
    count, at = read_array_length(frame, at, compact=True, most=len(frame))
    write_array_length(out, max(count, 0), compact=True)
    for done in range(max(count, 0)):
        if done % STEP_ELEMENTS == STEP_ELEMENTS - 1:
            yield
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
    """DescribeCluster response v0-2 with the gateway's addresses; controllers' endpoints are left out (E04)."""
    start = response_body_offset(frame, flexible_header=api.flexible_header)
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
    ids, at = copy_brokers(frame, at, brokers, api, only_brokers, has_rack=True, fixed_tail=fenced_flag)
    write_int32(out, controller_id if controller_id in ids else -1)
    out += brokers
    out += frame[at:]
    return framed(out)


def rewrite_describe_quorum(frame: bytes, api: Api, _advertise: Advertise) -> bytes:
    """DescribeQuorum response v0-2 without the listeners of controllers, which have no address here (E06)."""
    if api.version < _FIRST_QUORUM_WITH_LISTENERS:
        return frame
    at = response_body_offset(frame, flexible_header=api.flexible_header)
    at = skip_string(frame, skip(frame, at, 2), compact=True)
    topics, at = read_array_length(frame, at, compact=True)
    for _ in range(max(topics, 0)):
        at = skip_string(frame, at, compact=True)
        partitions, at = read_array_length(frame, at, compact=True)
        for _ in range(max(partitions, 0)):
            at = skip_string(frame, skip(frame, at, 4 + 2), compact=True)
            at = skip(frame, at, 4 + 4 + 8)
            for _ in ("voters", "observers"):
                replicas, at = read_array_length(frame, at, compact=True)
                for _ in range(max(replicas, 0)):
                    at = skip_tags(frame, skip(frame, at, 4 + 16 + 8 + 8 + 8))
            at = skip_tags(frame, at)
        at = skip_tags(frame, at)
    out = bytearray(frame[_PAYLOAD:at])
    nodes, at = read_array_length(frame, at, compact=True)
    write_array_length(out, max(nodes, 0), compact=True)
    for _ in range(max(nodes, 0)):
        listeners_at = skip(frame, at, 4)
        out += frame[at:listeners_at]
        listeners, at = read_array_length(frame, listeners_at, compact=True)
        for _ in range(max(listeners, 0)):
            for _ in ("name", "host"):
                at = skip_string(frame, at, compact=True)
            at = skip_tags(frame, skip(frame, at, 2))
        write_array_length(out, 0, compact=True)
        tags_at = at
        at = skip_tags(frame, at)
        out += frame[tags_at:at]
    out += frame[at:]
    return framed(out)


def _nowhere(_broker_id: int, _host: str, _port: int) -> None:
    return None
