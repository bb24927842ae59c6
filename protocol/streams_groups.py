"""Streams groups (KIP-1071): the topology in a heartbeat and in a description, and a response's status of topics.

Layouts of StreamsGroupHeartbeat v0 and v1 and of StreamsGroupDescribe v0. All are flexible. Messages are read up to
the end of the topology; the rest does not matter here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from protocol.api_keys import Api, ApiKey, describe
from protocol.error_codes import ErrorCode
from protocol.errors import TooManyElements
from protocol.headers import body_offset
from protocol.primitives import (
    framed,
    read_array_length,
    read_int8,
    read_int16,
    read_int32,
    read_nullable_string,
    read_string,
    skip,
    skip_string,
    skip_tags,
    write_int16,
    write_int32,
    write_nullable_string,
)
from protocol.steps import STEP_ELEMENTS, Steps

DESCRIBE: Final = describe(ApiKey.STREAMS_GROUP_DESCRIBE, 0)

MOST_ELEMENTS: Final = 20_000
"""The most topics, settings and indexes of a topology together. The controller creates at most 10,000 partitions."""

_LAG_IS_A_LONG: Final = 1
"""From this version on the acceptable lag is an int64, and a flag requests the topology's description (KIP-1331)."""

MISSING_INTERNAL_TOPICS: Final = 3
_NOT_READY: Final = frozenset({1, 2, MISSING_INTERNAL_TOPICS})
"""Statuses: source topics are missing, numbers of partitions do not match, internal topics are missing."""

_UNAUTHORIZED: Final = b"Unauthorized to CREATE on topics "
"""A part of a status text. The broker then creates none of the topics. No topic has a name with spaces."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Subtopology:
    """A part of a topology.

    Attributes:
        name: its id.
        sources: topics that it reads and that are not internal.
        sinks: repartition topics that it writes to.
        repartitions: repartition topics that it reads, with their number of partitions; 0: it is derived.
        changelogs: topics of its stores.
        copartitioned: groups of its sources that must have the same number of partitions; None: not known.
    """

    name: bytes
    sources: frozenset[bytes]
    sinks: frozenset[bytes]
    repartitions: frozenset[tuple[bytes, int]]
    changelogs: frozenset[bytes]
    copartitioned: tuple[frozenset[bytes], ...] | None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A StreamsGroupHeartbeat request: the group, the member's epoch, and the topology, which only a join has."""

    group: bytes
    member_epoch: int
    topology: tuple[Subtopology, ...] | None


