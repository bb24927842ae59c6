"""Responses that end with brokers' addresses: finds this end and replaces it. Pure.

Responses to Fetch from v16 on (KIP-951) and to share groups (KIP-932) have brokers' addresses at the very end, after
the records. A walk skips the records by their sizes, in any pieces, and copies nothing. Only the part after the last
topic, the tail, is kept and rewritten. Layouts follow the message definitions of FetchResponse, ShareFetchResponse
and ShareAcknowledgeResponse.

The size at the front of a response may already be sent when its tail arrives. Then the new tail must have exactly the
announced length. Space that is left is filled with a tagged field that no client knows (KIP-482), and addresses that
do not fit are left out. The client still gets the leader's id, and finds the address in Metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, TypeAlias

from protocol.addresses import Advertise
from protocol.api_keys import Api, ApiKey
from protocol.errors import MalformedBody, TooManyElements
from protocol.headers import REPLY_HEAD
from protocol.primitives import (
    framed,
    read_array_length,
    read_int32,
    read_string,
    read_uvarint,
    skip,
    skip_string,
    skip_tags,
    write_array_length,
    write_int32,
    write_nullable_string,
    write_uvarint,
)

FIRST_FETCH_VERSION: Final = 16
"""From this version on a Fetch response may contain brokers' addresses."""

MAX_TAIL_BYTES: Final = 1_048_576
"""Enough for the addresses of some 10,000 brokers; no broker sends a longer tail."""

_SIZE_BYTES: Final = 4
_NODE_ENDPOINTS_TAG: Final = 0
_FILLER_TAG: Final = 10_000
"""Far above what Kafka's definitions use, and two bytes long."""
_MAX_TAGS: Final = 100
_FILLER_HEAD_BYTES: Final = 3  # the tag's number, and a length of one byte

_Received: TypeAlias = tuple[bytes, int, int]
"""Bytes, the offset of the first one that was not skipped yet, and their end."""

_Walk: TypeAlias = Generator[int, _Received, int]
"""Yields the offset where it must continue, after the received bytes or at an incomplete number. Returns the tail's
offset."""


def _number(data: bytes, at: int, end: int) -> tuple[int, int] | None:
    """As `read_uvarint`; None when the number is not complete."""
    if at >= end:
        return None
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for index in range(1, 5):
        if at + index >= end:
            return None
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & 0xFFFFFFFF, at + index + 1
    raise MalformedBody("varint longer than five bytes")


def _step_over_tags(count: int, data: bytes, at: int, end: int) -> Generator[int, _Received, _Received]:
    for _ in range(count):
        while (read := _number(data, at, end)) is None:
            data, at, end = yield at
        at = read[1]
        while (read := _number(data, at, end)) is None:
            data, at, end = yield at
        at = read[1] + read[0]
    return data, at, end


def _step_over_tag_section(data: bytes, at: int, end: int) -> Generator[int, _Received, _Received]:
    while (read := _number(data, at, end)) is None:
        data, at, end = yield at
    return (yield from _step_over_tags(read[0], data, read[1], end))


def _step_over_head(data: bytes, at: int, end: int) -> Generator[int, _Received, _Received]:
    """Size, correlation id and the header's tags."""
    return (yield from _step_over_tag_section(data, at + REPLY_HEAD.size, end))


