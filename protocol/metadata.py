"""The parts of Metadata messages that automatic topic creation needs (KIP-599 charges it to the client).

Only names, flags and error codes are read; nothing is decoded. Layouts: MetadataRequest and MetadataResponse v0-13.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final

from protocol.api_keys import Api
from protocol.headers import body_offset
from protocol.primitives import (
    framed,
    read_array_length,
    read_bytes_at,
    read_int8,
    read_int16,
    read_nullable_string,
    skip,
    skip_string,
    skip_tags,
    write_array_length,
    write_nullable_string,
)
from protocol.steps import STEP_ELEMENTS, Steps

MOST_NAMES: Final = 50_000
"""The longest list of topics that is walked."""

FIRST_VERSION_WITH_FLAG: Final = 4
"""Older requests always allow the broker to create missing topics."""


@dataclass(frozen=True, slots=True)
class MetadataQuestion:
    """The content of a Metadata request.

    Attributes:
        names: the requested topics as raw names; empty when all, none or ids are requested.
        may_create: the broker may create missing topics.
        flag_offset: the offset of allow_auto_topic_creation in the frame, None below v4.
    """

    names: tuple[bytes, ...]
    may_create: bool
    flag_offset: int | None


def parse_metadata_question(frame: bytes, api: Api) -> Steps[MetadataQuestion]:
    """Read a whole Metadata request frame (size included).

    Raises:
        ProtocolError: it does not follow its layout, or names more than `MOST_NAMES` topics.
    """
    flexible = api.flexible
    at = body_offset(frame, flexible=flexible)
    count, at = read_array_length(frame, at, compact=flexible, most=MOST_NAMES)
    names = []
    for done in range(max(count, 0)):
        if done % STEP_ELEMENTS == STEP_ELEMENTS - 1:
            yield
        if api.version >= 10:
            at = skip(frame, at, 16)
        name, at = read_nullable_string(frame, at, compact=flexible)
        at = skip_tags(frame, at) if flexible else at
        if name is not None:
            names.append(name)
    if api.version < FIRST_VERSION_WITH_FLAG:
        return MetadataQuestion(tuple(names), True, None)
    flag, _ = read_int8(frame, at)
    return MetadataQuestion(tuple(names), flag != 0, at)


def forbid_creation(frame: bytes, question: MetadataQuestion) -> bytes:
    """The request without the permission to create topics; v4+ only, where the permission is a flag."""
    if question.flag_offset is None:
        raise ValueError("Metadata below v4 has no flag")
    at = question.flag_offset
    return frame[:at] + b"\x00" + frame[at + 1 :]


def upgrade_question(frame: bytes, api: Api, question: MetadataQuestion) -> bytes:
    """A v0-3 request by names as a v4 request that creates nothing."""
    head_end = body_offset(frame, flexible=False)
    out = bytearray(frame[4:head_end])
    out[2:4] = FIRST_VERSION_WITH_FLAG.to_bytes(2, "big")
    write_array_length(out, len(question.names), compact=False)
    for name in question.names:
        write_nullable_string(out, name, compact=False)
    out.append(0)
    return framed(out)


def downgrade_answer(frame: bytes, api: Api) -> Steps[bytes]:
    """A v4 response as the client's version, v0-3: the fields that version lacks are left out.

    v3 is v4 to the letter; v2 has no throttle time; v1 no cluster id; v0 no racks, no controller, no internal flag.
    """
    if api.version == 3:
        return frame
    out = bytearray(frame[4:8])
    at = skip(frame, 8, 4)
    count, at = read_array_length(frame, at, compact=False)
    write_array_length(out, max(count, 0), compact=False)
    for _ in range(max(count, 0)):
        start = at
        at = skip(frame, skip_string(frame, skip(frame, at, 4), compact=False), 4)
        end = at
        at = skip_string(frame, at, compact=False)
        out += frame[start : at if api.version >= 1 else end]
    start = at
    at = skip_string(frame, at, compact=False)
    if api.version >= 2:
        out += frame[start:at]
    start = at
    at = skip(frame, at, 4)
    if api.version >= 1:
        out += frame[start:]
        return framed(out)
    count, at = read_array_length(frame, at, compact=False, most=MOST_NAMES)
    write_array_length(out, max(count, 0), compact=False)
    walked = 0
    for _ in range(max(count, 0)):
        start = at
        at = skip_string(frame, skip(frame, at, 2), compact=False)
        out += frame[start:at]
        start = at = skip(frame, at, 1)
        partitions, at = yield from _skip_partitions(frame, at, version=4, flexible=False)
        out += frame[start:at]
        walked += 1 + partitions
        if walked >= STEP_ELEMENTS:
            walked = 0
            yield
    return framed(out)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic in a Metadata response: raw name, 16-byte id, error code, partitions; the error code's offset."""

    name: bytes
    topic_id: bytes
    error_code: int
    partition_count: int
    error_at: int = 0


