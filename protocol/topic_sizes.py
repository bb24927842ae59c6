"""Whose records a Produce request or the answer to a Fetch or ShareFetch holds, found as its bytes pass. Pure.

A walk steps over records by their sizes, in any pieces, and keeps at most a topic's name of what it was given. Of
records nothing is read but the heads of batches: how long each is, and how many records are in it. Layouts follow
the message definitions of ProduceRequest and FetchResponse. What does not follow them ends the walk and nothing else:
it is for the broker, or the client, to say what is wrong.

Of a partition the first batches are looked at, at most `BATCHES_SEEN`; what is behind them is taken to hold records
of the same size. A Produce has one batch for each partition, so its numbers are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from struct import Struct
from typing import Final, TypeAlias

from protocol.api_keys import Api, ApiKey
from protocol.errors import MalformedBody, ProtocolError, TooManyElements
from protocol.headers import REPLY_HEAD

FIRST_FETCH_WITH_TOPIC_IDS: Final = 13
FIRST_PRODUCE_WITH_TOPIC_IDS: Final = 13

_FIRST_WITH_TOPIC_IDS: Final = {
    ApiKey.PRODUCE: FIRST_PRODUCE_WITH_TOPIC_IDS,
    ApiKey.FETCH: FIRST_FETCH_WITH_TOPIC_IDS,
    ApiKey.SHARE_FETCH: 0,
}

BATCHES_SEEN: Final = 4

MAX_TOPIC_BYTES: Final = 249
"""Kafka's longest name of a topic; a longer one ends the walk."""

MAX_STEPS: Final = 20_000
"""Topics, partitions and tags of one message that are stepped over, at about a microsecond each (hazard A27)."""

Found: TypeAlias = Callable[[bytes, int, int], None]
"""(what the message calls the topic: a name, or 16 bytes of an id; bytes of records; records)."""

_FIRST_NEGATIVE: Final = 1 << 31
"""Kafka reads a number of tags as an int32, and a negative one as none."""

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_BATCH: Final = Struct(">i4xb40xi")
"""Length, magic and number of records, from the length of a batch on."""
unpack_batch: Final = _BATCH.unpack_from
"""See `_BATCH`."""
BATCH_HEAD_BYTES: Final = 61
"""Of a batch, up to its first record."""
_LENGTH_AT: Final = 8
_BEHIND_LENGTH: Final = 12
_MAGIC_AT: Final = 16
_COUNT_AT: Final = 57
_OLD_HEAD_BYTES: Final = 17
"""Of a message in the format before batches, up to its magic."""
_PLAIN_BATCH: Final = 2
_OF_PRODUCED_PARTITION: Final = 4
_OF_FETCHED_PARTITION: Final = 35
"""Bytes of a partition before its records, where nothing in it is optional."""
_ABORTED_AT: Final = 30
"""The number of aborted transactions, in the latter."""
_SHORT_BATCHES: Final = {
    fixed: (
        Struct(f">B{fixed}xB8xi4xb40xi").unpack_from,
        Struct(f">B{fixed}xBB8xi4xb40xi").unpack_from,
    )
    for fixed in (_OF_PRODUCED_PARTITION, _OF_FETCHED_PARTITION)
}
"""Tag of the partition before, size in one byte or two, length, magic and number of records."""
_LEAST_RUN: Final = 8
"""Partitions laid out alike for which it pays to look at them together."""


def names_by_id(api: Api) -> bool:
    """Whether messages of this version name topics by their ids."""
    return api.version >= _FIRST_WITH_TOPIC_IDS[api.key]


def records_at(data: bytes, at: int, size: int) -> int:
    """How many records these bytes hold, as the heads of their first batches tell."""
    records: int
    if size >= BATCH_HEAD_BYTES:
        length, magic, records = _BATCH.unpack_from(data, at + _LENGTH_AT)
        if (
            length == size - _BEHIND_LENGTH and magic == _PLAIN_BATCH
        ):  # a single batch, as nearly all that are sent
            return max(records, 0)
    start, end = at, at + size
    records = 0
    for _ in range(BATCHES_SEEN):
        if end - at < _OLD_HEAD_BYTES:
            break
        length = _INT32.unpack_from(data, at + _LENGTH_AT)[0]
        if length <= 0:
            break
        if data[at + _MAGIC_AT] < _PLAIN_BATCH:
            records += 1
        elif end - at >= BATCH_HEAD_BYTES:
            records += max(_INT32.unpack_from(data, at + _COUNT_AT)[0], 0)
        at += _BEHIND_LENGTH + length
    else:
        if at < end:
            return round(records * size / (at - start))
    return records