def _walk_fetch(data: bytes, at: int, end: int) -> _Walk:
    data, at, end = yield from _step_over_head(data, at, end)
    at += 4 + 2 + 4  # throttle_time_ms, error code, session id
    while (read := _number(data, at, end)) is None:
        data, at, end = yield at
    topics, at = read
    for _ in range(topics - 1):
        at += 16
        while (read := _number(data, at, end)) is None:
            data, at, end = yield at
        partitions, at = read
        for _ in range(partitions - 1):
            at += 4 + 2 + 8 + 8 + 8  # index, error code, high watermark, last stable and log start offset
            while (read := _number(data, at, end)) is None:
                data, at, end = yield at
            aborted, at = read
            for _ in range(aborted - 1):
                at += 8 + 8
                while (read := _number(data, at, end)) is None:
                    data, at, end = yield at
                if read[0]:
                    data, at, end = yield from _step_over_tags(read[0], data, read[1], end)
                else:
                    at = read[1]
            at += 4  # preferred read replica
            while (read := _number(data, at, end)) is None:
                data, at, end = yield at
            at = read[1] + read[0] - (1 if read[0] else 0)  # records
            while (read := _number(data, at, end)) is None:
                data, at, end = yield at
            if read[0]:
                data, at, end = yield from _step_over_tags(read[0], data, read[1], end)
            else:
                at = read[1]
        data, at, end = yield from _step_over_tag_section(data, at, end)
    return at


def _step_over_string(data: bytes, at: int, end: int) -> Generator[int, _Received, _Received]:
    """A compact string, or records: null or not."""
    while (read := _number(data, at, end)) is None:
        data, at, end = yield at
    return data, read[1] + max(read[0] - 1, 0), end


def _walk_share(data: bytes, at: int, end: int, *, lock_timeout: bool, records: bool) -> _Walk:
    """ShareFetch with `records`, ShareAcknowledge without."""
    data, at, end = yield from _step_over_head(data, at, end)
    data, at, end = yield from _step_over_string(data, at + 4 + 2, end)  # behind throttle_time_ms, error code
    if lock_timeout:
        at += 4
    while (read := _number(data, at, end)) is None:
        data, at, end = yield at
    topics, at = read
    for _ in range(topics - 1):
        at += 16
        while (read := _number(data, at, end)) is None:
            data, at, end = yield at
        partitions, at = read
        for _ in range(partitions - 1):
            data, at, end = yield from _step_over_string(data, at + 4 + 2, end)  # behind index, error code
            if records:
                data, at, end = yield from _step_over_string(data, at + 2, end)  # of the acknowledgements
            at += 4 + 4  # leader and epoch
            data, at, end = yield from _step_over_tag_section(data, at, end)
            if records:
                data, at, end = yield from _step_over_string(data, at, end)
                while (read := _number(data, at, end)) is None:
                    data, at, end = yield at
                acquired, at = read
                for _ in range(acquired - 1):
                    at += 8 + 8 + 2
                    data, at, end = yield from _step_over_tag_section(data, at, end)
            data, at, end = yield from _step_over_tag_section(data, at, end)
        data, at, end = yield from _step_over_tag_section(data, at, end)
    return at


def _plain_fetch_tail(data: bytes, at: int) -> int | None:
    """The walk's result for the most common kind of whole response, in a fifth of the time; None: a walk is needed.

    That kind has no tags, no aborted transactions, and at most 126 topics.
    """
    try:
        if data[at + 8]:
            return None
        topics = data[at + 19]
        if topics > 127:
            return None
        at += 20
        for _ in range(topics - 1):
            partitions = data[at + 16]
            at += 17
            if partitions > 127:
                partitions = partitions & 0x7F | data[at] << 7
                if partitions >= 0x4000:
                    return None
                at += 1
            for _ in range(partitions - 1):
                if data[at + 30] > 1:
                    return None
                at += 35
                size = data[at]  # the size of the records plus one; 0 for null
                if size < 0x80:
                    at += size or 1
                else:
                    size = size & 0x7F | data[at + 1] << 7
                    if size < 0x4000:
                        at += size + 1
                    else:
                        size = size & 0x3FFF | data[at + 2] << 14
                        if size >= 0x200000:
                            return None
                        at += size + 2
                if data[at]:
                    return None
                at += 1
            if data[at]:
                return None
            at += 1
    except IndexError:
        return None
    return at


def _walk(api: Api, data: bytes, at: int, end: int) -> _Walk:
    if api.key is ApiKey.FETCH:
        return _walk_fetch(data, at, end)
    records = api.key is ApiKey.SHARE_FETCH
    return _walk_share(data, at, end, lock_timeout=api.version >= (1 if records else 2), records=records)


