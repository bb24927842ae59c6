"""DescribeClientQuotas and AlterClientQuotas (KIP-546), v0 and v1: requests read, responses written.

The content of a request is returned unchecked; `quotas` checks it. Names are text: bytes that are not UTF-8 become
replacement characters, as in Kafka. If an entity has a type twice, it counts once, with its last name, as in Kafka's
own reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from protocol.api_keys import Api
from protocol.errors import MalformedBody
from protocol.headers import body_offset
from protocol.primitives import (
    framed,
    read_array_length,
    read_int8,
    read_int16,
    read_nullable_string,
    skip,
    skip_tags,
    write_array_length,
    write_int16,
    write_int32,
    write_nullable_string,
    write_uvarint,
)
from protocol.steps import Steps

MAX_ENTRIES: Final = 2_000
"""The most entities in one request."""

MAX_PARTS: Final = 4 * MAX_ENTRIES
"""The most components and operations of all entities in one request together."""

ENTRIES_AT_ONCE: Final = 100
"""Entries of an alteration that are read in one step: some 30 us each, with the longest names 130."""

_BYTES_AT_ONCE: Final = 512 * 1024
"""The bytes of names that are read in one step."""

MAX_TEXT_BYTES: Final = 32_767
_FLOAT64: Final = Struct(">d")

# Kafka keeps the components of an entity in a hash map. This is its order of the three known types.
_TYPE_ORDER: Final = {"client-id": 0, "user": 1, "ip": 2}


@dataclass(frozen=True, slots=True)
class QuotaOp:
    """One key of an alteration; `value` has no meaning when the key is removed."""

    key: str
    value: float
    remove: bool


@dataclass(frozen=True, slots=True)
class AlterEntry:
    """One entity, type -> name (None: the default), and the operations on its keys."""

    entity: Mapping[str, str | None]
    ops: tuple[QuotaOp, ...]


@dataclass(frozen=True, slots=True)
class AlterRequest:
    """An AlterClientQuotas request; `validate_only_at` is the offset of that byte in its frame."""

    entries: tuple[AlterEntry, ...]
    validate_only: bool
    validate_only_at: int


@dataclass(frozen=True, slots=True)
class AlterResult:
    """The result for one entity."""

    entity: Mapping[str, str | None]
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class FilterComponent:
    """One condition of a DescribeClientQuotas request, not yet checked."""

    entity_type: str
    match_type: int
    match: str | None


@dataclass(frozen=True, slots=True)
class DescribeRequest:
    """A DescribeClientQuotas request."""

    components: tuple[FilterComponent, ...]
    strict: bool


@dataclass(frozen=True, slots=True)
class DescribedEntity:
    """One entity of a response with its values."""

    entity: Mapping[str, str | None]
    values: Mapping[str, float]


def parse_alter(frame: bytes, api: Api) -> Steps[AlterRequest]:
    """Parse a whole AlterClientQuotas request frame.

    Raises:
        ProtocolError: it does not follow its layout, or has too much in it (`MAX_ENTRIES`, `MAX_PARTS`).
    """
    flexible = api.flexible
    count, at = _array(frame, body_offset(frame, flexible=flexible), flexible)
    entries = []
    left = MAX_PARTS
    looked_at = at
    for done in range(1, count + 1):
        if done % ENTRIES_AT_ONCE == 0 or at - looked_at > _BYTES_AT_ONCE:
            looked_at = at
            yield
        components, at = _array(frame, at, flexible, most=left)
        left -= components
        entity: dict[str, str | None] = {}
        for _ in range(components):
            entity_type, at = _text(frame, at, flexible)
            name, at = _nullable_text(frame, at, flexible)
            entity[entity_type] = name
            at = skip_tags(frame, at) if flexible else at
        op_count, at = _array(frame, at, flexible, most=left)
        left -= op_count
        ops = []
        for _ in range(op_count):
            key, at = _text(frame, at, flexible)
            value, at = _read_float64(frame, at)
            remove, at = read_int8(frame, at)
            at = skip_tags(frame, at) if flexible else at
            ops.append(QuotaOp(key, value, remove != 0))
        at = skip_tags(frame, at) if flexible else at
        entries.append(AlterEntry(entity, tuple(ops)))
    validate_only, _ = read_int8(frame, at)
    return AlterRequest(tuple(entries), validate_only != 0, at)


def parse_describe(frame: bytes, api: Api) -> DescribeRequest:
    """Parse a whole DescribeClientQuotas request frame.

    Raises:
        ProtocolError: it does not follow its layout.
    """
    flexible = api.flexible
    count, at = _array(frame, body_offset(frame, flexible=flexible), flexible)
    components = []
    for _ in range(count):
        entity_type, at = _text(frame, at, flexible)
        match_type, at = read_int8(frame, at)
        match, at = _nullable_text(frame, at, flexible)
        at = skip_tags(frame, at) if flexible else at
        components.append(FilterComponent(entity_type, match_type, match))
    strict, _ = read_int8(frame, at)
    return DescribeRequest(tuple(components), strict != 0)


def only_validating(frame: bytes, request: AlterRequest) -> bytes:
    """The same request with validate_only set, so that it is checked and not carried out."""
    asked = bytearray(frame)
    asked[request.validate_only_at] = 1
    return bytes(asked)


def asking_for_nothing(frame: bytes, api: Api) -> bytes:
    """A DescribeClientQuotas request with the head of `frame` that matches nothing; it checks the client's right."""
    head = frame[4 : body_offset(frame, flexible=api.flexible)]
    out = bytearray(head)
    write_array_length(out, 0, compact=api.flexible)
    out.append(1)
    _end(out, api.flexible)
    return framed(out)


