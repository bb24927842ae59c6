"""Frames of frequent APIs, encoded and decoded by hand; `testkit.wire` makes those of rare ones.

`tests/simulation/test_messages.py` compares them with kafka-python's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from struct import Struct, pack
from typing import Final, NamedTuple

PRODUCE: Final = 0
FETCH: Final = 1
METADATA: Final = 3
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
SYNC_GROUP: Final = 14
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
DESCRIBE_CONFIGS: Final = 32
CREATE_PARTITIONS: Final = 37
ALTER_CLIENT_QUOTAS: Final = 49

THROTTLING_QUOTA_EXCEEDED: Final = 89
INVALID_FETCH_SESSION_EPOCH: Final = 71

_FLEXIBLE_SINCE: Final = {
    PRODUCE: 9,
    FETCH: 12,
    METADATA: 9,
    HEARTBEAT: 4,
    FIND_COORDINATOR: 3,
    API_VERSIONS: 3,
}

HEAD: Final = Struct(">ihhih")
HEAD_BYTES: Final = HEAD.size
_INT32: Final = Struct(">i")

_BATCH: Final = Struct(">qiibIhiqqqhii")
BATCH_BYTES: Final = _BATCH.size
_MAGIC: Final = 2


class Head(NamedTuple):
    """The head of a request."""

    size: int
    key: int
    version: int
    correlation_id: int
    client_id: str
    body_at: int


def read_head(frame: bytes) -> Head:
    """Reads the head of a whole request."""
    size, key, version, correlation_id, length = HEAD.unpack_from(frame, 0)
    body_at = HEAD_BYTES + max(0, length)
    client_id = frame[HEAD_BYTES:body_at].decode()
    return Head(size, key, version, correlation_id, client_id, body_at + is_flexible(key, version))


def is_flexible(key: int, version: int) -> bool:
    """Whether frames of this version end with tags; for the APIs above."""
    return version >= _FLEXIBLE_SINCE.get(key, 1 << 15)


@lru_cache(maxsize=4096)
def _head_rest(key: int, version: int, client_id: str) -> bytes:
    raw = client_id.encode()
    return pack(">h", len(raw)) + raw + (b"\0" if is_flexible(key, version) else b"")


def request(key: int, version: int, correlation_id: int, client_id: str, *body: bytes) -> bytes:
    """A request from its body."""
    rest = _head_rest(key, version, client_id)
    size = 8 + len(rest) + sum(map(len, body))
    return b"".join((pack(">ihhi", size, key, version, correlation_id), rest, *body))


def response(key: int, version: int, correlation_id: int, *body: bytes) -> bytes:
    """A response from its body."""
    tags = b"\0" if is_flexible(key, version) and key != API_VERSIONS else b""
    size = 4 + len(tags) + sum(map(len, body))
    return b"".join((pack(">ii", size, correlation_id), tags, *body))


def uvarint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_uvarint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _text(text: str, flexible: bool) -> bytes:
    raw = text.encode()
    return (uvarint(len(raw) + 1) if flexible else pack(">h", len(raw))) + raw


def _read_text(data: bytes, at: int, flexible: bool) -> tuple[str, int]:
    if flexible:
        length, at = _read_uvarint(data, at)
        length -= 1
    else:
        length = int.from_bytes(data[at : at + 2], "big")
        at += 2
    return data[at : at + length].decode(), at + length


def _count(number: int, flexible: bool) -> bytes:
    return uvarint(number + 1) if flexible else pack(">i", number)


def _read_count(data: bytes, at: int, flexible: bool) -> tuple[int, int]:
    if flexible:
        number, at = _read_uvarint(data, at)
        return number - 1, at
    return _INT32.unpack_from(data, at)[0], at + 4


def batch(payload: bytes, base_offset: int = 0) -> bytes:
    """A record batch; only the fields that are read are filled."""
    return (
        _BATCH.pack(base_offset, BATCH_BYTES - 12 + len(payload), 0, _MAGIC, 0, 0, 0, 0, 0, -1, -1, -1, 1)
        + payload
    )


# -- Produce ---------------------------------------------------------------------------------------------------


def produce_request(
    version: int, correlation_id: int, client_id: str, topic: str, partition: int, records: bytes, acks: int
) -> bytes:
    """A Produce request for one partition."""
    flexible = version >= 9
    tags = b"\0" if flexible else b""
    return request(
        PRODUCE,
        version,
        correlation_id,
        client_id,
        b"\0" if flexible else b"\xff\xff",
        pack(">hi", acks, 30_000),
        _count(1, flexible),
        _text(topic, flexible),
        _count(1, flexible),
        pack(">i", partition),
        _count(len(records), flexible),
        records,
        tags * 3,
    )


@dataclass(slots=True)
class Produced:
    """The content of a Produce request."""

    acks: int
    topic: str
    partition: int
    records_at: int
    records_bytes: int


def read_produce(frame: bytes, head: Head) -> Produced:
    """Reads a Produce request."""
    flexible = head.version >= 9
    at = head.body_at + (1 if flexible else 2)
    acks = int.from_bytes(frame[at : at + 2], "big", signed=True)
    _, at = _read_count(frame, at + 6, flexible)
    topic, at = _read_text(frame, at, flexible)
    _, at = _read_count(frame, at, flexible)
    (partition,) = _INT32.unpack_from(frame, at)
    size, at = _read_count(frame, at + 4, flexible)
    return Produced(acks, topic, partition, at, size)


@lru_cache(maxsize=1024)
def _produce_answer(version: int, topic: str, partition: int, error_code: int) -> bytes:
    flexible = version >= 9
    tags = b"\0" if flexible else b""
    errors = b"" if version < 8 else _count(0, flexible) + (b"\0" if flexible else b"\xff\xff")
    return b"".join(
        (
            _count(1, flexible),
            _text(topic, flexible),
            _count(1, flexible),
            pack(">ihqq", partition, error_code, 7, -1),
            pack(">q", 0) if version >= 5 else b"",
            errors,
            tags * 2,
        )
    )


def produce_response(
    version: int, correlation_id: int, topic: str, partition: int, error_code: int, throttle_ms: int = 0
) -> bytes:
    """A Produce response for one partition."""
    tags = b"\0" if version >= 9 else b""
    answer = _produce_answer(version, topic, partition, error_code)
    return response(PRODUCE, version, correlation_id, answer, pack(">i", throttle_ms), tags)


def read_produce_error(version: int, frame: bytes, topic: str) -> int:
    """The error code of one partition of a topic in a response."""
    flexible = version >= 9
    at = (9 if flexible else 8) + len(_count(1, flexible) + _text(topic, flexible) + _count(1, flexible)) + 4
    return int.from_bytes(frame[at : at + 2], "big", signed=True)


def read_produce_throttle(version: int, frame: bytes) -> int:
    """The throttle time in a response."""
    at = len(frame) - 4 - (1 if version >= 9 else 0)
    return int(_INT32.unpack_from(frame, at)[0])


# -- Fetch -----------------------------------------------------------------------------------------------------


def fetch_request(
    version: int,
    correlation_id: int,
    client_id: str,
    *,
    topic: str | None,
    partition: int,
    max_wait_ms: int,
    max_bytes: int,
    session: tuple[int, int] = (0, -1),
) -> bytes:
    """A Fetch request for one partition; without a topic for the partitions of its session."""
    flexible = version >= 12
    tags = b"\0" if flexible else b""
    body = [pack(">iiiib", -1, max_wait_ms, 1, max_bytes, 0)]
    if version >= 7:
        body.append(pack(">ii", *session))
    if topic is None:
        body.append(_count(0, flexible))
    else:
        body += [_count(1, flexible), _text(topic, flexible), _count(1, flexible)]
        if version >= 12:
            body.append(pack(">iiqiqi", partition, -1, 0, -1, -1, max_bytes))
        elif version >= 9:
            body.append(pack(">iiqqi", partition, -1, 0, -1, max_bytes))
        elif version >= 5:
            body.append(pack(">iqqi", partition, 0, -1, max_bytes))
        else:
            body.append(pack(">iqi", partition, 0, max_bytes))
        body.append(tags * 2)
    if version >= 7:
        body.append(_count(0, flexible))
    if version >= 11:
        body.append(_text("", flexible))
    body.append(tags)
    return request(FETCH, version, correlation_id, client_id, *body)


@dataclass(slots=True)
class Fetched:
    """The content of a Fetch request."""

    max_wait_ms: int
    max_bytes: int
    session_id: int
    session_epoch: int
    topic: str | None
    partition: int


def read_fetch(frame: bytes, head: Head) -> Fetched:
    """Reads a Fetch request."""
    flexible = head.version >= 12
    at = head.body_at
    max_wait_ms, _, max_bytes = Struct(">iii").unpack_from(frame, at + 4)
    at += 17
    session = (0, -1)
    if head.version >= 7:
        session = Struct(">ii").unpack_from(frame, at)
        at += 8
    topics, at = _read_count(frame, at, flexible)
    topic, partition = None, 0
    if topics > 0:
        topic, at = _read_text(frame, at, flexible)
        _, at = _read_count(frame, at, flexible)
        (partition,) = _INT32.unpack_from(frame, at)
    return Fetched(max_wait_ms, max_bytes, session[0], session[1], topic, partition)


def fetch_response(
    version: int,
    correlation_id: int,
    *,
    topic: str | None,
    partition: int,
    records: bytes,
    session_id: int = 0,
    error_code: int = 0,
    throttle_ms: int = 0,
) -> bytes:
    """A Fetch response for one partition; without a topic for none."""
    flexible = version >= 12
    tags = b"\0" if flexible else b""
    body = [pack(">i", throttle_ms)]
    if version >= 7:
        body.append(pack(">hi", error_code, session_id))
    if topic is None:
        body.append(_count(0, flexible))
    else:
        body += [_count(1, flexible), _text(topic, flexible), _count(1, flexible)]
        body.append(pack(">ihqq", partition, 0, 9, 9))
        if version >= 5:
            body.append(pack(">q", 0))
        body.append(b"\0" if flexible else b"\xff\xff\xff\xff")
        if version >= 11:
            body.append(pack(">i", -1))
        body += [_count(len(records), flexible), records, tags * 2]
    body.append(tags)
    return response(FETCH, version, correlation_id, *body)


@dataclass(slots=True)
class Delivered:
    """The content of a Fetch response."""

    throttle_ms: int
    error_code: int
    session_id: int
    topic: str | None
    records_at: int
    records_bytes: int


def read_fetch_response(version: int, frame: bytes) -> Delivered:
    """Reads a Fetch response."""
    flexible = version >= 12
    at = 9 if flexible else 8
    (throttle_ms,) = _INT32.unpack_from(frame, at)
    at += 4
    error_code = session_id = 0
    if version >= 7:
        error_code, session_id = Struct(">hi").unpack_from(frame, at)
        at += 6
    topics, at = _read_count(frame, at, flexible)
    if topics <= 0:
        return Delivered(throttle_ms, error_code, session_id, None, at, 0)
    topic, at = _read_text(frame, at, flexible)
    _, at = _read_count(frame, at, flexible)
    at += 22 + (8 if version >= 5 else 0) + (1 if flexible else 4) + (4 if version >= 11 else 0)
    size, at = _read_count(frame, at, flexible)
    return Delivered(throttle_ms, error_code, session_id, topic, at, max(0, size))


# -- others ----------------------------------------------------------------------------------------------------


def heartbeat_request(version: int, correlation_id: int, client_id: str) -> bytes:
    """A heartbeat of a group's member."""
    flexible = version >= 4
    group = "group"
    body = _text(group, flexible) + pack(">i", 1) + _text("member", flexible)
    if version >= 3:
        body += b"\0" if flexible else b"\xff\xff"
    return request(HEARTBEAT, version, correlation_id, client_id, body, b"\0" if flexible else b"")


