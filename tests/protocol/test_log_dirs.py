"""DescribeLogDirs: what each topic takes on a broker's disks, whatever the broker says."""

import random
from struct import pack
from typing import Any

import pytest

from protocol.codec import log_dirs_request
from protocol.errors import MalformedBody, ProtocolError, TooManyElements
from protocol.log_dirs import MOST_BYTES, LogDirs, read_log_dirs
from protocol.steps import finish
from testkit import wire

DIRS: list[dict[str, Any]] = [{"a": [(0, 5), (1, 7)], "b": [(0, 0)], "none": []}, {"a": [(0, 2)]}]


def directory(topics: dict[str, list[tuple[int, int]]], error_code: int = 0) -> dict[str, Any]:
    return {
        "error_code": error_code,
        "log_dir": "/var/lib/kafka",
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": at, "partition_size": size, "offset_lag": 9, "is_future_key": at == 1}
                    for at, size in partitions
                ],
            }
            for name, partitions in topics.items()
        ],
    }


def answer(*results: dict[str, Any]) -> bytes:
    return wire.response("DescribeLogDirs", 1, correlation_id=7, throttle_time_ms=3, results=list(results))


def test_the_request_asks_for_all_topics() -> None:
    assert wire.decode_request("DescribeLogDirs", 1, log_dirs_request(client_id="c")).topics is None


def test_replicas_of_a_topic_are_added_up_over_partitions_and_directories() -> None:
    found = finish(read_log_dirs(answer(*map(directory, DIRS), directory({}, 56))))

    assert found == LogDirs({b"a": 14, b"b": 0}, total=14, named=3, failed=1)
    assert finish(read_log_dirs(answer())) == LogDirs({}, total=0, named=0, failed=0)


def test_an_answer_that_ends_early_or_has_more_is_malformed() -> None:
    whole = answer(*map(directory, DIRS))
    for end in range(4, len(whole)):
        with pytest.raises(ProtocolError):
            finish(read_log_dirs(whole[:end]))
    with pytest.raises(MalformedBody, match="behind the last directory"):
        finish(read_log_dirs(whole + b"\0"))


@pytest.mark.parametrize("seed", range(20))
def test_no_byte_of_an_answer_makes_anything_but_a_protocol_error(seed: int) -> None:
    chance = random.Random(seed)
    whole = bytearray(answer(*map(directory, DIRS)))
    for _ in range(200):
        broken = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            broken[chance.randrange(8, len(broken))] = chance.randrange(256)
        try:
            found = finish(read_log_dirs(bytes(broken)))
        except ProtocolError:
            continue
        assert found.total == sum(found.topics.values()) <= MOST_BYTES
        assert all(size >= 0 for size in found.topics.values())


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        (directory({"a": [(0, -1)]}), "less than no bytes"),
        (directory({"a": [(0, MOST_BYTES), (1, 1)]}), "on one broker"),
        (directory({"x" * 250: []}), "name of 250 bytes"),
        (directory({"": []}), "name of 0 bytes"),
    ],
)
def test_sizes_and_names_that_cannot_be_are_refused(results: dict[str, Any], reason: str) -> None:
    with pytest.raises(MalformedBody, match=reason):
        finish(read_log_dirs(answer(results)))


def test_lengths_are_no_reason_to_allocate() -> None:
    with pytest.raises(MalformedBody):
        finish(read_log_dirs(wire.framed(pack(">iii", 7, 0, 2**31 - 1))))
    with pytest.raises(MalformedBody, match="null"):
        finish(read_log_dirs(wire.framed(pack(">iii", 7, 0, -1))))
    with pytest.raises(TooManyElements):
        finish(read_log_dirs(wire.framed(pack(">iiihhi", 7, 0, 1, 0, 0, 200_001) + bytes(300_000))))


def test_a_large_answer_is_taken_apart_in_small_steps() -> None:
    partitions = [(at, 1) for at in range(10_000)]
    steps = read_log_dirs(answer(directory({"wide": partitions, **{f"t{at}": [(0, 1)] for at in range(1_000)}})))

    assert sum(1 for _ in steps) >= 1_000 + 10_000 // 500
