"""DescribeLogDirs (KIP-113), v1: the bytes of each topic on the disks of one broker.

Every broker since 2.0 supports version 1. That version has no error code for the whole response. A broker that
refuses the request lists no directory, while every broker has at least one.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from struct import Struct
from typing import Final

from protocol.api_keys import Api, ApiKey, describe
from protocol.errors import MalformedBody
from protocol.primitives import read_array_length, read_int16, read_string, skip, skip_string

DESCRIBE_LOG_DIRS: Final[Api] = describe(ApiKey.DESCRIBE_LOG_DIRS, 1)
MOST_BYTES: Final = 2**53
"""The most bytes of one broker; a larger number is wrong. Sums of floating-point numbers are exact up to here."""

_BODY: Final = 12  # size, correlation id, throttle time
_PARTITION: Final = Struct(">iqq?")  # partition index, size, offset lag, whether it is a future replica
_PARTITIONS_AT_ONCE: Final = 500
_MOST_TOPICS: Final = 200_000
_MOST_PARTITIONS: Final = 1_000_000
_LONGEST_NAME: Final = 249


@dataclass(frozen=True, slots=True)
class LogDirs:
    """The disks of a broker.

    Attributes:
        topics: bytes of each topic: all replicas on this broker, including those that move between disks.
        total: the sum.
        named: the number of directories that the broker has listed.
        failed: the number of these that it cannot read.
    """

    topics: dict[bytes, int]
    total: int
    named: int
    failed: int


def read_log_dirs(frame: bytes) -> Generator[None, None, LogDirs]:
    """Parse a whole response frame in small steps, for `gateway.runtime.slices.in_slices`.

    Raises:
        MalformedBody: it does not follow the layout, or has impossible sizes.
    """
    topics: dict[bytes, int] = {}
    named, at = _length(frame, skip(frame, 0, _BODY), 10_000)
    failed = total = 0
    for _ in range(named):
        error, at = read_int16(frame, at)
        failed += error != 0
        at = skip_string(frame, at, compact=False)
        count, at = _length(frame, at, _MOST_TOPICS)
        for _ in range(count):
            name, at = read_string(frame, at, compact=False)
            if not 1 <= len(name) <= _LONGEST_NAME:
                raise MalformedBody(f"a topic's name of {len(name)} bytes")
            left, at = _length(frame, at, _MOST_PARTITIONS)
            while left:
                some = min(left, _PARTITIONS_AT_ONCE)
                end = skip(frame, at, some * _PARTITION.size)
                for _, size_bytes, _, _ in _PARTITION.iter_unpack(memoryview(frame)[at:end]):
                    if size_bytes < 0:
                        raise MalformedBody("a partition of less than no bytes")
                    total += size_bytes
                    topics[name] = topics.get(name, 0) + size_bytes
                at, left = end, left - some
                if left:
                    yield
            yield
    if at != len(frame):
        raise MalformedBody("bytes behind the last directory")
    if total > MOST_BYTES:
        raise MalformedBody(f"more than {MOST_BYTES} bytes on one broker")
    return LogDirs(topics, total, named, failed)


def _length(frame: bytes, at: int, most: int) -> tuple[int, int]:
    length, at = read_array_length(frame, at, compact=False, most=most)
    if length < 0:
        raise MalformedBody("null where an array is required")
    return length, at
