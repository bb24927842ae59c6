"""CreateTopics, CreatePartitions and DeleteTopics requests: their topics, numbers of partitions, and original bytes.

A request is parsed into its topics, each with its unchanged bytes. So a part of it can be forwarded without encoding
it again, and unknown tags and odd values are kept (hazard A24). Array lengths are checked before anything is built
from them (hazard A27). Layouts: CreateTopicsRequest v0-7, CreatePartitionsRequest v0-3, DeleteTopicsRequest v0-6 of
Kafka's message definitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from protocol.api_keys import Api, ApiKey
from protocol.errors import TooManyElements
from protocol.headers import body_offset
from protocol.primitives import (
    MAX_ELEMENTS,
    framed,
    read_array_length,
    read_bytes_at,
    read_int8,
    read_int16,
    read_int32,
    read_nullable_string,
    read_uvarint,
    skip,
    skip_string,
    skip_tags,
    write_array_length,
)
from protocol.steps import STEP_ELEMENTS, Steps

NO_TOPIC_ID: Final = b"\x00" * 16

TopicIdentity: TypeAlias = tuple[bytes | None, bytes]
"""(name, no id) or (None, id): a name may look like the bytes of an id."""

_CORRELATION_ID_AT: Final = 4  # after api key and version
_TIMEOUT_BYTES: Final = 4  # between the topics and validate_only

MAX_NESTED_ELEMENTS: Final = 4 * MAX_ELEMENTS
"""The most assignments, configs and tags of all topics together; about 1 us each (hazard A27)."""


@dataclass(frozen=True, slots=True)
class TopicMutation:
    """One topic of a request.

    Attributes:
        name: the topic's name as raw bytes, None when it is given by id.
        topic_id: 16 bytes; zeros when it is given by name.
        num_partitions: CreateTopics: the requested number, -1 for the cluster's default. CreatePartitions: the new
            total. DeleteTopics: 0.
        replication_factor: CreateTopics: the requested factor. 0 elsewhere.
        assignment_count: length of the manual assignment, -1 for null.
        raw: the element's bytes.
    """

    name: bytes | None
    topic_id: bytes
    num_partitions: int
    replication_factor: int
    assignment_count: int
    raw: bytes

    @property
    def identity(self) -> TopicIdentity:
        """The topic's identity in the request: its name, or its id if there is no name."""
        return (None, self.topic_id) if self.name is None else (self.name, NO_TOPIC_ID)


@dataclass(frozen=True, slots=True)
class TopicMutations:
    """A whole request.

    Attributes:
        api: key and version.
        head: header bytes, from the api key up to the array of topics.
        topics: in wire order.
        timeout_ms: how long the client lets the controller work.
        validate_only: the request is only validated (CreateTopics v1+, CreatePartitions).
        tail: everything after the array of topics.
    """

    api: Api
    head: bytes
    topics: tuple[TopicMutation, ...]
    timeout_ms: int
    validate_only: bool
    tail: bytes

    def encode(self, topics: Sequence[TopicMutation], *, validation_id: int | None = None) -> bytes:
        """The request frame with only these topics.

        Args:
            topics: topics of this request.
            validation_id: a correlation id. If it is given, the topics are only validated; the version must have
                `validate_only`.
        """
        out = bytearray(self.head)
        write_array_length(out, len(topics), compact=self.api.flexible)
        for topic in topics:
            out += topic.raw
        tail_at = len(out)
        out += self.tail
        if validation_id is not None:
            out[_CORRELATION_ID_AT : _CORRELATION_ID_AT + 4] = validation_id.to_bytes(4, "big", signed=True)
            out[tail_at + _TIMEOUT_BYTES] = 1
        return framed(out)


_TOPICS_AT_ONCE: Final = 1_000


class _Budget:
    """Counts nested elements of one request, so that a small frame cannot block the loop for long."""

    def __init__(self) -> None:
        self.left = MAX_NESTED_ELEMENTS

    def take(self, count: int) -> int:
        """Count these elements; returns `count`, 0 for a null array."""
        count = max(count, 0)
        self.left -= count
        if self.left < 0:
            raise TooManyElements
        return count

    def skip_tags(self, frame: bytes, at: int) -> int:
        """Offset after a tagged-field section."""
        if at < len(frame) and frame[at] == 0:
            return at + 1
        self.take(read_uvarint(frame, at)[0])
        return skip_tags(frame, at)


