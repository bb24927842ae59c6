"""Messages of every API and version, made from their layouts with dice: valid ones, and ones whose lengths lie."""

from __future__ import annotations

from random import Random
from struct import pack
from typing import Any, Final
from uuid import UUID

from testkit import wire

NAMES: Final = (b"a", b"a", b"b", b"new", b"auto", b"__own", b"", b"n" * 126, b"n" * 249, b"n" * 250)
NO_UTF8: Final = b"\xff\xfe"
CLIENT_IDS: Final = (b"tests", b"tests", b"other", b"", None, b"\xffid", b"c" * 300)

_LENGTHS: Final = (0, 1, 2, 16, 61, 127, 128, 2**14, 2**15 - 1, 2**16 - 1, 2**21, 2**31 - 1, 2**31, 2**32 - 1)
_NUMBERS: Final = (0, 0, 1, 2, 3, 100, 127, -1, 2**15 - 1, 2**31 - 1, -(2**31), 2**62, -(2**63))
_BYTES: Final = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "bitfield": 4, "int64": 8, "float64": 8}


LIES: Final = (0, 0, 0.02, 0.05, 0.1, 0.3)
"""Shares of lengths and numbers that are not what they should be."""


def version_of(dice: Random, name: str) -> int:
    """Mostly one of those that are in use."""
    versions = wire.versions(name)
    return dice.choice(versions[-4:] if dice.random() < 0.6 else versions)