_NO_ID: Final = b"\x00" * 16


FIRST_VERSION_WITH_TOPIC_IDS: Final = 10
"""From this version on responses have the ids of topics (KIP-516)."""


def read_topics(frame: bytes, api: Api) -> Steps[list[TopicFacts]]:
    """The topics of a Metadata response (v0-13).

    Raises:
        ProtocolError: the response cannot be read.
    """
    flexible = api.flexible
    at = skip(frame, 4, 4)
    at = skip_tags(frame, at) if api.flexible_header else at
    at = skip(frame, at, 4) if api.version >= 3 else at
    count, at = read_array_length(frame, at, compact=flexible)
    for _ in range(max(count, 0)):
        at = skip(frame, skip_string(frame, skip(frame, at, 4), compact=flexible), 4)
        at = skip_string(frame, at, compact=flexible) if api.version >= 1 else at
        at = skip_tags(frame, at) if flexible else at
    at = skip_string(frame, at, compact=flexible) if api.version >= 2 else at
    at = skip(frame, at, 4) if api.version >= 1 else at
    count, at = read_array_length(frame, at, compact=flexible, most=len(frame))
    found = []
    walked = 0
    for _ in range(max(count, 0)):
        start = at
        error_code, at = read_int16(frame, at)
        name, at = read_nullable_string(frame, at, compact=flexible)
        topic_id = _NO_ID
        if api.version >= FIRST_VERSION_WITH_TOPIC_IDS:
            topic_id, at = read_bytes_at(frame, at, 16)
        at = skip(frame, at, 1) if api.version >= 1 else at
        partitions, at = yield from _skip_partitions(frame, at, version=api.version, flexible=flexible)
        at = skip(frame, at, 4) if api.version >= 8 else at
        at = skip_tags(frame, at) if flexible else at
        found.append(TopicFacts(name or b"", topic_id, error_code, partitions, start))
        walked += 1 + partitions
        if walked >= STEP_ELEMENTS:
            walked = 0
            yield
    return found


def topics_in_error(
    frame: bytes, api: Api, error_codes: Container[int] | None = None
) -> Steps[dict[bytes, int]]:
    """Names of the topics with one of these errors in a Metadata response (v0-13), and the error's offset.

    Args:
        frame: the whole response; see `read_topics`.
        api: its version.
        error_codes: None for any error.
    """
    topics = yield from read_topics(frame, api)
    return {
        topic.name: topic.error_at
        for topic in topics
        if topic.name and (topic.error_code in error_codes if error_codes is not None else topic.error_code)
    }


def copy_errors(
    answer: bytes, places: Mapping[bytes, int], source: bytes, errors: Mapping[bytes, int]
) -> bytes:
    """A response with error codes copied from another one, for the topics that are in both."""
    patched = bytearray(answer)
    for name in places.keys() & errors.keys():
        patched[places[name] : places[name] + 2] = source[errors[name] : errors[name] + 2]
    return bytes(patched)


def _skip_partitions(frame: bytes, at: int, *, version: int, flexible: bool) -> Steps[tuple[int, int]]:
    """(the number of partitions, the offset after them)."""
    count, at = read_array_length(frame, at, compact=flexible, most=len(frame))
    fixed = 2 + 4 + 4 + (4 if version >= 7 else 0)
    lists = 3 if version >= 5 else 2
    for done in range(max(count, 0)):
        if done % STEP_ELEMENTS == STEP_ELEMENTS - 1:
            yield
        at = skip(frame, at, fixed)
        for _ in range(lists):
            brokers, at = read_array_length(frame, at, compact=flexible, most=len(frame))
            at = skip(frame, at, 4 * max(brokers, 0))
        at = skip_tags(frame, at) if flexible else at
    return max(count, 0), at