class TailFinder:
    """Finds the tail of one response.

    Attributes:
        left_bytes: the number of next bytes to skip. The caller may skip some itself, and lower the number.
    """

    __slots__ = ("_api", "_incomplete", "_over", "_walk", "left_bytes")

    def __init__(self, api: Api) -> None:
        self._api = api
        self._walk: _Walk | None = None
        self._over = False
        self._incomplete = b""  # the first bytes of a number
        self.left_bytes = 0

    def find(self, data: bytes, at: int, end: int) -> int | None:
        """Read `data[at:end]`, the next bytes of the response; the first are those of its size.

        Returns:
            The offset of the tail, at most `end`; None when it comes later. Do not call it again once it is found.

        Raises:
            ProtocolError: the response cannot be read.
        """
        if self.left_bytes > end - at:
            self.left_bytes -= end - at
            return None
        at += self.left_bytes
        self.left_bytes = 0
        if self._incomplete:
            before = len(self._incomplete)
            joined = self._incomplete + data[at : min(at + 5, end)]
            wanted = self._step(joined, 0, len(joined))
            if wanted < before:
                self._incomplete = joined
                return None
            self._incomplete = b""
            at += wanted - before
        if not self._over and at < end:
            at = self._step(data, at, end)
            if not self._over and at < end:
                self._incomplete = data[at:end]
                return None
        if at > end:
            self.left_bytes = at - end
            return None
        return at if self._over else None

    def _step(self, data: bytes, at: int, end: int) -> int:
        try:
            if self._walk is None:
                self._walk = _walk(self._api, data, at, end)
                return next(self._walk)
            return self._walk.send((data, at, end))
        except StopIteration as over:
            self._over = True
            return int(over.value)