def plain_produce(data: bytes, at: int, end: int, api: Api) -> list[tuple[bytes, int, int]] | None:
    """The topics of a whole request, for the one that nearly always comes, in a fifth of the walk's time.

    Args:
        data: received bytes.
        at: where the request's body begins, with the header's tags.
        end: where the request ends.
        api: its version.

    Returns:
        As `Found` gets them; None: it has tags, or a transaction, or is of an old version, and has to be walked.
    """
    if api.version < 9:
        return None
    try:
        if data[at] or data[at + 1] or not 0 < data[at + 8] < 0x80:
            return None
        by_id = api.version >= FIRST_PRODUCE_WITH_TOPIC_IDS
        found = _plain_topics(data, at + 9, end, data[at + 8] - 1, by_id, _OF_PRODUCED_PARTITION)
        return None if found is None or found[1] != end - 1 or data[end - 1] else found[0]
    except IndexError:
        return None


def plain_fetch(data: bytes, at: int, end: int, api: Api) -> list[tuple[bytes, int, int]] | None:
    """The same of a whole answer, from v12 on: nothing in it has tags or aborted transactions."""
    if api.version < 12:
        return None
    try:
        if data[at + 8] or data[at + 19] >= 0x80:
            return None
        by_id = api.version >= FIRST_FETCH_WITH_TOPIC_IDS
        found = _plain_topics(data, at + 20, end, data[at + 19] - 1, by_id, _OF_FETCHED_PARTITION)
        return None if found is None or found[1] >= end else found[0]
    except IndexError:
        return None


def _plain_topics(
    data: bytes, at: int, end: int, topics: int, by_id: bool, fixed: int
) -> tuple[list[tuple[bytes, int, int]], int] | None:
    """So many topics, and where they end; None: they have to be walked.

    Args:
        data, at, end: where they begin, and the message ends.
        topics: how many.
        by_id: whether they are named by their ids.
        fixed: the bytes of a partition before its records.
    """
    found = []
    for _ in range(topics):
        if by_id:
            name_at, at = at, at + 16
        else:
            name_at = at + 1
            at += data[at]
            if at - name_at >= 0x7F:
                return None
        called = data[name_at:at]
        partitions = data[at]
        at += 1
        if partitions >= 0x80:
            partitions = partitions & 0x7F | data[at] << 7
            if partitions >= 0x4000:
                return None
            at += 1
        of_topic = _plain_partitions(data, at, end, partitions - 1, fixed)
        if of_topic is None:
            return None
        size_of_topic, records, at = of_topic
        if data[at]:
            return None
        at += 1
        found.append((called, size_of_topic, records))
    return found, at


def _plain_partitions(
    data: bytes, at: int, end: int, partitions: int, fixed: int
) -> tuple[int, int, int] | None:
    """Bytes and records of so many partitions, and where they end; None: they have to be walked."""
    fetched = fixed == _OF_FETCHED_PARTITION
    size_of_topic = records = 0
    left = partitions
    while left > 0:
        if fetched and data[at + _ABORTED_AT] > 1:
            return None
        begin = at
        first_of_size = data[at + fixed]
        # One byte, or two, as of nearly all records; null is none.
        size = first_of_size - 1
        at += fixed + 1
        if size >= 0x7F:
            if data[at] < 0x80:
                if not data[at]:  # written longer than it is: null could be read as -1
                    return None
                size += (data[at] << 7) - 0x80
                at += 1
            else:
                size, at = _plain_size(data, at - 1)
                if size < 0:
                    return None
        elif size < 0:
            size = 0
        batch_at = at
        at += size
        if at > end:
            return None
        size_of_topic += size
        if size:
            records += records_at(data, batch_at, size)
        if data[at]:
            return None
        at += 1
        left -= 1
        run = 0
        if left >= _LEAST_RUN and data[at + fixed] == first_of_size:
            run, more = _run(data, begin, batch_at, at, end, left, fixed)
            left -= run
            at += run * (at - begin)
            size_of_topic += run * size
            records += more
        if not run and left and size >= BATCH_HEAD_BYTES:
            left, at, more_bytes, more = _short_batches(data, at, end, left, fixed)
            if data[at - 1]:
                return None
            size_of_topic += more_bytes
            records += more
    return size_of_topic, records, at