def encode_alter_answer(
    correlation_id: int, results: Sequence[AlterResult], api: Api, *, throttle_time_ms: int = 0
) -> Steps[bytes]:
    """The response to AlterClientQuotas, one entry per result."""
    out = _answer_head(correlation_id, api, throttle_time_ms)
    flexible = api.flexible
    write_array_length(out, len(results), compact=flexible)
    written = 0
    for done, result in enumerate(results, start=1):
        if done % ENTRIES_AT_ONCE == 0 or len(out) - written > _BYTES_AT_ONCE:
            written = len(out)
            yield
        write_int16(out, result.error_code)
        _write_text(out, result.error_message, flexible)
        _write_entity(out, result.entity, flexible)
        _end(out, flexible)
    _end(out, flexible)
    return framed(out)


def encode_describe_answer(
    correlation_id: int,
    entities: Iterable[DescribedEntity] | None,
    api: Api,
    *,
    error_code: int = 0,
    error_message: str | None = None,
    throttle_time_ms: int = 0,
) -> bytes:
    """The response to DescribeClientQuotas.

    Args:
        correlation_id: the client's.
        entities: None with an error.
        api: the version to encode for.
        error_code: the error of the whole request; entities are then None.
        error_message: the error's text; Kafka sends null with CLUSTER_AUTHORIZATION_FAILED.
        throttle_time_ms: >= 0.
    """
    answer = DescribeAnswer(correlation_id, api, throttle_time_ms=throttle_time_ms)
    if entities is None:
        return answer.refusal(error_code, error_message)
    for described in entities:
        answer.add(described)
    return answer.frame()


class DescribeAnswer:
    """A response to DescribeClientQuotas that is built entity by entity, for long lists."""

    __slots__ = ("_count", "_entries", "_flexible", "_head")

    def __init__(self, correlation_id: int, api: Api, *, throttle_time_ms: int = 0) -> None:
        """Starts without entities."""
        self._head = _answer_head(correlation_id, api, throttle_time_ms)
        self._flexible = api.flexible
        self._entries = bytearray()
        self._count = 0

    def add(self, described: DescribedEntity) -> None:
        """Add an entity."""
        out, flexible = self._entries, self._flexible
        _write_entity(out, described.entity, flexible)
        write_array_length(out, len(described.values), compact=flexible)
        for key, value in described.values.items():
            _write_text(out, key, flexible)
            out += _FLOAT64.pack(value)
            _end(out, flexible)
        _end(out, flexible)
        self._count += 1

    def frame(self) -> bytes:
        """The whole frame. Without an error the error text is "", as in Kafka."""
        out = bytearray(self._head)
        write_int16(out, 0)
        _write_text(out, "", self._flexible)
        write_array_length(out, self._count, compact=self._flexible)
        out += self._entries
        _end(out, self._flexible)
        return framed(out)

    def refusal(self, error_code: int, error_message: str | None) -> bytes:
        """The whole frame of an error response; its list is null."""
        out = bytearray(self._head)
        write_int16(out, error_code)
        _write_text(out, error_message, self._flexible)
        _write_null_array(out, self._flexible)
        _end(out, self._flexible)
        return framed(out)


