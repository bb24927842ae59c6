"""A fast path for the topics of whole Produce requests and Fetch responses without tags. Pure.

`topic_sizes` walks all others. This module is compiled (docs/decisions/0024-compiled-core.md), because a request may
have a thousand partitions, and the position of each depends on the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import read_i32_be

from protocol.api_keys import Api, ApiKey

if TYPE_CHECKING:
    from mypy_extensions import i64

FIRST_FETCH_WITH_TOPIC_IDS: Final = 13
FIRST_PRODUCE_WITH_TOPIC_IDS: Final = 13

_FIRST_WITH_TOPIC_IDS: Final = {
    ApiKey.PRODUCE: FIRST_PRODUCE_WITH_TOPIC_IDS,
    ApiKey.FETCH: FIRST_FETCH_WITH_TOPIC_IDS,
    ApiKey.SHARE_FETCH: 0,
}

BATCHES_SEEN: Final = 4

BATCH_HEAD_BYTES: Final = 61
"""The size of a batch's head, up to its first record."""
LENGTH_AT: Final = 8
"""The offset of a batch's length, which counts the bytes after this field."""
BEHIND_LENGTH: Final = 12
"""The offset of the first byte that the length counts."""
MAGIC_AT: Final = 16
"""The offset of the magic in a batch, and in a message of the format before batches."""
COUNT_AT: Final = 57
"""The offset of the number of records in a batch."""
OLD_HEAD_BYTES: Final = 17
"""The size of the head of a message in the format before batches, up to its magic."""
PLAIN_BATCH: Final = 2
"""The magic of batches."""
OF_PRODUCED_PARTITION: Final = 4
OF_FETCHED_PARTITION: Final = 35
"""The bytes of a fetched partition before its records, if it has no optional parts."""
_ABORTED_AT: Final = 30
"""The offset of the number of aborted transactions in these bytes."""


def names_by_id(api: Api) -> bool:
    """Whether messages of this version name topics by their ids."""
    return api.version >= _FIRST_WITH_TOPIC_IDS[api.key]


def records_at(data: bytes, at: i64, size: i64) -> i64:
    """The number of records in these bytes, from the heads of their first batches."""
    if size >= BATCH_HEAD_BYTES:
        length: int = read_i32_be(data, at + LENGTH_AT)
        if length == size - BEHIND_LENGTH and data[at + MAGIC_AT] == PLAIN_BATCH:
            # A single batch, which is by far the most common case.
            count: int = read_i32_be(data, at + COUNT_AT)
            return count if count > 0 else 0
    start = at
    end = at + size
    records: i64 = 0
    for _ in range(BATCHES_SEEN):
        if end - at < OLD_HEAD_BYTES:
            break
        length = read_i32_be(data, at + LENGTH_AT)
        if length <= 0:
            break
        if data[at + MAGIC_AT] < PLAIN_BATCH:
            records += 1
        elif end - at >= BATCH_HEAD_BYTES:
            count = read_i32_be(data, at + COUNT_AT)
            records += count if count > 0 else 0
        at += BEHIND_LENGTH + length
    else:
        if at < end:
            return round(int(records) * int(size) / int(at - start))
    return records


def plain_produce(data: bytes, at: int, end: int, api: Api) -> list[tuple[bytes, int, int]] | None:
    """The topics of a whole request of the most common kind.

    Args:
        data: received bytes.
        at: where the request's body begins, with the header's tags.
        end: where the request ends.
        api: its version.

    Returns:
        The arguments of `Found` for each topic; None: the request has tags or a transaction, or is of an old version,
        and must be walked.
    """
    if api.version < 9:
        return None
    try:
        if data[at] or data[at + 1] or not 0 < data[at + 8] < 0x80:
            return None
        by_id = api.version >= FIRST_PRODUCE_WITH_TOPIC_IDS
        found = _plain_topics(data, at + 9, end, data[at + 8] - 1, by_id, OF_PRODUCED_PARTITION)
        return None if found is None or found[1] != end - 1 or data[end - 1] else found[0]
    except IndexError:
        return None


def single_batch_records(data: bytes, at: int, end: int, api: Api) -> int:
    """The number of records of a request with one batch, as soon as the head of the batch was received.

    Args:
        data: received bytes.
        at: where the request's body begins, with the header's tags.
        end: where the request ends, received or not.
        api: its version.

    Returns:
        The number; 0: the request is of another kind, or the head was not received yet.
    """
    if api.version < 9 or len(data) < at + 9 or data[at] or data[at + 1] or data[at + 8] != 2:
        return 0
    at += 9
    if api.version >= FIRST_PRODUCE_WITH_TOPIC_IDS:
        at += 16
    elif at < len(data) and 0 < data[at] < 0x80:
        at += data[at]
    else:
        return 0
    # One partition, its index, and the size of its records in at most five bytes.
    if len(data) < at + 10 or data[at] != 2:
        return 0
    size, at = _plain_size(data, at + 5)
    # After the batch are the tags of the partition, of the topic and of the request.
    if size < BATCH_HEAD_BYTES or at + size != end - 3 or len(data) < at + BATCH_HEAD_BYTES:
        return 0
    length: int = read_i32_be(data, at + LENGTH_AT)
    if length != size - BEHIND_LENGTH or data[at + MAGIC_AT] != PLAIN_BATCH:
        return 0
    if end <= len(data) and (data[end - 3] or data[end - 2] or data[end - 1]):
        return 0
    count: int = read_i32_be(data, at + COUNT_AT)
    return count if count > 0 else 0