class Writer:
    """Writes one message.

    Attributes:
        out: what is written.
    """

    def __init__(self, dice: Random, version: int, *, flexible: bool, lies: float) -> None:
        """Begin.

        Args:
            dice: choose values and lies.
            version: of the message.
            flexible: whether it has tags and compact types.
            lies: the share of lengths and numbers that are not what they should be.
        """
        self.out = bytearray()
        self._dice = dice
        self._version = version
        self._flexible = flexible
        self._lies = lies

    def struct(self, struct: Any) -> None:
        """All fields of a struct."""
        tagged = []
        for field in struct._fields:
            if not field.for_version_q(self._version):
                continue
            if field.tagged_field_q(self._version):
                tagged.append(field)
            else:
                self._field(field)
        if self._flexible:
            self._tags(tagged)

    def _field(self, field: Any) -> None:
        dice = self._dice
        null = field.nullable_for_version_q(self._version) and dice.random() < 0.4
        if field.is_array():
            self._array(field, null=null)
        elif field.is_struct():
            if field.nullable_for_version_q(self._version):
                self._number(-1 if null else 1, 1)
            if not null:
                self.struct(field)
        elif field.type_str == "string":
            name = NO_UTF8 if dice.random() < self._lies else dice.choice(NAMES)
            self._string(None if null else name)
        elif field.type_str in ("bytes", "records"):
            self._bytes(None if null else self._records())
        elif field.type_str == "uuid":
            self.out += dice.choice((bytes(16), bytes(15) + b"\7", dice.randbytes(16)))
        elif field.type_str in ("int8", "bool"):
            self._number(dice.choice((0, 1, 2, -1)), 1)
        else:
            self._number(dice.choice(_NUMBERS), _BYTES[field.type_str])

    def _array(self, field: Any, *, null: bool) -> None:
        dice = self._dice
        count = -1 if null else dice.choice((0, 1, 1, 1, 2, 3) if field.is_struct_array() else (0, 1, 2))
        if count == 3 and len(self.out) < 400 and dice.random() < 0.05:
            count = dice.choice((6, 127, 200))
        self._length(count, 4)
        for _ in range(count):
            if field.is_struct_array():
                self.struct(field.array_of)
            else:
                self._field(field.array_of)

    def _string(self, value: bytes | None) -> None:
        self._length(-1 if value is None else len(value), 2)
        self.out += value or b""

    def _bytes(self, value: bytes | None) -> None:
        self._length(-1 if value is None else len(value), 4)
        self.out += value or b""

    def _length(self, length: int, size_bytes: int) -> None:
        dice = self._dice
        if dice.random() < self._lies:
            length = dice.choice((-1, -1, -1, -1, 0, 0, length - 1, length + 1, *_LENGTHS))
        if self._flexible:
            number = wire.uvarint((length + 1) & 0xFFFFFFFF)
            if dice.random() < self._lies / 4:  # as long as five bytes may be, or longer
                number = number[:-1] + bytes([number[-1] | 0x80]) + b"\x80" * dice.choice((0, 2, 4)) + b"\0"
            self.out += number
        else:
            self._number(length, size_bytes)

    def _number(self, value: int, size_bytes: int) -> None:
        self.out += (value & (1 << 8 * size_bytes) - 1).to_bytes(size_bytes, "big")

    def _tags(self, fields: list[Any]) -> None:
        dice = self._dice
        chosen = [field for field in fields if dice.random() < 0.3]
        if not chosen and dice.random() >= self._lies:
            self.out.append(0)
            return
        unknown = dice.random() < 0.2 + self._lies
        self._unsigned(len(chosen) + unknown)
        before = self.out
        for field in chosen:
            self.out = bytearray()
            self._field(field)
            value, self.out = self.out, before
            self._unsigned(field.tag)
            self._unsigned(len(value))
            self.out += value
        if unknown:
            self._unsigned(dice.choice((7, 9_999, 10_000)))
            self._unsigned(3)
            self.out += b"tag"

    def _unsigned(self, value: int) -> None:
        lies = self._dice.random() < self._lies
        self.out += wire.uvarint(self._dice.choice(_LENGTHS) if lies else value)

    def _records(self) -> bytes:
        """Batches with heads, messages of the format before, and what is neither."""
        dice = self._dice
        out = bytearray()
        for _ in range(dice.choice((0, 1, 1, 1, 1, 2, 5, 6))):
            body = bytes(dice.choice((0, 3, 40, 200)))
            length, magic, count = 49 + len(body), 2, dice.choice((1, 2, 255, 70_000))
            if dice.random() < self._lies * 4:
                length = dice.choice((0, -1, 5, 48, length - 1, length + 1, 2**31 - 1, -(2**31)))
            if dice.random() < self._lies * 4:
                magic, count = dice.choice((0, 1, 2, 3, 255)), dice.choice((0, -1, 2**31 - 1, -(2**31)))
            out += pack(">qiiB", 0, length, 0, magic) + bytes(40) + pack(">i", count) + body
        return bytes(out[: -dice.randrange(1, 60)]) if dice.random() < 0.1 else bytes(out)


def request(
    dice: Random, name: str, version: int, *, correlation_id: int, client_id: bytes | None = b"tests", lies: float = 0
) -> bytes:
    """A request frame, whose own size is right."""
    struct, flexible = wire.layout(name, version, "Request")
    writer = Writer(dice, version, flexible=flexible, lies=lies)
    writer.struct(struct)
    tags = [(1, b"header")] if flexible and dice.random() < 0.05 else []
    key = wire.api_key_of(name)
    head = wire.head(
        key, version, flexible=flexible, correlation_id=correlation_id, client_id=client_id, header_tags=tags
    )
    return wire.framed(head + writer.out)


def response(dice: Random, name: str, version: int, *, correlation_id: int, lies: float = 0) -> bytes:
    """A response frame, whose own size is right."""
    struct, flexible = wire.layout(name, version, "Response")
    writer = Writer(dice, version, flexible=flexible, lies=lies)
    writer.struct(struct)
    header = b"\0" if flexible and name != "ApiVersions" else b""
    return wire.framed(pack(">i", correlation_id) + header + writer.out)


