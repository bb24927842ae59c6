"""Frames from keyword arguments, and decoded frames, by kafka-python's message classes and never by our own code.

The headers are written by hand, because kafka-python cannot write unusual ones (invalid UTF-8, header tags).
kafka-python also says whether a version is flexible, so that a wrong line in `protocol.api_keys` is noticed. It takes
its layouts from Kafka's message definitions. Its classes accept versions below the broker's minimum, which the tests
need.
"""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Iterator, Sequence
from functools import cache
from struct import pack, unpack_from
from typing import Any, Final

from kafka.protocol.api_message import ApiMessage

_MODULES: Final = (
    "kafka.protocol.admin.acl",
    "kafka.protocol.admin.client_quotas",
    "kafka.protocol.admin.cluster",
    "kafka.protocol.admin.configs",
    "kafka.protocol.admin.groups",
    "kafka.protocol.admin.topics",
    "kafka.protocol.admin.transactions",
    "kafka.protocol.admin.users",
    "kafka.protocol.consumer.fetch",
    "kafka.protocol.consumer.group",
    "kafka.protocol.consumer.metadata",
    "kafka.protocol.consumer.offsets",
    "kafka.protocol.metadata.api_versions",
    "kafka.protocol.metadata.find_coordinator",
    "kafka.protocol.metadata.metadata",
    "kafka.protocol.producer.produce",
    "kafka.protocol.producer.transaction",
    "kafka.protocol.sasl",
    "testkit.messages",  # last, because these are newer
)

_UNSUPPORTED_VERSION: Final = 35

Tags = Sequence[tuple[int, bytes]]
"""Tagged fields as (tag, raw value)."""


@cache
def _classes() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for module in _MODULES:
        for value in vars(importlib.import_module(module)).values():
            if isinstance(value, type) and issubclass(value, ApiMessage) and value is not ApiMessage:
                found[value.__name__] = value
    return found


def api_names() -> list[str]:
    """Every API for which kafka-python has both messages, such as "CreateTopics"."""
    requests = {name.removesuffix("Request") for name in _classes() if name.endswith("Request")}
    return sorted(name for name in requests if f"{name}Response" in _classes())


def api_key_of(name: str) -> int:
    """kafka-python's api key of an API."""
    return int(_classes()[f"{name}Request"].API_KEY)


def layout(name: str, version: int, kind: str) -> tuple[Any, bool]:
    """kafka-python's fields of a "Request" or "Response", and whether this version of it is flexible."""
    cls = _classes()[f"{name}{kind}"]
    return cls._struct, bool(cls.flexible_version_q(version))


def versions(name: str) -> range:
    """Versions from 0 on in which both messages can be encoded."""
    newest = min(_classes()[f"{name}{kind}"].valid_versions[1] for kind in ("Request", "Response"))
    return range(newest + 1)


def every_version() -> Iterator[tuple[str, int]]:
    """(API, version) of all messages that kafka-python can encode."""
    for name in api_names():
        for version in versions(name):
            yield name, version


def uvarint(value: int) -> bytes:
    """An unsigned varint of any length."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def tag_section(tags: Tags) -> bytes:
    """A tagged-field section (KIP-482)."""
    return uvarint(len(tags)) + b"".join(uvarint(tag) + uvarint(len(raw)) + raw for tag, raw in tags)


def framed(payload: bytes) -> bytes:
    """A payload with its size in front."""
    return pack(">i", len(payload)) + payload


def head(
    api_key: int,
    api_version: int,
    *,
    flexible: bool,
    correlation_id: int = 1,
    client_id: str | bytes | None = "tests",
    header_tags: Tags = (),
) -> bytes:
    """A request header without the size. The client id may be bytes that are not UTF-8."""
    raw = client_id.encode() if isinstance(client_id, str) else client_id
    out = pack(">hhi", api_key, api_version, correlation_id)
    out += pack(">h", -1) if raw is None else pack(">h", len(raw)) + raw
    return out + (tag_section(header_tags) if flexible else b"")


def request(
    name: str,
    version: int,
    *,
    correlation_id: int = 1,
    client_id: str | bytes | None = "tests",
    header_tags: Tags = (),
    **fields: Any,
) -> bytes:
    """A request frame. Structs are dicts with kafka-python's field names; missing fields get their defaults."""
    cls = _classes()[f"{name}Request"]
    header = head(
        int(cls.API_KEY),
        version,
        flexible=bool(cls.flexible_version_q(version)),
        correlation_id=correlation_id,
        client_id=client_id,
        header_tags=header_tags,
    )
    return framed(header + _body(cls, version, fields))


def response(
    name: str, version: int, *, correlation_id: int = 1, header_tags: Tags = (), **fields: Any
) -> bytes:
    """A response frame, as a broker would send it."""
    cls = _classes()[f"{name}Response"]
    header = pack(">i", correlation_id)
    if _flexible_response_header(name, version):
        header += tag_section(header_tags)
    return framed(header + _body(cls, version, fields))


