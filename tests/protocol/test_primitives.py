"""Kafka's primitive types: what is written is read back, and junk gives nothing but `ProtocolError`."""

from collections.abc import Callable
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import primitives
from protocol.errors import MalformedBody, ProtocolError, TooManyElements, Truncated
from protocol.primitives import (
    MAX_ELEMENTS,
    framed,
    read_array_length,
    read_bytes_at,
    read_int8,
    read_int16,
    read_int32,
    read_nullable_string,
    read_string,
    read_uvarint,
    skip,
    skip_string,
    skip_tags,
    write_array_length,
    write_int16,
    write_int32,
    write_nullable_string,
    write_uvarint,
)
from testkit import wire

prefixes = st.binary(max_size=5)
texts = st.none() | st.binary(max_size=300)


def written(write: Callable[..., None], value: object, **options: bool) -> bytes:
    out = bytearray()
    write(out, value, **options)
    return bytes(out)


@given(prefixes, st.integers(-(2**31), 2**31 - 1), prefixes)
def test_integers_are_read_back_where_they_were_written(before: bytes, value: int, after: bytes) -> None:
    at = len(before)
    assert read_int32(before + written(write_int32, value) + after, at) == (value, at + 4)
    small, tiny = value >> 16, value >> 24
    assert read_int16(before + written(write_int16, small) + after, at) == (small, at + 2)
    assert read_int8(before + pack(">b", tiny) + after, at) == (tiny, at + 1)


@given(prefixes, st.integers(0, 2**32 - 1), prefixes)
def test_uvarint_is_read_back_where_it_was_written(before: bytes, value: int, after: bytes) -> None:
    raw = written(write_uvarint, value)
    assert raw == wire.uvarint(value)
    assert read_uvarint(before + raw + after, len(before)) == (value, len(before) + len(raw))


@given(prefixes, texts, st.booleans(), prefixes)
def test_string_is_read_back_and_skipped_alike(
    before: bytes, value: bytes | None, compact: bool, after: bytes
) -> None:
    raw = written(write_nullable_string, value, compact=compact)
    frame, end = before + raw + after, len(before) + len(raw)
    assert read_nullable_string(frame, len(before), compact=compact) == (value, end)
    assert skip_string(frame, len(before), compact=compact) == end


@given(st.integers(0, 500), st.booleans())
def test_array_length_is_read_back(length: int, compact: bool) -> None:
    raw = written(write_array_length, length, compact=compact)
    assert read_array_length(raw + bytes(length), 0, compact=compact) == (length, len(raw))


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=200)), max_size=6), prefixes)
def test_a24_well_formed_tags_are_skipped_also_unordered_ones(tags: list[tuple[int, bytes]], after: bytes) -> None:
    raw = wire.tag_section(tags)
    assert skip_tags(raw + after, 0) == len(raw)


@pytest.mark.parametrize("raw", [
    wire.uvarint(2**31 - 1), wire.uvarint(2**31 - 1) + bytes(50),
    wire.uvarint(1) + wire.uvarint(0) + wire.uvarint(51) + bytes(50),
    wire.uvarint(1) + wire.uvarint(0) + wire.uvarint(2**32 - 1),
    wire.uvarint(2) + wire.uvarint(0) + wire.uvarint(0), b"",
])  # fmt: skip
def test_a24_tags_that_do_not_fit_are_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        skip_tags(raw, 0)


@pytest.mark.parametrize(("raw", "value"), [
    (b"\x80\x80\x80\x80\x10", 0),  # Kafka reads 2^32 as 0: bits above 32 are lost (seen live).
    (b"\xff\xff\xff\xff\x0f", 2**32 - 1),
    (b"\xff\xff\xff\xff\x7f", 2**32 - 1),
    (b"\x80\x80\x80\x80\x00", 0),
    (b"\x80\x00", 0),
])  # fmt: skip
def test_a25_fifth_byte_of_a_varint_is_cut_to_32_bits(raw: bytes, value: int) -> None:
    assert read_uvarint(raw, 0) == (value, len(raw))


@pytest.mark.parametrize("last", [b"\x00", b"\x01", b"\x80\x00", b"\xff\xff\xff"])
def test_a25_sixth_byte_of_a_varint_is_refused(last: bytes) -> None:
    with pytest.raises(MalformedBody):
        read_uvarint(b"\x80" * 5 + last, 0)


