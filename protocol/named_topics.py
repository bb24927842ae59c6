"""Requests that name topics in one array: removes some, and adds their results to the broker's response.

Produce, DeleteRecords, AlterPartitionReassignments, ElectLeaders, AddPartitionsToTxn, AlterConfigs and
IncrementalAlterConfigs. The other topics of a request are copied byte for byte. Of a response only the length of its
array is read, because clients find results by name. Records are skipped by their size. Layouts: Kafka's message
definitions, up to the versions of `api_keys.MAX_VERSION`.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from protocol.api_keys import Api, ApiKey
from protocol.errors import TooManyElements
from protocol.headers import body_offset, response_body_offset
from protocol.primitives import (
    framed,
    read_array_length,
    read_bytes_at,
    read_int8,
    read_int32,
    read_nullable_string,
    read_uvarint,
    skip,
    skip_string,
    skip_tags,
    write_array_length,
    write_int16,
    write_int32,
    write_nullable_string,
)
from protocol.produce import FIRST_VERSION_WITH_TOPIC_IDS
from protocol.steps import STEP_ELEMENTS, Steps

TOPIC_RESOURCE: Final = 2
"""The resource type of topics in requests about settings."""

MOST_PARTITIONS: Final = 20_000
"""The most topics, partitions and settings of one request that are walked (hazard A27)."""

_INT64: Final = Struct(">q")
_UNKNOWN_OFFSET: Final = _INT64.pack(-1)
_CONFIGS: Final = frozenset({ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS})


class Named(NamedTuple):
    """One element of the array: its topic's name or id, None when it is about something else, and its partitions."""

    called: bytes | None
    partitions: list[int]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class NamedTopics:
    """A parsed request: the position of its array, and the elements in order."""

    api: Api
    frame: bytes
    array_at: int
    array_end: int
    elements: tuple[Named, ...]

    def without(self, called: Container[bytes]) -> bytes:
        """The request frame without the topics of these names or ids."""
        kept = [each for each in self.elements if each.called not in called]
        out = bytearray(self.frame[4 : self.array_at])
        write_array_length(out, len(kept), compact=self.api.flexible)
        for each in kept:
            out += self.frame[each.start : each.end]
        out += self.frame[self.array_end :]
        return framed(out)

    def names_any(self, called: Container[bytes]) -> bool:
        """Whether the request has a topic with one of these names or ids."""
        return any(each.called in called for each in self.elements)


def parse_named_topics(
    frame: bytes, api: Api, *, at: int = 0, most: int = MOST_PARTITIONS
) -> Steps[NamedTopics]:
    """Parse the array of a whole request.

    Args:
        frame: contains the request with its size.
        api: its key and version.
        at: the offset of its size.
        most: the most topics and partitions together.

    Raises:
        ProtocolError: it does not follow its layout, or has more elements than `most`.
    """
    size, _ = read_int32(frame, at)
    if at or len(frame) != size + 4:
        frame = frame[at : at + 4 + size]
    array_at = _request_array(frame, api)
    count, at = read_array_length(frame, array_at, compact=api.flexible)
    if count > most:
        raise TooManyElements
    left = most
    elements = []
    walked = 0
    for _ in range(max(count, 0)):
        element, at = yield from _read_element(frame, at, api, left)
        left -= len(element.partitions)
        elements.append(element)
        walked += 1 + len(element.partitions)
        if walked >= STEP_ELEMENTS:
            walked = 0
            yield
    return NamedTopics(api, frame, array_at, at, tuple(elements))


def _request_array(frame: bytes, api: Api) -> int:
    at = body_offset(frame, flexible=api.flexible)
    if api.key is ApiKey.PRODUCE:
        if api.version >= 3:
            at = skip_string(frame, at, compact=api.flexible)
        return skip(frame, at, 6)  # acks, timeout
    if api.key is ApiKey.ADD_PARTITIONS_TO_TXN:
        return skip(frame, skip_string(frame, at, compact=api.flexible), 10)  # producer id and epoch
    if api.key is ApiKey.ALTER_PARTITION_REASSIGNMENTS:
        return skip(frame, at, 5 if api.version >= 1 else 4)  # timeout, allow_replication_factor_change
    if api.key is ApiKey.ELECT_LEADERS and api.version >= 1:
        return skip(frame, at, 1)  # the type of election
    return at