def decode_request(name: str, version: int, frame: bytes) -> Any:
    """The body of a whole request frame. Fails if bytes are left over, or the key or version differs."""
    cls = _classes()[f"{name}Request"]
    assert unpack_from(">ihh", frame, 0) == (len(frame) - 4, cls.API_KEY, version)
    client_id_length = unpack_from(">h", frame, 12)[0]
    at = 14 + max(client_id_length, 0)
    if cls.flexible_version_q(version):
        at = _skip_tags(frame, at)
    return _decode(cls, version, frame, at)


def decode_response(name: str, version: int, frame: bytes) -> Any:
    """The body of a whole response frame. Fails if bytes are left over."""
    cls = _classes()[f"{name}Response"]
    assert unpack_from(">i", frame, 0)[0] == len(frame) - 4
    at = _skip_tags(frame, 8) if _flexible_response_header(name, version) else 8
    if name == "ApiVersions" and unpack_from(">h", frame, at)[0] == _UNSUPPORTED_VERSION:
        version = 0  # for any requested version (KIP-511)
    return _decode(cls, version, frame, at)


def correlation_id_of(frame: bytes) -> int:
    """Correlation id of a response frame."""
    return int(unpack_from(">i", frame, 4)[0])


def populated(name: str, version: int, *, nulls: bool = False, kind: str = "Response") -> dict[str, Any]:
    """Fields for `response`; every field of this version has a different value.

    Args:
        name: the API.
        version: of the message.
        nulls: null wherever the version allows it, instead of a value.
        kind: "Request" for the fields of `request`.
    """
    struct = _classes()[f"{name}{kind}"]._struct
    fields = _populated_struct(struct, version, _Counter(), nulls=nulls)
    if name == "ApiVersions" and kind == "Response":
        fields["error_code"] = 0  # kafka-python reads a response with any other code as version 0
    return fields


class _Counter:
    """Numbers that differ from each other and from defaults, and fit into an int8."""

    def __init__(self) -> None:
        self._last = 10

    def next(self) -> int:
        self._last += 1
        return self._last


def _populated_struct(struct: Any, version: int, counter: _Counter, *, nulls: bool) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in struct._fields:
        if not field.for_version_q(version):
            continue
        if field._tag is not None and not field.tagged_field_q(version):
            continue
        if nulls and field.nullable_for_version_q(version):
            values[field.name] = None
        else:
            values[field.name] = _populated_value(field, version, counter, nulls=nulls)
    return values


def _populated_value(field: Any, version: int, counter: _Counter, *, nulls: bool) -> Any:
    if field.is_array():
        return [_populated_value(field.array_of, version, counter, nulls=nulls) for _ in range(2)]
    if field.is_struct():
        return _populated_struct(field, version, counter, nulls=nulls)
    number = counter.next()
    simple: dict[str, Any] = {
        "string": f"s{number}",
        "bytes": f"b{number}".encode(),
        "records": f"r{number}".encode(),
        "uuid": uuid.UUID(int=number << 64 | number),
        "bool": True,
        "float64": number + 0.5,
        "bitfield": {number % 31},
        "int8": number % 128,
    }
    return simple.get(field.type_str.removeprefix("[]"), number)


def _flexible_response_header(name: str, version: int) -> bool:
    return name != "ApiVersions" and bool(_classes()[f"{name}Response"].flexible_version_q(version))


def _body(cls: Any, version: int, fields: dict[str, Any]) -> bytes:
    return bytes(cls(version=version, **_as_data(cls._struct, version, fields)).encode())


def _as_data(struct: Any, version: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Converts nested dicts to kafka-python's data classes, which have the defaults of missing fields."""
    known = struct.fields
    return {
        name: _as_value(known[name], version, value) if name in known else value
        for name, value in fields.items()
    }


def _as_value(field: Any, version: int, value: Any) -> Any:
    if field.is_struct_array():
        return None if value is None else [_as_value(field.array_of, version, item) for item in value]
    if field.is_struct() and isinstance(value, dict):
        return field.data_class(version=version, **_as_data(field, version, value))
    return value


def _skip_tags(frame: bytes, at: int) -> int:
    count, at = _read_uvarint(frame, at)
    for _ in range(count):
        _, at = _read_uvarint(frame, at)
        size, at = _read_uvarint(frame, at)
        at += size
    assert at <= len(frame)
    return at


def _read_uvarint(frame: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while frame[at] >= 0x80:
        value |= (frame[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | frame[at] << shift, at + 1


def _decode(cls: Any, version: int, frame: bytes, at: int) -> Any:
    flexible = cls.flexible_version_q(version)
    decode = cls._struct.compiled_decode_from(
        version, compact=flexible, tagged=flexible, data_class=cls[None]
    )
    message, end = decode(memoryview(frame), at)
    assert end == len(frame), f"{len(frame) - end} bytes left over"
    message._header = None  # so that the message can be encoded again
    return message
