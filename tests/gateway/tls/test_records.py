"""Records are counted alike however they arrive."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.tls.records import RecordWalk


def record(size: int) -> bytes:
    return b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(size)


def test_records_are_counted_where_they_begin() -> None:
    walk = RecordWalk()
    data = record(10) + record(16_000) + record(0)
    assert walk.count(memoryview(data[:20])) == 2
    assert walk.count(memoryview(data[20:-3])) == 0
    assert walk.count(memoryview(data[-3:])) == 1


@given(st.integers(0, 60), st.lists(st.integers(0, 300), min_size=2, max_size=20))
def test_walk_can_be_begun_again_where_the_first_whole_header_stands(cut: int, sizes: list[int]) -> None:
    data = memoryview(b"".join(map(record, sizes)))
    walk = RecordWalk()
    before = walk.count(data[:cut])
    counted = walk.count(data[cut:])
    again = RecordWalk(walk.first)
    # One whose header was cut in two is not met again.
    assert 0 <= counted - again.count(data[cut:]) <= 1
    assert (before + counted, again.skip) == (len(sizes), walk.skip)


@given(st.lists(st.integers(0, 300), max_size=20), st.lists(st.integers(1, 40), min_size=1, max_size=10))
def test_any_segments_give_the_same_count(sizes: list[int], cuts: list[int]) -> None:
    data = b"".join(map(record, sizes))
    walk = RecordWalk()
    counted = at = turn = 0
    while at < len(data):
        step = cuts[turn % len(cuts)]
        counted += walk.count(memoryview(data)[at : at + step])
        at, turn = at + step, turn + 1
    assert counted == len(sizes)
