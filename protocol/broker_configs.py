"""IncrementalAlterConfigs (KIP-339), v0 and v1: requests parsed setting by setting, responses read and written.

Each setting keeps its unchanged bytes, so that a part of a request can be forwarded without encoding it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from protocol.api_keys import Api
from protocol.errors import MalformedBody, TooManyElements
from protocol.headers import body_offset
from protocol.primitives import (
    MAX_ELEMENTS,
    framed,
    read_array_length,
    read_int8,
    read_int16,
    read_int32,
    read_nullable_string,
    read_string,
    skip_tags,
    write_array_length,
    write_int16,
    write_int32,
    write_nullable_string,
)

BROKER: Final = 4
"""The resource type of brokers."""


class Operation(IntEnum):
    """The operation on a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigOp:
    """One setting of a request; `operation` may be any number, `raw` has the setting's bytes."""

    name: str
    operation: int
    value: str | None
    raw: bytes


@dataclass(frozen=True, slots=True)
class ResourceOps:
    """One resource of a request, with the operations on its settings."""

    resource_type: int
    name: str
    ops: tuple[ConfigOp, ...]


@dataclass(frozen=True, slots=True)
class ConfigsRequest:
    """A request; `head` is its bytes from the api key up to the array of resources."""

    api: Api
    head: bytes
    resources: tuple[ResourceOps, ...]
    validate_only: bool

    def encode(self, resources: Sequence[ResourceOps], *, validate_only: bool) -> bytes:
        """The request frame with only these resources and settings."""
        flexible = self.api.flexible
        out = bytearray(self.head)
        write_array_length(out, len(resources), compact=flexible)
        for resource in resources:
            out.append(resource.resource_type & 0xFF)
            write_nullable_string(out, resource.name.encode(), compact=flexible)
            write_array_length(out, len(resource.ops), compact=flexible)
            for op in resource.ops:
                out += op.raw
            _end(out, flexible)
        out.append(validate_only)
        _end(out, flexible)
        return framed(out)

    def asking_for_the_right(self) -> bytes:
        """A request with the same head that changes nothing: its response shows whether the client has the right.

        The client's own request would not show that: brokers check names and values of settings, and duplicate
        resources, before the client's rights. So an error may be about something else.
        """
        return self.encode([ResourceOps(BROKER, "", ())], validate_only=True)


@dataclass(frozen=True, slots=True)
class ResourceResult:
    """The result for one resource."""

    resource_type: int
    name: str
    error_code: int = 0
    error_message: str | None = None


def parse_configs_request(frame: bytes, api: Api) -> ConfigsRequest:
    """Parse a whole request frame.

    Raises:
        ProtocolError: it does not follow its layout, or has too many settings.
    """
    flexible = api.flexible
    start = body_offset(frame, flexible=flexible)
    count, at = _array(frame, start, flexible)
    left = MAX_ELEMENTS
    resources = []
    for _ in range(count):
        resource_type, at = read_int8(frame, at)
        name, at = _text(frame, at, flexible)
        op_count, at = _array(frame, at, flexible)
        left -= op_count
        if left < 0:
            raise TooManyElements
        ops = []
        for _ in range(op_count):
            op_at = at
            key, at = _text(frame, at, flexible)
            operation, at = read_int8(frame, at)
            value, at = read_nullable_string(frame, at, compact=flexible)
            at = skip_tags(frame, at) if flexible else at
            text = None if value is None else value.decode("utf-8", "replace")
            ops.append(ConfigOp(key, operation, text, frame[op_at:at]))
        at = skip_tags(frame, at) if flexible else at
        resources.append(ResourceOps(resource_type, name, tuple(ops)))
    validate_only, _ = read_int8(frame, at)
    return ConfigsRequest(api, frame[4:start], tuple(resources), validate_only != 0)


def read_configs_answer(frame: bytes, api: Api) -> tuple[int, list[ResourceResult]]:
    """throttle_time_ms and the results of a whole response frame.

    Raises:
        ProtocolError: it does not follow its layout.
    """
    flexible = api.flexible
    throttle_time_ms, at = read_int32(frame, skip_tags(frame, 8) if api.flexible_header else 8)
    count, at = _array(frame, at, flexible)
    results = []
    for _ in range(count):
        error_code, at = read_int16(frame, at)
        message, at = read_nullable_string(frame, at, compact=flexible)
        resource_type, at = read_int8(frame, at)
        name, at = _text(frame, at, flexible)
        at = skip_tags(frame, at) if flexible else at
        text = None if message is None else message.decode("utf-8", "replace")
        results.append(ResourceResult(resource_type, name, error_code, text))
    return throttle_time_ms, results


def encode_configs_answer(
    correlation_id: int, results: Iterable[ResourceResult], api: Api, *, throttle_time_ms: int = 0
) -> bytes:
    """A response frame."""
    results = list(results)
    flexible = api.flexible
    out = bytearray()
    write_int32(out, correlation_id)
    _end(out, api.flexible_header)
    write_int32(out, throttle_time_ms)
    write_array_length(out, len(results), compact=flexible)
    for result in results:
        write_int16(out, result.error_code)
        message = None if result.error_message is None else result.error_message.encode()[:MAX_MESSAGE_BYTES]
        write_nullable_string(out, message, compact=flexible)
        out.append(result.resource_type & 0xFF)
        write_nullable_string(out, result.name.encode(), compact=flexible)
        _end(out, flexible)
    _end(out, flexible)
    return framed(out)


MAX_MESSAGE_BYTES: Final = 4_096
"""The longest text of the gateway or a broker that is sent; it may quote the client's own text."""


def _array(frame: bytes, at: int, flexible: bool) -> tuple[int, int]:
    count, at = read_array_length(frame, at, compact=flexible)
    if count < 0:
        raise MalformedBody("null where an array is required")
    return count, at


def _text(frame: bytes, at: int, flexible: bool) -> tuple[str, int]:
    raw, at = read_string(frame, at, compact=flexible)
    try:
        return raw.decode(), at
    except UnicodeDecodeError as exc:
        raise MalformedBody("a name that is no UTF-8") from exc


def _end(out: bytearray, flexible: bool) -> None:
    """Write an empty section of tagged fields."""
    if flexible:
        out.append(0)
