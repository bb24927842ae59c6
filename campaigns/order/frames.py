"""Requests and replies that carry a number. Frames are made once and then only patched.

Every request to the broker contains the next number of its connection; the highest bits are the connection's number.
Its correlation id follows from the number, and its reply repeats the number. So both ends know which frame must come
next.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from testkit import wire

_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_MARK: Final = 0x0123_4567_89AB_CDEF
_MARK_BYTES: Final = _INT64.pack(_MARK)
_CORRELATION_AT: Final = 8
_REPLY_CORRELATION_AT: Final = 4
_SALT: Final = 0x9E37_79B1

CLIENT_ID_BYTES: Final = 7


def correlation_id(number: int) -> int:
    """The correlation id of request `number`. Consecutive ids are far apart and differ between connections."""
    return (number * _SALT + (number >> 40) * 7_919) & 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request.

    Attributes:
        name: name in the results.
        request, reply: frames with a placeholder for the number; no reply for acks=0.
        request_at, reply_at: offset of the number; -1 for a reply that the gateway makes itself.
        share: its share of all requests, in parts of a thousand.
        forwarded: whether the broker sees it.
    """

    name: str
    request: bytes
    reply: bytes
    request_at: int
    reply_at: int
    share: int
    forwarded: bool = True

    def request_frame(self, client_id: bytes, number: int) -> bytes:
        """The request, of a client with an id of seven letters."""
        frame = bytearray(self.request)
        _INT32.pack_into(frame, _CORRELATION_AT, correlation_id(number))
        frame[14 : 14 + CLIENT_ID_BYTES] = client_id
        if self.request_at >= 0:
            _INT64.pack_into(frame, self.request_at, number)
        return bytes(frame)

    def reply_frame(self, correlation: int, number: int) -> bytes:
        """The broker's reply."""
        frame = bytearray(self.reply)
        _INT32.pack_into(frame, _REPLY_CORRELATION_AT, correlation)
        _INT64.pack_into(frame, self.reply_at, number)
        return bytes(frame)

    def number_of_request(self, frame: bytes) -> int:
        """The number in a request, as the broker reads it."""
        return int(_INT64.unpack_from(frame, self.request_at)[0])

    def number_of_reply(self, frame: bytes) -> int:
        """The number in a reply, as the client reads it."""
        return int(_INT64.unpack_from(frame, self.reply_at)[0])


def _kind(name: str, request: bytes, reply: bytes, share: int) -> Kind:
    return Kind(name, request, reply, request.index(_MARK_BYTES), reply.find(_MARK_BYTES), share)


def _produce(name: str, acks: int, size: int, share: int) -> Kind:
    records = _MARK_BYTES + bytes(size)
    request = wire.request(
        "Produce",
        9,
        client_id="x" * CLIENT_ID_BYTES,
        acks=acks,
        timeout_ms=1_000,
        topic_data=[{"name": "t", "partition_data": [{"index": 0, "records": records}]}],
    )
    partition = {"index": 0, "base_offset": _MARK}
    reply = wire.response("Produce", 9, responses=[{"name": "t", "partition_responses": [partition]}])
    return _kind(name, request, reply if acks else b"", share)


def _fetch(name: str, version: int, size: int, share: int) -> Kind:
    partition = {"partition": 0, "fetch_offset": _MARK, "partition_max_bytes": 1_000}
    request = wire.request(
        "Fetch",
        version,
        client_id="x" * CLIENT_ID_BYTES,
        max_bytes=1_000,
        session_epoch=-1,
        topics=[{"topic": "t", "partitions": [partition]}],
    )
    answered = {"partition_index": 0, "high_watermark": _MARK, "records": bytes(size)}
    reply = wire.response("Fetch", version, responses=[{"topic": "t", "partitions": [answered]}])
    return _kind(name, request, reply, share)


def _heartbeat(share: int) -> Kind:
    request = wire.request(
        "Heartbeat", 4, client_id="x" * CLIENT_ID_BYTES, group_id="g", generation_id=1, member_id="m"
    )
    reply = wire.response("Heartbeat", 4)
    # No receiver reads bytes behind the message, so the number is there.
    return _kind("heartbeat", _longer(request), _longer(reply), share)


def _longer(frame: bytes) -> bytes:
    return wire.framed(frame[4:] + _MARK_BYTES)


def _metadata(share: int) -> Kind:
    """Metadata, which the gateway collects, rewrites and re-encodes. The number is in an unknown tagged field."""
    request = wire.request(
        "Metadata", 12, client_id="x" * CLIENT_ID_BYTES, topics=[], header_tags=[(99, _MARK_BYTES)]
    )
    reply = wire.response(
        "Metadata",
        12,
        brokers=[{"node_id": 1, "host": "127.0.0.1", "port": 9_092}],
        cluster_id="order",
        controller_id=1,
        topics=[],
        header_tags=[(99, _MARK_BYTES)],
    )
    return _kind("metadata", request, reply, share)


def _local(share: int) -> Kind:
    """An ApiVersions request in a version that the gateway itself refuses."""
    frame = wire.framed(
        wire.head(18, 99, flexible=True, client_id="x" * CLIENT_ID_BYTES) + b"\x04abc\x041.0\x00"
    )
    return Kind("answered by the gateway", frame, b"", -1, -1, share, forwarded=False)


def kinds() -> list[Kind]:
    """All kinds; the shares add up to a thousand."""
    return [
        _produce("produce", -1, 60, 330),
        _produce("produce, larger", 1, 400, 60),
        _produce("produce without acks", 0, 40, 100),
        _fetch("fetch v12", 12, 100, 200),
        _fetch("fetch v4", 4, 300, 50),
        _heartbeat(235),
        _metadata(5),
        _local(20),
    ]