def parse_topic_mutations(frame: bytes, api: Api) -> Steps[TopicMutations]:
    """Parse a whole request frame (size included) of one of the three APIs.

    Raises:
        ProtocolError: it does not follow its layout, or has more elements than Kafka would accept.
    """
    flexible = api.flexible
    array_at = body_offset(frame, flexible=flexible)
    count, at = read_array_length(frame, array_at, compact=flexible)
    read = {
        ApiKey.CREATE_TOPICS: _read_creatable_topic,
        ApiKey.CREATE_PARTITIONS: _read_partitions_topic,
        ApiKey.DELETE_TOPICS: _read_deletable_topic,
    }[api.key]
    budget = _Budget()
    topics = []
    paused_at = budget.left
    for done in range(max(count, 0)):
        topic, at = read(frame, at, api, budget)
        topics.append(topic)
        if done % _TOPICS_AT_ONCE == _TOPICS_AT_ONCE - 1 or paused_at - budget.left >= STEP_ELEMENTS:
            paused_at = budget.left
            yield
    tail_at = at
    timeout_ms, at = read_int32(frame, at)
    validate_only = False
    if api.key is ApiKey.CREATE_PARTITIONS or (api.key is ApiKey.CREATE_TOPICS and api.version >= 1):
        flag, at = read_int8(frame, at)
        validate_only = flag != 0
    if flexible:
        skip_tags(frame, at)
    return TopicMutations(
        api=api,
        head=frame[4:array_at],
        topics=tuple(topics),
        timeout_ms=timeout_ms,
        validate_only=validate_only,
        tail=frame[tail_at:],
    )


def _read_creatable_topic(frame: bytes, start: int, api: Api, budget: _Budget) -> tuple[TopicMutation, int]:
    flexible = api.flexible
    name, at = read_nullable_string(frame, start, compact=flexible)
    num_partitions, at = read_int32(frame, at)
    replication_factor, at = read_int16(frame, at)
    assignment_count, at = _skip_assignments(frame, at, budget, flexible=flexible, indexed=True)
    configs, at = read_array_length(frame, at, compact=flexible)
    for _ in range(budget.take(configs)):
        at = skip_string(frame, at, compact=flexible)
        at = skip_string(frame, at, compact=flexible)
        at = budget.skip_tags(frame, at) if flexible else at
    at = budget.skip_tags(frame, at) if flexible else at
    topic = TopicMutation(
        name or b"", NO_TOPIC_ID, num_partitions, replication_factor, assignment_count, frame[start:at]
    )
    return topic, at


def _read_partitions_topic(frame: bytes, start: int, api: Api, budget: _Budget) -> tuple[TopicMutation, int]:
    flexible = api.flexible
    name, at = read_nullable_string(frame, start, compact=flexible)
    total, at = read_int32(frame, at)
    assignment_count, at = _skip_assignments(frame, at, budget, flexible=flexible, indexed=False)
    at = budget.skip_tags(frame, at) if flexible else at
    return TopicMutation(name or b"", NO_TOPIC_ID, total, 0, assignment_count, frame[start:at]), at


def _read_deletable_topic(frame: bytes, start: int, api: Api, budget: _Budget) -> tuple[TopicMutation, int]:
    flexible = api.flexible
    name, at = read_nullable_string(frame, start, compact=flexible)
    topic_id = NO_TOPIC_ID
    if api.version >= 6:
        topic_id, at = read_bytes_at(frame, at, 16)
        at = budget.skip_tags(frame, at)
    elif name is None:
        name = b""
    return TopicMutation(name, topic_id, 0, 0, 0, frame[start:at]), at


def _skip_assignments(
    frame: bytes, at: int, budget: _Budget, *, flexible: bool, indexed: bool
) -> tuple[int, int]:
    """Skip an array of {[partition index,] broker ids}; return (its length, -1 for null, and the next offset)."""
    count, at = read_array_length(frame, at, compact=flexible)
    for _ in range(budget.take(count)):
        at = skip(frame, at, 4) if indexed else at
        brokers, at = read_array_length(frame, at, compact=flexible)
        at = skip(frame, at, 4 * max(brokers, 0))
        at = budget.skip_tags(frame, at) if flexible else at
    return count, at
