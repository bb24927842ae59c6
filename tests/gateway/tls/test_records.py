"""Records are counted alike however they arrive."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tls.records import Hello, HelloWalk, RecordWalk
from testkit.frames import heartbeat


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


# -- K09 -----------------------------------------------------------------------------------------------------
def tls_record(payload: bytes, content_type: int = 22) -> bytes:
    return bytes([content_type, 3, 1]) + len(payload).to_bytes(2, "big") + payload


def hello(size: int) -> bytes:
    """A ClientHello, without its records."""
    return b"\x01" + (size - 4).to_bytes(3, "big") + bytes(size - 4)


def look_at(data: bytes, pieces: int) -> tuple[Hello, int]:
    """What is found, and after how many bytes."""
    looks = HelloWalk()
    for end in [*range(pieces, len(data), pieces), len(data)]:
        found = looks.look(data[:end])
        if found is not Hello.PART:
            return found, end
    return Hello.PART, len(data)


@pytest.mark.parametrize("size", [4, 5, 517, 1_800, 16_000])
@pytest.mark.parametrize("fragment", [1, 3, 700, 16_384])
def test_k09_a_hello_is_whole_with_its_last_byte_however_it_is_cut(size: int, fragment: int) -> None:
    message = hello(min(size, 2_000 if fragment < 10 else size))
    data = b"".join(tls_record(message[at : at + fragment]) for at in range(0, len(message), fragment))
    assert look_at(data, 1) == (Hello.WHOLE, len(data))
    assert look_at(data, len(data)) == (Hello.WHOLE, len(data))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (heartbeat(1), Hello.NOT_TLS),
        (tls_record(b"\x02\x28", 21), Hello.NOT_HELLO),
        (tls_record(hello(100)[:50]) + tls_record(b"\x01\x00", 21), Hello.NOT_HELLO),
        (b"\x16\x02", Hello.NOT_HELLO),
        (b"\x16\x03\x01\xff\xff", Hello.NOT_HELLO),
        (tls_record(b""), Hello.NOT_HELLO),
        (tls_record(b"\x02"), Hello.NOT_HELLO),
        (tls_record(b"\x01\xff\xff\xff"), Hello.NOT_HELLO),
        (tls_record(hello(65_000)[:9_000]) * 2, Hello.NOT_HELLO),
    ],
)
def test_k09_what_does_not_become_a_hello_is_found_out_at_once(data: bytes, found: Hello) -> None:
    assert look_at(data, 1) == (found, look_at(data, 1)[1])
    assert look_at(data + hello(100), 7)[0] is found