@dataclass(frozen=True, slots=True)
class Description:
    """The StreamsGroupDescribe response for one group, with the coordinator's topology."""

    error_code: int
    topology: tuple[Subtopology, ...]


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The response to a heartbeat.

    Attributes:
        error_code: the error of the whole response.
        ready: the group has all topics of its topology.
        creates: the broker may have asked the controller to create internal topics.
    """

    error_code: int
    ready: bool
    creates: bool


class _Walk:
    """Reads a topology in steps, and counts its elements."""

    def __init__(self, frame: bytes, at: int) -> None:
        self.frame = frame
        self.at = at
        self._read = 0

    def string(self) -> bytes:
        value, self.at = read_string(self.frame, self.at, compact=True)
        return value

    def int16(self) -> int:
        value, self.at = read_int16(self.frame, self.at)
        return value

    def int32(self) -> int:
        value, self.at = read_int32(self.frame, self.at)
        return value

    def tags(self) -> None:
        self.at = skip_tags(self.frame, self.at)

    def is_null(self) -> bool:
        """Whether a struct that may be null is."""
        mark, self.at = read_int8(self.frame, self.at)
        return mark < 0

    def array(self, element: Callable[[], T]) -> Steps[list[T]]:
        """The elements; a null array has none."""
        count = yield from self.length()
        found = []
        for _ in range(count):
            found.append(element())
            yield from self.count()
        return found

    def length(self) -> Steps[int]:
        """The number of elements that follow."""
        length, self.at = read_array_length(self.frame, self.at, compact=True)
        yield from self.count()
        return max(length, 0)

    def count(self) -> Steps[None]:
        """Count an element, and pause from time to time."""
        self._read += 1
        if self._read > MOST_ELEMENTS:
            raise TooManyElements
        if self._read % STEP_ELEMENTS == 0:
            yield

    def setting(self) -> None:
        self.string()
        self.string()
        self.tags()

    def topics(self) -> Steps[list[tuple[bytes, int]]]:
        """Topics with their numbers of partitions."""
        found = []
        for _ in range((yield from self.length())):
            name, partitions = self.string(), self.int32()
            self.int16()  # replication factor
            yield from self.array(self.setting)
            self.tags()
            found.append((name, partitions))
            yield from self.count()
        return found

    def copartition_groups(
        self, sources: list[bytes], repartitions: list[tuple[bytes, int]]
    ) -> Steps[tuple[frozenset[bytes], ...]]:
        """Groups of topics. Invalid indexes are left out, because the broker refuses them."""
        groups = []
        for _ in range((yield from self.length())):
            of_sources = yield from self.array(self.int16)
            yield from self.array(self.int16)  # indexes of regular expressions
            of_repartitions = yield from self.array(self.int16)
            self.tags()
            group = {sources[each] for each in of_sources if 0 <= each < len(sources)}
            group |= {repartitions[each][0] for each in of_repartitions if 0 <= each < len(repartitions)}
            groups.append(frozenset(group))
            yield from self.count()
        return tuple(groups)


def parse_heartbeat(frame: bytes, api: Api) -> Steps[Heartbeat]:
    """Read a whole request frame (size included).

    Raises:
        ProtocolError: it does not follow its layout, or its topology is too large.
    """
    walk = _Walk(frame, body_offset(frame, flexible=api.flexible))
    group = walk.string()
    walk.string()  # member id
    member_epoch = walk.int32()
    walk.int32()  # endpoint epoch
    for _ in range(2):  # instance id, rack id
        walk.at = skip_string(frame, walk.at, compact=True)
    walk.int32()  # rebalance timeout
    if walk.is_null():
        return Heartbeat(group, member_epoch, None)
    walk.int32()  # epoch
    found = []
    for _ in range((yield from walk.length())):
        name = walk.string()
        sources = yield from walk.array(walk.string)
        yield from walk.array(walk.string)  # regular expressions
        changelogs = yield from walk.topics()
        sinks = yield from walk.array(walk.string)
        repartitions = yield from walk.topics()
        copartitioned = yield from walk.copartition_groups(sources, repartitions)
        walk.tags()
        found.append(_subtopology(name, sources, sinks, repartitions, changelogs, copartitioned))
        yield from walk.count()
    return Heartbeat(group, member_epoch, tuple(found))


def describe_request(group: bytes, *, correlation_id: int, client_id: str) -> bytes:
    """A StreamsGroupDescribe v0 request for one group."""
    out = bytearray()
    write_int16(out, DESCRIBE.key)
    write_int16(out, DESCRIBE.version)
    write_int32(out, correlation_id)
    # Bytes that are not UTF-8 became three bytes each when the client id was read (hazard A22). It must still fit.
    write_nullable_string(out, client_id.encode()[:32_767].decode("utf-8", "ignore").encode(), compact=False)
    out += b"\0\2"  # no tags, one group
    write_nullable_string(out, group, compact=True)
    out += b"\0\0"  # no authorized operations, no tags
    return framed(out)


def parse_description(frame: bytes) -> Steps[Description]:
    """Read a StreamsGroupDescribe v0 response for one group.

    Raises:
        ProtocolError: it does not follow its layout, or its topology is too large.
    """
    walk = _Walk(frame, skip(frame, skip_tags(frame, 8), 4))
    if not (yield from walk.length()):
        return Description(ErrorCode.GROUP_ID_NOT_FOUND, ())
    error_code = walk.int16()
    for _ in range(3):  # error message, group id, state
        walk.at = skip_string(frame, walk.at, compact=True)
    for _ in range(2):  # epochs of the group and of the assignment
        walk.int32()
    if walk.is_null():
        return Description(error_code, ())
    walk.int32()  # epoch
    found = []
    for _ in range((yield from walk.length())):
        name = walk.string()
        sources = yield from walk.array(walk.string)
        sinks = yield from walk.array(walk.string)
        changelogs = yield from walk.topics()
        repartitions = yield from walk.topics()
        walk.tags()
        found.append(_subtopology(name, sources, sinks, repartitions, changelogs, None))
        yield from walk.count()
    return Description(error_code, tuple(found))


def _subtopology(
    name: bytes,
    sources: list[bytes],
    sinks: list[bytes],
    repartitions: list[tuple[bytes, int]],
    changelogs: list[tuple[bytes, int]],
    copartitioned: tuple[frozenset[bytes], ...] | None,
) -> Subtopology:
    internal = {topic for topic, _ in repartitions}
    return Subtopology(
        name,
        frozenset(sources) - internal,
        frozenset(sinks),
        frozenset(repartitions),
        frozenset(topic for topic, _ in changelogs),
        copartitioned,
    )


def parse_heartbeat_answer(frame: bytes, api: Api) -> Steps[HeartbeatAnswer]:
    """Read the first part of a response frame.

    Raises:
        ProtocolError: it does not follow its layout.
    """
    walk = _Walk(frame, skip(frame, skip_tags(frame, 8), 4))
    error_code = walk.int16()
    for _ in range(2):  # error message, member id
        walk.at = skip_string(frame, walk.at, compact=True)
    # member epoch, heartbeat interval, offset interval, acceptable lag
    walk.at = skip(frame, walk.at, 12 + (8 if api.version >= _LAG_IS_A_LONG else 4))
    codes, creates = set(), False
    for _ in range((yield from walk.length())):
        code, walk.at = read_int8(frame, walk.at)
        detail, walk.at = read_nullable_string(frame, walk.at, compact=True)
        walk.tags()
        codes.add(code)
        if code == MISSING_INTERNAL_TOPICS and _UNAUTHORIZED not in (detail or b""):
            creates = True
        yield from walk.count()
    ok = error_code == ErrorCode.NONE
    return HeartbeatAnswer(error_code, ok and codes.isdisjoint(_NOT_READY), ok and creates)


def refused_heartbeat(version: int, correlation_id: int, error_code: int, message: bytes) -> bytes:
    """The response frame that refuses a heartbeat: no member, no tasks."""
    out = bytearray()
    write_int32(out, correlation_id)
    out.append(0)  # no header tags
    write_int32(out, 0)  # throttle_time_ms
    write_int16(out, error_code)
    write_nullable_string(out, message, compact=True)
    write_nullable_string(out, b"", compact=True)  # member id
    for _ in range(2):  # member epoch, heartbeat interval
        write_int32(out, 0)
    if version < _LAG_IS_A_LONG:
        write_int32(out, 0)  # acceptable lag
    write_int32(out, 0)  # offset interval
    if version >= _LAG_IS_A_LONG:
        out += b"\xff" * 8  # acceptable lag: -1, none
    out += bytes(4)  # no status, active, standby and warm-up tasks: null
    if version >= _LAG_IS_A_LONG:
        out.append(0)  # the topology's description is not requested
    write_int32(out, 0)  # endpoint epoch
    out += bytes(2)  # no endpoints, no tags
    return framed(out)