def heartbeat_response(version: int, correlation_id: int, throttle_ms: int = 0) -> bytes:
    """A response without an error."""
    tags = b"\0" if version >= 4 else b""
    return response(HEARTBEAT, version, correlation_id, pack(">ih", throttle_ms, 0), tags)


def throttle_in_head(key: int, version: int, frame: bytes) -> int:
    """The throttle time of a response that begins with it."""
    at = 9 if is_flexible(key, version) else 8
    return int(_INT32.unpack_from(frame, at)[0])


def api_versions_request(version: int, correlation_id: int, client_id: str) -> bytes:
    """An ApiVersions request."""
    body = b"" if version < 3 else _text("sim", True) + _text("1", True) + b"\0"
    return request(API_VERSIONS, version, correlation_id, client_id, body)


def api_versions_response(version: int, correlation_id: int, ranges: dict[int, tuple[int, int]]) -> bytes:
    """An ApiVersions response with these versions."""
    flexible = version >= 3
    tags = b"\0" if flexible else b""
    each = b"".join(pack(">hhh", key, *span) + tags for key, span in ranges.items())
    throttle = pack(">i", 0) if version >= 1 else b""
    return response(
        API_VERSIONS, version, correlation_id, b"\0\0", _count(len(ranges), flexible), each, throttle, tags
    )


class Frames:
    """Assembles frames from pieces.

    Attributes:
        taken_bytes: bytes of complete frames so far.
    """

    __slots__ = ("_left", "_pieces", "_size", "taken_bytes")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._left = 0  # missing bytes of the frame; 0: its size is not known
        self._size = 0
        self.taken_bytes = 0

    def add(self, data: bytes) -> list[bytes]:
        """Adds bytes. Returns the frames that are now complete."""
        if self._left > len(data):
            self._pieces.append(data)
            self._left -= len(data)
            return []
        if self._pieces:
            self._pieces.append(data)
            data = b"".join(self._pieces)
            self._pieces.clear()
        self._left = 0
        found = []
        at = 0
        end = len(data)
        while end - at >= 4:
            size = 4 + int.from_bytes(data[at : at + 4], "big", signed=True)
            if size < 4:
                raise ValueError(f"a frame of {size} bytes")
            if end - at < size:
                self._left = size - (end - at)
                break
            found.append(data if not at and size == end else data[at : at + size])
            at += size
        if at < end:
            self._pieces.append(data if not at else data[at:])
        return found

    @property
    def waiting_bytes(self) -> int:
        """The bytes of the incomplete frame."""
        return sum(map(len, self._pieces))