def usual_produce(dice: Random, version: int, *, correlation_id: int) -> bytes:
    """What producers send: one topic, mostly, with a batch for each of few partitions."""
    topics: list[dict[str, Any]] = []
    for name in ("a",) if dice.random() < 0.8 else ("a", "b", "new"):
        records = [_batch(dice) for _ in range(dice.choice((1, 1, 1, 3, 130)))]
        partitions = [{"index": at, "records": each} for at, each in enumerate(records)]
        topics.append({"name": name, "topic_id": UUID(int=7), "partition_data": partitions})
    acks = dice.choice((-1, -1, 1, 0))
    frame = wire.request(
        "Produce", version, correlation_id=correlation_id, acks=acks, timeout_ms=9, topic_data=topics
    )
    return _misnamed(dice, frame)


def usual_fetch(dice: Random, version: int, *, correlation_id: int) -> bytes:
    """What consumers ask for; seldom its last topics are missing."""
    topics = [
        {
            "topic": name,
            "topic_id": UUID(int=7),
            "partitions": [{"partition": at} for at in range(dice.choice((1, 9)))],
        }
        for name in dice.choice(("a", "a", "ab", "ba"))
    ]
    most = {"min_bytes": dice.choice((1, 2_000)), "max_bytes": dice.choice((500, 50_000_000))}
    frame = wire.request("Fetch", version, correlation_id=correlation_id, topics=topics, **most)
    return wire.framed(frame[4 : -dice.randrange(1, 9)]) if dice.random() < 0.2 else frame


def usual_fetched(dice: Random, version: int, *, correlation_id: int) -> bytes:
    """What brokers answer: batches of few partitions, and seldom a leader's address."""
    responses = []
    for name in ("a",) if dice.random() < 0.8 else ("a", "b"):
        records = [_batch(dice) * dice.choice((0, 1, 1, 2, 9)) for _ in range(dice.choice((1, 1, 3, 130)))]
        partitions = [{"partition_index": at, "records": each or None} for at, each in enumerate(records)]
        responses.append({"topic": name, "topic_id": UUID(int=7), "partitions": partitions})
    fields: dict[str, Any] = {"responses": responses}
    if version >= 16 and dice.random() < 0.3:
        fields["node_endpoints"] = [{"node_id": at, "host": "broker", "port": 9_092, "rack": None} for at in (1, 3)]
    return _misnamed(dice, wire.response("Fetch", version, correlation_id=correlation_id, **fields))


def _misnamed(dice: Random, frame: bytes) -> bytes:
    """Seldom with another length of a topic's name."""
    if dice.random() < 0.9:
        return frame
    return frame.replace(b"\2a", bytes([dice.choice((0, 0, 1, 3, 127, 255))]) + b"a", 1)


def _batch(dice: Random) -> bytes:
    body = bytes(dice.choice((12, 12, 60, 300, 3_000, 40_000)))
    return pack(">qiiB", 0, 49 + len(body), 0, 2) + bytes(40) + pack(">i", dice.choice((1, 3, 300))) + body


def damaged(dice: Random, frame: bytes) -> bytes:
    """The frame after one to three changes anywhere behind its size, which mostly fits again."""
    payload = frame[4:]
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        at = dice.randrange(len(payload) + 1)
        length = dice.choice(_LENGTHS)
        piece = dice.choice(
            (b"\0", b"\xff", b"\x80" * 6, dice.randbytes(2), wire.uvarint(length), pack(">I", length), pack(">H", 1))
        )
        change = dice.randrange(5)
        if change == 0:
            payload = payload[:at] + piece + payload[at + len(piece) :]
        elif change == 1:
            payload = payload[:at] + piece + payload[at:]
        elif change == 2:
            payload = payload[:at] + payload[at + len(piece) + 1 :]
        elif change == 3:
            payload = payload[:at] + payload[max(0, at - 8) : at] * 4 + payload[at:]
        else:
            payload = payload[:at]
    if dice.random() < 0.1:
        return pack(">I", (len(payload) + dice.choice((-1, 1, 2**20, 2**31))) & 0xFFFFFFFF) + payload
    return wire.framed(payload)