def plain_fetch(data: bytes, at: int, end: int, api: Api) -> list[tuple[bytes, int, int]] | None:
    """As `plain_produce`, for a whole Fetch response from v12 on without tags and aborted transactions."""
    if api.version < 12:
        return None
    try:
        if data[at + 8] or data[at + 19] >= 0x80:
            return None
        by_id = api.version >= FIRST_FETCH_WITH_TOPIC_IDS
        found = _plain_topics(data, at + 20, end, data[at + 19] - 1, by_id, OF_FETCHED_PARTITION)
        return None if found is None or found[1] >= end else found[0]
    except IndexError:
        return None


def _plain_topics(
    data: bytes, at: int, end: int, topics: int, by_id: bool, fixed: int
) -> tuple[list[tuple[bytes, int, int]], int] | None:
    """The topics, and the offset after them; None: they must be walked.

    Args:
        data, at, end: the message, the offset of the topics, and the message's end.
        topics: the number of topics.
        by_id: whether topics are named by their ids.
        fixed: the bytes of a partition before its records.
    """
    found = []
    for _ in range(topics):
        if by_id:
            name_at, at = at, at + 16
        else:
            name_at = at + 1
            at += data[at]
            if not 0 <= at - name_at < 0x7F:  # below 0: null
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
    data: bytes, at: i64, end: i64, partitions: i64, fixed: i64
) -> tuple[i64, i64, i64] | None:
    """Bytes and records of the partitions, and the offset after them; None: they must be walked."""
    fetched = fixed == OF_FETCHED_PARTITION
    size_of_topic: i64 = 0
    records: i64 = 0
    left = partitions
    while left > 0:
        if fetched and data[at + _ABORTED_AT] > 1:
            return None
        # The size takes one or two bytes for nearly all records; null counts as no bytes.
        size: i64 = data[at + fixed] - 1
        at += fixed + 1
        if size >= 0x7F:
            if data[at] < 0x80:
                if not data[at]:  # the varint is longer than needed: null could be read as -1
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
        if left and size >= BATCH_HEAD_BYTES:
            left, at, more_bytes, more = short_batches(data, at, end, left, fixed)
            if data[at - 1]:
                return None
            size_of_topic += more_bytes
            records += more
    return size_of_topic, records, at


def short_batches(data: bytes, at: i64, end: i64, left: i64, fixed: i64) -> tuple[i64, i64, i64, i64]:
    """Skips partitions that have one batch each, of less than 16 KiB.

    Args:
        data: received bytes.
        at: where the first partition begins.
        end: the end of the message or of its received part. The last partition may end after it.
        left: the most partitions to skip.
        fixed: the bytes of a partition before its records.

    Returns:
        The number of partitions that are left, the offset of the first one (the tag before it was not checked), and
        bytes and records of the skipped ones. No partition is skipped if the byte before the first is not 0.
    """
    fetched = fixed == OF_FETCHED_PARTITION
    last_at: i64 = min(end, len(data)) - fixed - 2 - BATCH_HEAD_BYTES
    size: i64 = 0
    records: i64 = 0
    before = left
    while left and at <= last_at:
        told: i64 = data[at + fixed]
        batch_at: i64 = at + fixed + 1
        if told >= 0x80:
            second: i64 = data[batch_at]
            if not 0 < second < 0x80:
                break
            told += (second << 7) - 0x80
            batch_at += 1
        length: int = read_i32_be(data, batch_at + LENGTH_AT)
        # The size must be that of a single batch with a whole head.
        if told - 1 - BEHIND_LENGTH != length or length < BATCH_HEAD_BYTES - BEHIND_LENGTH:
            break
        count: int = read_i32_be(data, batch_at + COUNT_AT)
        if data[batch_at + MAGIC_AT] != PLAIN_BATCH or count <= 0 or data[at - 1]:
            break
        if fetched and data[at + _ABORTED_AT] > 1:
            break
        at = batch_at + BEHIND_LENGTH + length + 1
        size += length
        records += count
        left -= 1
    return left, at, size + (before - left) * BEHIND_LENGTH, records


def _plain_size(data: bytes, at: i64) -> tuple[i64, i64]:
    """Length of compact records and their offset. Null is 0; -1 if the length takes more than four bytes."""
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