def _read_element(frame: bytes, start: int, api: Api, most: int) -> Steps[tuple[Named, int]]:
    flexible = api.flexible
    called: bytes | None
    if api.key in _CONFIGS:
        kind, at = read_int8(frame, start)
        called, at = read_nullable_string(frame, at, compact=flexible)
        if kind != TOPIC_RESOURCE:
            called = None
    elif api.key is ApiKey.PRODUCE and api.version >= FIRST_VERSION_WITH_TOPIC_IDS:
        called, at = read_bytes_at(frame, start, 16)
    else:
        called, at = read_nullable_string(frame, start, compact=flexible)
    count, at = read_array_length(frame, at, compact=flexible, most=len(frame))
    if count > most:
        raise TooManyElements
    partitions = []
    for done in range(max(count, 0)):
        if done % STEP_ELEMENTS == STEP_ELEMENTS - 1:
            yield
        if api.key in _CONFIGS:
            partitions.append(0)
            at = skip_string(frame, at, compact=flexible)
            at = skip(frame, at, 1) if api.key is ApiKey.INCREMENTAL_ALTER_CONFIGS else at
            at = skip_string(frame, at, compact=flexible)
        else:
            index, at = read_int32(frame, at)
            partitions.append(index)
            if api.key is ApiKey.PRODUCE:
                length, at = read_uvarint(frame, at) if flexible else read_int32(frame, at)
                at = skip(frame, at, max(length - 1 if flexible else length, 0))
            elif api.key is ApiKey.DELETE_RECORDS:
                at = skip(frame, at, 8)
            elif api.key is ApiKey.ALTER_PARTITION_REASSIGNMENTS:
                replicas, at = read_array_length(frame, at, compact=True)
                at = skip(frame, at, 4 * max(replicas, 0))
            else:
                continue  # a plain number, which has no tags
        at = skip_tags(frame, at) if flexible else at
    at = skip_tags(frame, at) if flexible else at
    return Named(called, partitions, start, at), at


def refused_results(
    request: NamedTopics, called: Container[bytes], error_code: int
) -> Steps[tuple[bytes, int]]:
    """Results with this error for the topics of these names or ids in a request, and the number of results."""
    out = bytearray()
    count = 0
    for each in request.elements:
        if each.called is not None and each.called in called:
            yield from _write_result(out, each.called, each.partitions, error_code, request.api)
            count += 1
            if count % STEP_ELEMENTS == 0:
                yield
    return bytes(out), count


def _write_result(
    out: bytearray, called: bytes, partitions: list[int], error_code: int, api: Api
) -> Steps[None]:
    flexible = api.flexible
    if api.key in _CONFIGS:
        write_int16(out, error_code)
        write_nullable_string(out, None, compact=flexible)
        out.append(TOPIC_RESOURCE)
        write_nullable_string(out, called, compact=flexible)
        _end(out, flexible)
        return
    if api.key is ApiKey.PRODUCE and api.version >= FIRST_VERSION_WITH_TOPIC_IDS:
        out += called
    else:
        write_nullable_string(out, called, compact=flexible)
    write_array_length(out, len(partitions), compact=flexible)
    for done, index in enumerate(partitions):
        if done % STEP_ELEMENTS == STEP_ELEMENTS - 1:
            yield
        write_int32(out, index)
        if api.key is ApiKey.DELETE_RECORDS:
            out += _UNKNOWN_OFFSET  # low watermark
        write_int16(out, error_code)
        if api.key is ApiKey.PRODUCE:
            # Base offset, append time (v2+), log start offset (v5+); no record errors, no message (v8+).
            out += _UNKNOWN_OFFSET * (3 if api.version >= 5 else 2 if api.version >= 2 else 1)
            if api.version >= 8:
                write_array_length(out, 0, compact=flexible)
                write_nullable_string(out, None, compact=flexible)
        elif api.key in (ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.ELECT_LEADERS):
            write_nullable_string(out, None, compact=flexible)
        _end(out, flexible)
    _end(out, flexible)


def insert_results(frame: bytes, api: Api, results: bytes, count: int) -> bytes:
    """A whole response frame with these results before its own."""
    array_at = _response_array(frame, api)
    length, at = read_array_length(frame, array_at, compact=api.flexible, most=len(frame))
    out = bytearray(frame[4:array_at])
    write_array_length(out, max(length, 0) + count, compact=api.flexible)
    out += results
    out += frame[at:]
    return framed(out)


def _response_array(frame: bytes, api: Api) -> int:
    at = response_body_offset(frame, flexible_header=api.flexible_header)
    if api.key is ApiKey.PRODUCE:
        return at
    at = skip(frame, at, 4)  # throttle_time_ms
    if api.key is ApiKey.ELECT_LEADERS and api.version >= 1:
        at = skip(frame, at, 2)
    elif api.key is ApiKey.ALTER_PARTITION_REASSIGNMENTS:
        at = skip(frame, at, 3 if api.version >= 1 else 2)
        at = skip_string(frame, at, compact=True)
    return at


def refused_transaction(
    request: NamedTopics, called: Container[bytes], correlation_id: int, error_code: int, other_code: int
) -> Steps[bytes]:
    """The response to AddPartitionsToTxn when these topics are refused; like Kafka, it adds no other topic then."""
    api = request.api
    out = bytearray()
    write_int32(out, correlation_id)
    _end(out, api.flexible_header)
    write_int32(out, 0)
    write_array_length(out, len(request.elements), compact=api.flexible)
    for done, each in enumerate(request.elements):
        if done % STEP_ELEMENTS == STEP_ELEMENTS - 1:
            yield
        code = error_code if each.called in called else other_code
        yield from _write_result(out, each.called or b"", each.partitions, code, api)
    _end(out, api.flexible)
    return framed(out)


def _end(out: bytearray, flexible: bool) -> None:
    if flexible:
        out.append(0)
