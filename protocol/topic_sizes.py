"""Counts the bytes of records by topic in a Produce request or a Fetch response while it passes. Pure.

A walk skips records by their sizes, in any pieces, and keeps at most a topic's name. Of records only the heads of
batches are read: the length of each, and its number of records. Layouts follow the message definitions of
ProduceRequest and FetchResponse. A message that does not follow them ends the walk and has no other effect: the
broker or the client will report the fault.

In each partition at most the first `BATCHES_SEEN` batches are read. Records in later batches are assumed to have the
same size. A Produce request has one batch per partition, so its numbers are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, TypeAlias

from librt.strings import read_i16_be, read_i32_be

from protocol.api_keys import Api, ApiKey
from protocol.errors import MalformedBody, ProtocolError, TooManyElements
from protocol.headers import REPLY_HEAD
from protocol.plain_topics import (
    BATCH_HEAD_BYTES,
    BATCHES_SEEN,
    BEHIND_LENGTH,
    COUNT_AT,
    LENGTH_AT,
    MAGIC_AT,
    OF_FETCHED_PARTITION,
    OF_PRODUCED_PARTITION,
    OLD_HEAD_BYTES,
    PLAIN_BATCH,
    names_by_id,
    short_batches,
)

MAX_TOPIC_BYTES: Final = 249
"""Kafka's longest name of a topic; a longer one ends the walk."""

MAX_STEPS: Final = 20_000
"""The most topics, partitions and tags of one message that are walked, at about a microsecond each (hazard A27)."""

Found: TypeAlias = Callable[[bytes, int, int], None]
"""(the topic's name in the message, or the 16 bytes of its id; bytes of records; number of records)."""

_FIRST_NEGATIVE: Final = 1 << 31
"""Kafka reads a number of tags as an int32, and treats a negative number as no tags."""


class _Window:
    """The bytes that a walk can read: `data`, up to `end`; and the number of elements that it may still walk."""

    __slots__ = ("data", "end", "left_elements", "topic")

    def __init__(self) -> None:
        self.data = b""
        self.end = 0
        self.left_elements = MAX_STEPS
        self.topic: bytes | None = None

    def step(self) -> None:
        """Count an element."""
        self.left_elements -= 1
        if self.left_elements < 0:
            raise TooManyElements


_Walk: TypeAlias = Generator[tuple[int, int], int, int]
"""Yields the offset to continue at and the number of bytes needed there; receives their offset in the window."""


def _uvarint(window: _Window, at: int) -> Generator[tuple[int, int], int, tuple[int, int]]:
    value = length = 0
    while True:
        if at + length >= window.end:
            at = yield at, length + 1
        byte = window.data[at + length]
        value |= (byte & 0x7F) << 7 * length
        length += 1
        if byte < 0x80:
            return value & 0xFFFFFFFF, at + length
        if length == 5:
            raise MalformedBody("varint longer than five bytes")


def _int32(window: _Window, at: int) -> Generator[tuple[int, int], int, tuple[int, int]]:
    if at + 4 > window.end:
        at = yield at, 4
    value: int = read_i32_be(window.data, at)
    return value, at + 4


def _length(window: _Window, at: int, *, compact: bool) -> Generator[tuple[int, int], int, tuple[int, int]]:
    """The length of an array or of records; null is 0."""
    if compact:
        value, at = yield from _uvarint(window, at)
        return max(value - 1, 0), at
    value, at = yield from _int32(window, at)
    return max(value, 0), at


def _string_length(
    window: _Window, at: int, *, compact: bool
) -> Generator[tuple[int, int], int, tuple[int, int]]:
    if compact:
        return (yield from _length(window, at, compact=True))
    if at + 2 > window.end:
        at = yield at, 2
    length: int = read_i16_be(window.data, at)
    return max(length, 0), at + 2


def _tags(window: _Window, at: int) -> _Walk:
    if at < window.end and not window.data[at]:
        return at + 1
    count, at = yield from _uvarint(window, at)
    for _ in range(count if count < _FIRST_NEGATIVE else 0):
        window.step()
        _, at = yield from _uvarint(window, at)
        size, at = yield from _uvarint(window, at)
        at += size
    return at