def _short_batches(data: bytes, at: int, end: int, left: int, fixed: int) -> tuple[int, int, int, int]:
    """Steps over partitions that hold one batch each, of less than 16 KiB: a call for each, and no more.

    Args:
        data: received bytes.
        at: where the first of them begins.
        end: where the message ends, or what was received of it. The last one may end behind it.
        left: how many there are at most.
        fixed: the bytes of a partition before its records.

    Returns:
        How many are left, where they begin, with the tag before them unseen, bytes and records of the others; none is
        stepped over where the byte before the first is not 0.
    """
    unpack_one, unpack_two = _SHORT_BATCHES[fixed]
    fetched = fixed == _OF_FETCHED_PARTITION
    one_around = fixed + 1 + _BEHIND_LENGTH + 1
    two_around = one_around + 1
    last_at = min(end, len(data)) - fixed - 2 - BATCH_HEAD_BYTES
    size = records = 0
    before = left
    while left and at <= last_at:
        if data[at + fixed] < 0x80:
            tag, first, length, magic, count = unpack_one(data, at - 1)
            # The size is that of this batch, which has a whole head.
            if first - 13 != length or length < 49 or magic != _PLAIN_BATCH or count <= 0 or tag:
                break
            next_at = at + one_around + length
        else:
            tag, first, second, length, magic, count = unpack_two(data, at - 1)
            if (
                first + (second << 7) - 141 != length
                or not 0 < second < 0x80
                or magic != _PLAIN_BATCH
                or count <= 0
                or tag
            ):
                break
            next_at = at + two_around + length
        if fetched and data[at + _ABORTED_AT] > 1:
            break
        at = next_at
        size += length
        records += count
        left -= 1
    return left, at, size + (before - left) * _BEHIND_LENGTH, records