def read_alter_outcome(frame: bytes, api: Api) -> list[tuple[int, str | None]]:
    """Error code and message of each entry of a broker's AlterClientQuotas response.

    Raises:
        ProtocolError: it does not follow its layout.
    """
    flexible = api.flexible
    at = _behind_throttle(frame, api)
    count, at = _array(frame, at, flexible)
    verdict = []
    for _ in range(count):
        error_code, at = read_int16(frame, at)
        message, at = _nullable_text(frame, at, flexible)
        components, at = _array(frame, at, flexible)
        for _ in range(components):
            _, at = _text(frame, at, flexible)
            _, at = _nullable_text(frame, at, flexible)
            at = skip_tags(frame, at) if flexible else at
        at = skip_tags(frame, at) if flexible else at
        verdict.append((error_code, message))
    return verdict


def read_describe_outcome(frame: bytes, api: Api) -> tuple[int, str | None]:
    """Error code and message of a broker's DescribeClientQuotas response.

    Raises:
        ProtocolError: it does not follow its layout.
    """
    at = _behind_throttle(frame, api)
    error_code, at = read_int16(frame, at)
    message, _ = _nullable_text(frame, at, api.flexible)
    return error_code, message


# -- pieces ----------------------------------------------------------------------------------------------------------


def _array(frame: bytes, at: int, flexible: bool, *, most: int = MAX_ENTRIES) -> tuple[int, int]:
    count, at = read_array_length(frame, at, compact=flexible, most=most)
    if count < 0:
        raise MalformedBody("null where an array is required")
    return count, at


def _nullable_text(frame: bytes, at: int, flexible: bool) -> tuple[str | None, int]:
    raw, at = read_nullable_string(frame, at, compact=flexible)
    if raw is None:
        return None, at
    text = raw.decode("utf-8", "replace")
    # Each invalid byte becomes three, so a text that could be read may be too long to be written.
    if len(text) > MAX_TEXT_BYTES // 3 and len(text.encode()) > MAX_TEXT_BYTES:
        raise MalformedBody("string longer than 32,767 bytes")
    return text, at


def _text(frame: bytes, at: int, flexible: bool) -> tuple[str, int]:
    text, at = _nullable_text(frame, at, flexible)
    if text is None:
        raise MalformedBody("null where a string is required")
    return text, at


def _read_float64(frame: bytes, at: int) -> tuple[float, int]:
    end = skip(frame, at, 8)
    return _FLOAT64.unpack_from(frame, at)[0], end


def _answer_head(correlation_id: int, api: Api, throttle_time_ms: int) -> bytearray:
    out = bytearray()
    write_int32(out, correlation_id)
    _end(out, api.flexible_header)
    write_int32(out, throttle_time_ms)
    return out


def _behind_throttle(frame: bytes, api: Api) -> int:
    at = skip_tags(frame, 8) if api.flexible_header else 8
    return skip(frame, at, 4)


def _write_entity(out: bytearray, entity: Mapping[str, str | None], flexible: bool) -> None:
    components = sorted(entity.items(), key=lambda each: (_TYPE_ORDER.get(each[0], 3), each[0]))
    write_array_length(out, len(components), compact=flexible)
    for entity_type, name in components:
        _write_text(out, entity_type, flexible)
        _write_text(out, name, flexible)
        _end(out, flexible)


def _write_text(out: bytearray, text: str | None, flexible: bool) -> None:
    """Write a string. A text of the gateway that quotes a name may be too long for a string, and is cut."""
    raw = None if text is None else text.encode()
    if raw is not None and len(raw) > MAX_TEXT_BYTES:
        raw = raw[:MAX_TEXT_BYTES].decode("utf-8", "ignore").encode()
    write_nullable_string(out, raw, compact=flexible)


def _write_null_array(out: bytearray, flexible: bool) -> None:
    if flexible:
        write_uvarint(out, 0)
    else:
        write_int32(out, -1)


def _end(out: bytearray, flexible: bool) -> None:
    """Write an empty section of tagged fields."""
    if flexible:
        out.append(0)