def _called(window: _Window, at: int, api: Api) -> Generator[tuple[int, int], int, tuple[bytes, int]]:
    if names_by_id(api):
        length = 16
    else:
        length, at = yield from _string_length(window, at, compact=api.flexible)
        if length > MAX_TOPIC_BYTES:
            raise MalformedBody("a name that is too long")
    if at + length > window.end:
        at = yield at, length
    window.topic = window.data[at : at + length]
    return window.topic, at + length


def _records(window: _Window, at: int, size: int) -> Generator[tuple[int, int], int, tuple[int, int]]:
    """The number of records in these bytes, and where they end; see `records_at`."""
    left = size
    records = 0
    for _ in range(BATCHES_SEEN):
        if left < OLD_HEAD_BYTES:
            break
        wanted = min(left, BATCH_HEAD_BYTES)
        if at + wanted > window.end:
            at = yield at, wanted
        data = window.data
        length: int = read_i32_be(data, at + LENGTH_AT)
        if length <= 0:
            break
        if data[at + MAGIC_AT] < PLAIN_BATCH:
            records += 1
        elif left >= BATCH_HEAD_BYTES:
            count: int = read_i32_be(data, at + COUNT_AT)
            records += max(count, 0)
        step = BEHIND_LENGTH + length
        if step >= left:
            break
        at += step
        left -= step
    else:
        if left:
            records = round(records * size / (size - left))
    return records, at + left


def _short_in_window(
    window: _Window, at: int, left: int, fixed: int
) -> Generator[tuple[int, int], int, tuple[int, int, int, int]]:
    """As `short_batches`, for partitions that begin in the window, including the tags after them."""
    most = min(left, window.left_elements)
    left_of_most, at, size, records = short_batches(window.data, at, window.end, most, fixed)
    stepped = most - left_of_most
    if stepped:
        window.left_elements -= stepped
        at = yield from _tags(window, at - 1)
    return left - stepped, at, size, records


def _walk_produce(window: _Window, api: Api, found: Found) -> _Walk:
    flexible = api.flexible
    at = 0
    if flexible:
        at = yield from _tags(window, at)
    if api.version >= 3:
        length, at = yield from _string_length(window, at, compact=flexible)
        at += length
    topics, at = yield from _length(window, at + 2 + 4, compact=flexible)
    for _ in range(topics):
        window.step()
        called, at = yield from _called(window, at, api)
        partitions, at = yield from _length(window, at, compact=flexible)
        of_topic = records_of_topic = 0
        left = partitions
        while left > 0:
            window.step()
            size, at = yield from _length(window, at + 4, compact=flexible)
            records, at = yield from _records(window, at, size)
            of_topic += size
            records_of_topic += records
            if flexible:
                at = yield from _tags(window, at)
            left -= 1
            if flexible and left and size >= BATCH_HEAD_BYTES and 0 < at < window.end:
                left, at, size, records = yield from _short_in_window(window, at, left, OF_PRODUCED_PARTITION)
                of_topic += size
                records_of_topic += records
        if flexible:
            at = yield from _tags(window, at)
        if at > window.end:
            at = yield at, 0  # what has not come is not reported
        found(called, of_topic, records_of_topic)
    return at


def _walk_fetch(window: _Window, api: Api, found: Found) -> _Walk:
    version, flexible = api.version, api.flexible
    at = REPLY_HEAD.size
    if api.flexible_header:
        at = yield from _tags(window, at)
    at += (4 if version >= 1 else 0) + (2 + 4 if version >= 7 else 0)  # throttle time; error code, session
    # Index, error code, high watermark; last stable and log start offset.
    fixed = 4 + 2 + 8 + (8 if version >= 4 else 0) + (8 if version >= 5 else 0)
    topics, at = yield from _length(window, at, compact=flexible)
    for _ in range(topics):
        window.step()
        called, at = yield from _called(window, at, api)
        partitions, at = yield from _length(window, at, compact=flexible)
        of_topic = records_of_topic = 0
        left = partitions
        while left > 0:
            window.step()
            at += fixed
            if version >= 4:
                aborted, at = yield from _length(window, at, compact=flexible)
                if not flexible:
                    at += aborted * (8 + 8)
                for _ in range(aborted if flexible else 0):
                    window.step()
                    at = yield from _tags(window, at + 8 + 8)
            if version >= 11:
                at += 4  # preferred read replica
            size, at = yield from _length(window, at, compact=flexible)
            records, at = yield from _records(window, at, size)
            of_topic += size
            records_of_topic += records
            if flexible:
                at = yield from _tags(window, at)
            left -= 1
            if flexible and left and size >= BATCH_HEAD_BYTES and 0 < at < window.end:
                left, at, size, records = yield from _short_in_window(window, at, left, OF_FETCHED_PARTITION)
                of_topic += size
                records_of_topic += records
        if flexible:
            at = yield from _tags(window, at)
        if at > window.end:
            at = yield at, 0  # what has not come is not reported
        found(called, of_topic, records_of_topic)
    return at