class NodeEndpoints:
    """Rewrites the tails of one API in one version for the clients of one listener."""

    def __init__(self, api: Api, advertise: Advertise, growth_bytes: Callable[[], int]) -> None:
        """Keeps no state of a response.

        Args:
            api: the version.
            advertise: returns the gateway's address of a broker.
            growth_bytes: returns how much longer a response may become for the gateway's addresses.
        """
        self._api = api
        self._advertise = advertise
        self._tagged = api.key is ApiKey.FETCH
        self._plain = {b"\0"} if self._tagged else {b"\1\0", b"\0\0"}
        self.growth_bytes = growth_bytes

    def begin(self) -> TailFinder:
        """A finder for the next response."""
        return TailFinder(self._api)

    def passes(self, data: bytes, at: int, end: int) -> bool:
        """Whether the whole response `data[at:end]` has no broker's address."""
        if self._tagged:
            tail_at = _plain_fetch_tail(data, at)
            if tail_at == end - 1:
                return data[tail_at] == 0
        return self.is_plain(data[self.find(data, at, end) : end])

    def find(self, data: bytes, at: int, end: int) -> int:
        """The offset of the tail of the whole response `data[at:end]`."""
        tail_at = TailFinder(self._api).find(data, at, end)
        if tail_at is None:
            raise MalformedBody("a reply that ends before its node endpoints")
        return tail_at

    def rewrite_reply(self, frame: bytes) -> bytes:
        """A whole response with the gateway's addresses."""
        tail_at = self.find(frame, 0, len(frame))
        tail = frame[tail_at:]
        return frame if self.is_plain(tail) else framed(frame[_SIZE_BYTES:tail_at] + self.rewrite(tail))

    def is_plain(self, tail: bytes) -> bool:
        """Whether this tail is empty: no broker's address and no other field."""
        return tail in self._plain

    def rewrite(self, tail: bytes, size_bytes: int | None = None) -> bytes:
        """The tail with the gateway's addresses.

        Args:
            tail: the broker's tail.
            size_bytes: the required length of the result, at least that of `tail`; None: any length.

        Raises:
            ProtocolError: the tail cannot be read.
        """
        if size_bytes == len(tail) and self.is_plain(tail):
            return tail
        brokers: list[bytes] = []
        at = 0
        if not self._tagged:
            brokers, at = self._our_brokers(tail, at)
        count, at = read_uvarint(tail, at)
        if count > _MAX_TAGS:
            raise TooManyElements
        tags: dict[int, bytes] = {}
        for _ in range(count):
            tag, at = read_uvarint(tail, at)
            size, at = read_uvarint(tail, at)
            end = skip(tail, at, size)
            if self._tagged and tag == _NODE_ENDPOINTS_TAG:
                brokers, after = self._our_brokers(tail, at)
                if after != end:
                    raise MalformedBody("node endpoints do not fill their tag")
            else:
                tags[tag] = tail[at:end]
            at = end
        if at != len(tail):
            raise MalformedBody("bytes behind the tags of a reply")
        new = self._written(brokers, tags)
        if size_bytes is None:
            return new
        while len(new) > size_bytes and brokers:
            brokers.pop()
            new = self._written(brokers, tags)
        return self._filled(new, brokers, tags, size_bytes - len(new))

    def _our_brokers(self, tail: bytes, at: int) -> tuple[list[bytes], int]:
        count, at = read_array_length(tail, at, compact=True)
        ours: list[bytes] = []
        for _ in range(count):
            broker_id, at = read_int32(tail, at)
            host, at = read_string(tail, at, compact=True)
            port, at = read_int32(tail, at)
            rest = at
            at = skip_tags(tail, skip_string(tail, at, compact=True), most=_MAX_TAGS)
            address = self._advertise(broker_id, host.decode("utf-8", "replace"), port)
            if address is not None:
                broker = bytearray()
                write_int32(broker, broker_id)
                write_nullable_string(broker, address[0].encode(), compact=True)
                write_int32(broker, address[1])
                ours.append(bytes(broker) + tail[rest:at])
        return ours, at

    def _written(self, brokers: list[bytes], tags: dict[int, bytes], wider: int = 0) -> bytes:
        """The tail. Its first number takes `wider` more bytes than needed, which every reader must accept."""
        array = bytearray()
        write_array_length(array, len(brokers), compact=True)
        array += b"".join(brokers)
        if self._tagged and brokers:
            tags = {_NODE_ENDPOINTS_TAG: bytes(array), **tags}
        out = bytearray() if self._tagged else array
        write_uvarint(out, len(tags))
        for tag in sorted(tags):
            write_uvarint(out, tag)
            write_uvarint(out, len(tags[tag]))
            out += tags[tag]
        return _widened(out, wider)

    def _filled(self, tail: bytes, brokers: list[bytes], tags: dict[int, bytes], missing_bytes: int) -> bytes:
        """The tail, lengthened by `missing_bytes`."""
        if missing_bytes < 0:
            raise MalformedBody("a tail that cannot be made shorter")
        if missing_bytes <= _FILLER_HEAD_BYTES:
            return self._written(brokers, tags, missing_bytes)
        filler = next(tag for tag in range(_FILLER_TAG, 2 * _FILLER_TAG) if tag not in tags)
        length = missing_bytes - _FILLER_HEAD_BYTES
        length -= _length_of(length) - 1
        filled = {**tags, filler: b"\0" * length}
        short_bytes = len(tail) + missing_bytes - len(self._written(brokers, filled))
        return self._written(brokers, filled, short_bytes)


def _length_of(number: int) -> int:
    return max(1, (number.bit_length() + 6) // 7)


def _widened(tail: bytearray, wider: int) -> bytes:
    if not wider:
        return bytes(tail)
    end = next(at for at in range(len(tail)) if tail[at] < 0x80)
    return (
        bytes(tail[:end]) + bytes([tail[end] | 0x80]) + b"\x80" * (wider - 1) + b"\0" + bytes(tail[end + 1 :])
    )