@pytest.mark.parametrize("length", [2**31 - 1, 2**31, 2**32 - 1])
def test_a25_no_length_above_32_bits_becomes_a_size(length: int) -> None:
    raw = wire.uvarint(length) + bytes(16)
    for read in (skip_string, read_nullable_string, read_array_length):
        with pytest.raises(ProtocolError):
            read(raw, 0, compact=True)


@pytest.mark.parametrize(("frame", "compact"), [
    (pack(">i", 2**31 - 1) + bytes(16), False), (wire.uvarint(2**31 - 1) + bytes(16), True),
    (pack(">i", 17) + bytes(16), False), (wire.uvarint(18) + bytes(16), True),
])  # fmt: skip
def test_a26_array_longer_than_its_frame_is_refused(frame: bytes, compact: bool) -> None:
    with pytest.raises(MalformedBody):
        read_array_length(frame, 0, compact=compact)


@pytest.mark.parametrize("compact", [True, False])
def test_a27_array_as_long_as_its_frame_is_refused_above_the_cap(compact: bool) -> None:
    at_cap = written(write_array_length, MAX_ELEMENTS, compact=compact) + bytes(MAX_ELEMENTS)
    assert read_array_length(at_cap, 0, compact=compact)[0] == MAX_ELEMENTS
    above = written(write_array_length, MAX_ELEMENTS + 1, compact=compact) + bytes(MAX_ELEMENTS + 1)
    with pytest.raises(TooManyElements):
        read_array_length(above, 0, compact=compact)


@pytest.mark.parametrize("length", [-1, -2, -7530, -(2**15), -(2**31)])
def test_a20_any_negative_legacy_length_is_null_as_kafka_reads_it(length: int) -> None:
    assert read_array_length(pack(">i", length), 0, compact=False) == (-1, 4)
    raw = pack(">h", max(length, -(2**15)))
    assert read_nullable_string(raw, 0, compact=False) == (None, 2)
    assert skip_string(raw, 0, compact=False) == 2


def test_a17_strings_are_bounded_and_null_is_refused_where_a_string_is_required() -> None:
    assert read_array_length(b"\0", 0, compact=True) == (-1, 1)
    assert read_nullable_string(b"\0", 0, compact=True) == (None, 1)
    for raw, compact in ((b"\0", True), (b"\xff\xff", False)):
        with pytest.raises(MalformedBody):
            read_string(raw, 0, compact=compact)
    longest = wire.uvarint(32_768) + bytes(32_767)
    assert read_string(longest, 0, compact=True) == (bytes(32_767), len(longest))
    with pytest.raises(MalformedBody):
        read_string(wire.uvarint(32_769) + bytes(32_768), 0, compact=True)


@pytest.mark.parametrize("length", [-1, 4, 2**31])
def test_skipping_backwards_or_past_the_end_is_refused(length: int) -> None:
    with pytest.raises(Truncated):
        skip(b"abc", 0, length)
    with pytest.raises(Truncated):
        read_bytes_at(b"abc", 0, length)


def test_frame_is_its_size_and_its_payload() -> None:
    assert framed(b"abc") == b"\0\0\0\3abc"
    assert framed(bytearray()) == bytes(4)


@given(st.binary(max_size=40), st.integers(0, 45), st.booleans())
def test_a39_junk_gives_a_value_inside_buffer_or_protocol_error(junk: bytes, at: int, compact: bool) -> None:
    readers: list[Callable[[], object]] = [
        lambda: read_int8(junk, at)[1], lambda: read_int16(junk, at)[1], lambda: read_int32(junk, at)[1],
        lambda: read_uvarint(junk, at)[1], lambda: read_nullable_string(junk, at, compact=compact)[1],
        lambda: read_string(junk, at, compact=compact)[1], lambda: skip_string(junk, at, compact=compact),
        lambda: read_array_length(junk, at, compact=compact)[1], lambda: skip_tags(junk, at),
    ]  # fmt: skip
    for read in readers:
        try:
            end = read()
        except ProtocolError:
            continue
        assert isinstance(end, int)
        assert at < end <= len(junk)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_is_read_alike(kind: Callable[[bytes], primitives.Buffer]) -> None:
    buffer = kind(b"\x00\x03abc\xff")
    assert read_nullable_string(buffer, 0, compact=False) == (b"abc", 5)
    assert read_int8(buffer, 5) == (-1, 6)
    assert skip_tags(kind(b"\x01\x05\x02ab"), 0) == 5