def _run(data: bytes, begin: int, batch_at: int, at: int, end: int, left: int, fixed: int) -> tuple[int, int]:
    """How many partitions follow that are laid out as the one before, and how many records they hold.

    Those that are empty, and those of records that are all as long. Their bytes are looked at in columns, each in
    one step, which takes a twentieth of the time.

    Args:
        data: received bytes.
        begin, batch_at: where the one before, and its records, begin.
        at: where the first begins that may be like it.
        end: where the message ends.
        left: how many there are at most.
        fixed: the bytes of a partition before its records.
    """
    step = at - begin
    left = min(left, (min(end, len(data)) - at) // step)
    probe = data[at + fixed : at + _LEAST_RUN * step : step]
    if left < _LEAST_RUN or probe.lstrip(data[begin + fixed : begin + fixed + 1]):
        return 0, 0
    # What has to be the same: the size, the number of tags, of aborted transactions; of a batch its length and magic.
    same = [*range(fixed, batch_at - begin), step - 1]
    if fixed == _OF_FETCHED_PARTITION:
        same.append(_ABORTED_AT)
    size = at - 1 - batch_at
    count_at = batch_at - begin + _COUNT_AT
    if size:
        if size < BATCH_HEAD_BYTES:
            return 0, 0
        length, magic, count = unpack_batch(data, batch_at + _LENGTH_AT)
        if length != size - _BEHIND_LENGTH or magic != _PLAIN_BATCH or count < 0:
            return 0, 0
        length_at = batch_at - begin + _LENGTH_AT
        # Of the number of records all but the last byte.
        same += (
            *range(length_at, length_at + 4),
            batch_at - begin + _MAGIC_AT,
            *range(count_at, count_at + 3),
        )
    # In blocks that double, so that what is looked at is in proportion to what is found.
    done, block = 0, _LEAST_RUN
    while done < left:
        block = alike = min(block, left - done)
        block_at = at + done * step
        for column in same:
            first = data[begin + column : begin + column + 1]
            alike -= len(data[block_at + column : block_at + alike * step : step].lstrip(first))
        done += alike
        if alike < block:
            break
        block *= 2
    left = done
    if not size or not left:
        return left, 0
    last_bytes = data[at + count_at + 3 : at + left * step : step]
    return left, left * (count & ~0xFF) + sum(last_bytes)


def _plain_size(data: bytes, at: int) -> tuple[int, int]:
    """Length of compact records and where they begin; null is 0, and -1 what takes more than four bytes."""
    size = data[at]
    if size < 0x80:
        return (size - 1 if size else 0), at + 1
    size = size & 0x7F | data[at + 1] << 7
    if size < 0x4000:
        return size - 1, at + 2
    size = size & 0x3FFF | data[at + 2] << 14
    if size < 0x200000:
        return size - 1, at + 3
    size = size & 0x1FFFFF | data[at + 3] << 21
    return (size - 1 if size < 0x10000000 else -1), at + 4


class _Window:
    """The bytes that a walk can see: `data`, up to `end`; and how many elements it may still step over."""

    __slots__ = ("data", "end", "left_elements", "topic")

    def __init__(self) -> None:
        self.data = b""
        self.end = 0
        self.left_elements = MAX_STEPS
        self.topic: bytes | None = None

    def step(self) -> None:
        """One element more."""
        self.left_elements -= 1
        if self.left_elements < 0:
            raise TooManyElements


_Walk: TypeAlias = Generator[tuple[int, int], int, int]
"""Yields where it wants to go on and how many bytes it wants to see there; gets where those are in the window."""


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
    return _INT32.unpack_from(window.data, at)[0], at + 4


def _length(window: _Window, at: int, *, compact: bool) -> Generator[tuple[int, int], int, tuple[int, int]]:
    """Of an array or of records; null is 0."""
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
    return max(_INT16.unpack_from(window.data, at)[0], 0), at + 2


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
        if left < _OLD_HEAD_BYTES:
            break
        wanted = min(left, BATCH_HEAD_BYTES)
        if at + wanted > window.end:
            at = yield at, wanted
        data = window.data
        length = _INT32.unpack_from(data, at + _LENGTH_AT)[0]
        if length <= 0:
            break
        if data[at + _MAGIC_AT] < _PLAIN_BATCH:
            records += 1
        elif left >= BATCH_HEAD_BYTES:
            records += max(_INT32.unpack_from(data, at + _COUNT_AT)[0], 0)
        step = _BEHIND_LENGTH + length
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
    """As `_short_batches`, of those that begin in the window, with the tags behind them."""
    most = min(left, window.left_elements)
    left_of_most, at, size, records = _short_batches(window.data, at, window.end, most, fixed)
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
                left, at, size, records = yield from _short_in_window(
                    window, at, left, _OF_PRODUCED_PARTITION
                )
                of_topic += size
                records_of_topic += records
        if flexible:
            at = yield from _tags(window, at)
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
                left, at, size, records = yield from _short_in_window(window, at, left, _OF_FETCHED_PARTITION)
                of_topic += size
                records_of_topic += records
        if flexible:
            at = yield from _tags(window, at)
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
        found(called, of_topic, records_of_topic)
    return at


_WALKS: Final = {
    ApiKey.PRODUCE: _walk_produce,
    ApiKey.FETCH: _walk_fetch,
    ApiKey.SHARE_FETCH: _walk_share_fetch,
}


class TopicWalk:
    """Walks one request or answer as its bytes come.

    Attributes:
        left_bytes: of what comes next, to be stepped over; the caller may do so itself, and lower it.
    """

    __slots__ = ("_kept", "_walk", "_wanted", "_window", "fault", "left_bytes")

    @property
    def topic(self) -> bytes | None:
        """What the message calls the topic that is being looked at, or was last; None: none has come."""
        return self._window.topic

    def __init__(self, api: Api, found: Found) -> None:
        """Nothing was seen.

        Args:
            api: Produce: the first bytes are those of a request's body, or of its header's tags. Others: those
                of an answer's size.
            found: told of each topic behind its last partition.
        """
        self._window = _Window()
        self._walk: _Walk | None = _WALKS[api.key](self._window, api, found)
        self._kept = b""
        self.fault: ProtocolError | None = None  # why no more of the message can be looked at
        self.left_bytes, self._wanted = next(self._walk)

    def take(self, data: bytes, at: int, end: int) -> None:
        """Look at `data[at:end]`, the next bytes."""
        while self._walk is not None:
            if self.left_bytes:
                if self.left_bytes >= end - at:
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
        """Let the walk go on; returns where it wants to, at most `end`."""
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