def _walk_share_fetch(window: _Window, api: Api, found: Found) -> _Walk:
    at = yield from _tags(window, REPLY_HEAD.size)
    length, at = yield from _length(window, at + 4 + 2, compact=True)  # behind throttle time and error code
    at += length + (4 if api.version >= 1 else 0)  # message; lock timeout
    topics, at = yield from _length(window, at, compact=True)
    for _ in range(topics):
        window.step()
        called, at = yield from _called(window, at, api)
        partitions, at = yield from _length(window, at, compact=True)
        of_topic = records_of_topic = 0
        for _ in range(partitions):
            window.step()
            length, at = yield from _length(window, at + 4 + 2, compact=True)  # behind index and error code
            length, at = yield from _length(window, at + length + 2, compact=True)  # of the acknowledgements
            at = yield from _tags(window, at + length + 4 + 4)  # behind leader and epoch
            size, at = yield from _length(window, at, compact=True)
            records, at = yield from _records(window, at, size)
            of_topic += size
            records_of_topic += records
            acquired, at = yield from _length(window, at, compact=True)
            for _ in range(acquired):
                window.step()
                at = yield from _tags(window, at + 8 + 8 + 2)
            at = yield from _tags(window, at)
        at = yield from _tags(window, at)
        if at > window.end:
            at = yield at, 0  # what has not come is not reported
        found(called, of_topic, records_of_topic)
    return at


_WALKS: Final = {
    ApiKey.PRODUCE: _walk_produce,
    ApiKey.FETCH: _walk_fetch,
    ApiKey.SHARE_FETCH: _walk_share_fetch,
}


class TopicWalk:
    """Walks one request or response as its bytes arrive.

    Attributes:
        left_bytes: the number of next bytes to skip. The caller may skip some itself, and lower the number.
    """

    __slots__ = ("_kept", "_walk", "_wanted", "_window", "fault", "left_bytes")

    @property
    def topic(self) -> bytes | None:
        """The name or id of the current topic, or of the last one; None: no topic was received yet."""
        return self._window.topic

    def __init__(self, api: Api, found: Found) -> None:
        """Starts a walk.

        Args:
            api: for Produce, the first bytes are those of a request's body, or of its header's tags. For others,
                those of a response's size.
            found: called with each topic once it was received completely.
        """
        self._window = _Window()
        self._walk: _Walk | None = _WALKS[api.key](self._window, api, found)
        self._kept = b""
        self.fault: ProtocolError | None = None  # why the rest of the message can't be read
        self.left_bytes, self._wanted = next(self._walk)

    def take(self, data: bytes, at: int, end: int) -> None:
        """Read `data[at:end]`, the next bytes."""
        while self._walk is not None:
            if self.left_bytes:
                if self.left_bytes > end - at or (self.left_bytes == end - at and self._wanted):
                    self.left_bytes -= end - at
                    return
                at += self.left_bytes
                self.left_bytes = 0
            kept = self._kept
            if not kept and end - at >= self._wanted:
                at = self._send(data, at, end)
                continue
            piece = data[at : max(at, min(at + self._wanted - len(kept), end))]
            joined = kept + piece
            if len(joined) < self._wanted:
                self._kept = joined
                return
            at += len(piece)
            self._kept = joined[self._send(joined, 0, len(joined)) :]

    def _send(self, data: bytes, at: int, end: int) -> int:
        """Continue the walk; returns the offset where it stopped, at most `end`."""
        assert self._walk is not None
        window = self._window
        window.data, window.end = data, end
        try:
            at, self._wanted = self._walk.send(at)
        except StopIteration:
            self._walk = None
            return end
        except ProtocolError as exc:
            self._walk = None
            self.fault = exc
            return end
        finally:
            window.data = b""
        if at > end:
            self.left_bytes = at - end
            return end
        return at
