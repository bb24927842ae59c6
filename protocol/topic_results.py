"""Responses to CreateTopics, CreatePartitions and DeleteTopics: read per topic, merged with the gateway's refusals.

The broker's results are forwarded byte for byte; only the gateway's own results are encoded here.
Layouts: CreateTopicsResponse v0-7, CreatePartitionsResponse v0-3, DeleteTopicsResponse v0-6.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from protocol.api_keys import Api, ApiKey, ThrottlePlace
from protocol.primitives import (
    framed,
    read_array_length,
    read_bytes_at,
    read_int16,
    read_int32,
    read_nullable_string,
    skip,
    skip_string,
    skip_tags,
    write_array_length,
    write_int16,
    write_int32,
    write_nullable_string,
    write_uvarint,
)
from protocol.steps import Steps
from protocol.topic_mutations import NO_TOPIC_ID, TopicIdentity, TopicMutation


@dataclass(frozen=True, slots=True)
class TopicResult:
    """One topic of a response.

    Attributes:
        name: raw bytes, None if DeleteTopics v6 does not name the topic.
        topic_id: 16 bytes, zeros if the version has none.
        error_code: Kafka's error code, 0 for success.
        num_partitions: CreateTopics v5+: partitions of the created topic, -1 when unknown.
        raw: the element's bytes.
    """

    name: bytes | None
    topic_id: bytes
    error_code: int
    num_partitions: int
    raw: bytes


@dataclass(frozen=True, slots=True)
class TopicResults:
    """A whole response: throttle_time_ms (0 if the version has none), the results, and the bytes after them."""

    throttle_time_ms: int
    results: tuple[TopicResult, ...]
    tail: bytes


def by_identity(results: Iterable[TopicResult]) -> dict[TopicIdentity, TopicResult]:
    """Results by their topics' ids and by their names, because a request may use either."""
    found: dict[TopicIdentity, TopicResult] = {}
    for result in results:
        found[None, result.topic_id] = result
        if result.name is not None:
            found[result.name, NO_TOPIC_ID] = result
    return found


def parse_topic_results(frame: bytes, api: Api) -> Steps[TopicResults]:
    """Parse a whole response frame (size included) of one of the three APIs.

    Raises:
        ProtocolError: it does not follow its layout.
    """
    at = skip(frame, 4, 4)
    at = skip_tags(frame, at) if api.flexible_header else at
    throttle_time_ms = 0
    if api.throttle_place is not ThrottlePlace.NOWHERE:
        throttle_time_ms, at = read_int32(frame, at)
    count, at = read_array_length(frame, at, compact=api.flexible)
    results = []
    for done in range(max(count, 0)):
        result, at = _read_result(frame, at, api)
        results.append(result)
        if done % 1_000 == 999:
            yield
    return TopicResults(throttle_time_ms, tuple(results), frame[at:])


def _read_result(frame: bytes, start: int, api: Api) -> tuple[TopicResult, int]:
    flexible = api.flexible
    name, at = read_nullable_string(frame, start, compact=flexible)
    topic_id = NO_TOPIC_ID
    if has_topic_id(api):
        topic_id, at = read_bytes_at(frame, at, 16)
    error_code, at = read_int16(frame, at)
    if _has_message(api):
        at = skip_string(frame, at, compact=flexible)
    num_partitions = -1
    if api.key is ApiKey.CREATE_TOPICS and api.version >= 5:
        num_partitions, at = read_int32(frame, at)
        at = skip(frame, at, 2)
        configs, at = read_array_length(frame, at, compact=flexible)
        for _ in range(max(configs, 0)):
            at = skip_string(frame, at, compact=flexible)
            at = skip_string(frame, at, compact=flexible)
            at = skip_tags(frame, skip(frame, at, 3))
    at = skip_tags(frame, at) if flexible else at
    return TopicResult(name, topic_id, error_code, num_partitions, frame[start:at]), at


def make_result(topic: TopicMutation, error_code: int, api: Api) -> TopicResult:
    """A result of the gateway's own, with a null message, as in Kafka's THROTTLING_QUOTA_EXCEEDED (KIP-599)."""
    flexible = api.flexible
    out = bytearray()
    write_nullable_string(out, topic.name, compact=flexible)
    if has_topic_id(api):
        out += topic.topic_id
    write_int16(out, error_code)
    if _has_message(api):
        write_nullable_string(out, None, compact=flexible)
    if api.key is ApiKey.CREATE_TOPICS and api.version >= 5:
        write_int32(out, -1)
        write_int16(out, -1)
        write_array_length(out, 0, compact=True)
    if flexible:
        write_uvarint(out, 0)
    return TopicResult(topic.name, topic.topic_id, error_code, -1, bytes(out))


def encode_topic_results(
    correlation_id: int,
    throttle_time_ms: int,
    results: Sequence[TopicResult],
    api: Api,
    *,
    tail: bytes | None = None,
) -> bytes:
    """A response frame.

    Args:
        correlation_id: the client's.
        throttle_time_ms: >= 0; left out if the version has no such field.
        results: the results in their order in the response.
        api: the version to encode for.
        tail: the bytes after the results in the broker's response; None: an empty tag section.
    """
    out = bytearray()
    write_int32(out, correlation_id)
    if api.flexible_header:
        write_uvarint(out, 0)
    if api.throttle_place is not ThrottlePlace.NOWHERE:
        write_int32(out, throttle_time_ms)
    write_array_length(out, len(results), compact=api.flexible)
    for result in results:
        out += result.raw
    if tail is None:
        tail = b"\x00" if api.flexible else b""
    out += tail
    return framed(out)


def has_topic_id(api: Api) -> bool:
    """Whether the results of this version have topic ids."""
    if api.key is ApiKey.CREATE_TOPICS:
        return api.version >= 7
    return api.key is ApiKey.DELETE_TOPICS and api.version >= 6


def _has_message(api: Api) -> bool:
    if api.key is ApiKey.CREATE_TOPICS:
        return api.version >= 1
    if api.key is ApiKey.DELETE_TOPICS:
        return api.version >= 5
    return True
