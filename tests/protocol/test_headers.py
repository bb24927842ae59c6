"""Request heads as Kafka reads them, and what first bytes show of a peer that speaks something else."""

from struct import pack, unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api_keys import ApiKey, describe
from protocol.errors import (
    FrameTooLarge,
    InvalidFrameSize,
    NotKafka,
    ProtocolError,
    TlsOnPlaintext,
    Truncated,
    UnsupportedRequest,
)
from protocol.headers import (
    HEAD,
    HEAD_BYTES,
    MIN_REQUEST_BYTES,
    REPLY_HEAD,
    api_number,
    body_offset,
    correlation_id_at,
    correlation_id_of,
    read_client_id,
    refuse_size,
    split_api_number,
    unsupported,
)
from testkit import wire
from testkit.cases import every_case
from testkit.golden import api_name, golden, goldens

MAX_FRAME_BYTES = 104_857_600
int16s = st.integers(-(2**15), 2**15 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)


@given(int16s, int16s)
def test_api_number_is_split_into_what_it_was_made_of(api_key: int, api_version: int) -> None:
    number = api_number(api_key, api_version)
    assert 0 <= number < 2**32
    assert split_api_number(number) == (api_key, api_version)
    assert pack(">I", number) == pack(">hh", api_key, api_version)


@given(int16s, int16s, int32s, st.none() | st.binary(max_size=40))
def test_a32_head_is_read_exactly(
    api_key: int, api_version: int, correlation_id: int, client_id: bytes | None
) -> None:
    payload = wire.head(api_key, api_version, flexible=False, correlation_id=correlation_id, client_id=client_id)
    size, number, read_correlation_id, client_id_length = HEAD.unpack_from(wire.framed(payload), 0)
    assert size == len(payload)
    assert split_api_number(number) == (api_key, api_version)
    assert read_correlation_id == correlation_id
    assert correlation_id_of(wire.framed(payload)) == correlation_id
    assert correlation_id_at(b"before" + wire.framed(payload), 6) == correlation_id
    assert client_id_length == (-1 if client_id is None else len(client_id))


def test_smallest_request_is_a_head_with_a_null_client_id_and_a_reply_head_is_shorter() -> None:
    assert len(wire.head(18, 0, flexible=False, client_id=None)) == MIN_REQUEST_BYTES == HEAD_BYTES - 4
    frame = wire.response("Heartbeat", 0, correlation_id=-77)
    assert REPLY_HEAD.unpack_from(frame, 0) == (len(frame) - 4, -77)


@pytest.mark.parametrize("length", [0, -1, -2, -7530, -(2**15)])
def test_a19_a20_null_and_negative_lengths_are_the_empty_client_id(length: int) -> None:
    assert read_client_id(b"abcdef", 0, length) == ""


@pytest.mark.parametrize(("raw", "text"), [
    (b"\xff\xfeab", "\ufffd\ufffdab"), (b"\xc0\xaf", "\ufffd\ufffd"),
    (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"), (b"caf\xc3", "caf\ufffd"),
    ("gr\u00fc\u00df\U0001f600".encode(), "gr\u00fc\u00df\U0001f600"),
    (b'a\0b\r\n\x1b[31m"\\{}%s', 'a\0b\r\n\x1b[31m"\\{}%s'), (b"x" * 32_767, "x" * 32_767),
])  # fmt: skip
def test_a21_a22_client_id_that_is_no_utf8_is_replaced_never_an_error(raw: bytes, text: str) -> None:
    frame = wire.framed(wire.head(3, 1, flexible=False, client_id=raw))
    assert read_client_id(frame, HEAD_BYTES, len(raw)) == text


def test_a20_client_id_past_the_end_is_refused() -> None:
    frame = wire.framed(wire.head(3, 1, flexible=False, client_id=b"abc"))
    with pytest.raises(Truncated):
        read_client_id(frame, HEAD_BYTES, 4)
    with pytest.raises(Truncated):
        body_offset(frame[:-1], flexible=False)


@given(
    st.none() | st.binary(max_size=40),
    st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=150)), max_size=3),
    st.booleans(),
    st.binary(max_size=10),
)
def test_body_starts_behind_client_id_and_tags(
    client_id: bytes | None, tags: list[tuple[int, bytes]], flexible: bool, body: bytes
) -> None:
    payload = wire.head(3, 9, flexible=flexible, client_id=client_id, header_tags=tags)
    assert body_offset(wire.framed(payload + body), flexible=flexible) == 4 + len(payload)


@pytest.mark.parametrize("flexible", [True, False])
def test_body_offset_of_a_truncated_head_is_refused_at_every_byte(flexible: bool) -> None:
    frame = wire.framed(wire.head(3, 9, flexible=flexible, client_id="abc", header_tags=[(1, b"xy")]))
    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            body_offset(frame[:end], flexible=flexible)


@every_case(
    ("label", "version"),
    [row for row in goldens(kind="request") if api_name(row[0]) in wire.api_names() and row[1] != 99],
)
def test_recorded_requests_have_their_body_where_it_is_looked_for(label: str, version: int) -> None:
    frame = golden(label, version, "request")
    number = HEAD.unpack_from(frame, 0)[1]
    key, header_version = split_api_number(number)
    api = describe(ApiKey(key), header_version)
    name = api_name(label)
    assert key == wire.api_key_of(name)
    decoded = wire.decode_request(name, version, frame)
    body = frame[body_offset(frame, flexible=api.flexible) :]
    assert body == bytes(decoded.encode(version=version))


@pytest.mark.parametrize(("first_bytes", "refusal"), [
    (b"\x16\x03\x00\x02", TlsOnPlaintext), (b"\x16\x03\x01\x02", TlsOnPlaintext),
    (b"\x16\x03\x03\x02", TlsOnPlaintext), (b"GET / HTTP/1.1", NotKafka), (b"POST /topics", NotKafka),
    (b"PUT /", NotKafka), (b"HEAD /", NotKafka), (b"OPTIONS *", NotKafka), (b"CONNECT a:1", NotKafka),
    (b"PRI * HTTP/2.0", NotKafka), (b"SSH-2.0-OpenSSH", NotKafka), (b"PROXY TCP4 ", NotKafka),
    (b"\r\n\r\n\0\r\nQUIT\n", NotKafka),  # PROXY protocol, version 2
    (b"*1\r\n$4\r\nPING", NotKafka), (b"PING\r\n", NotKafka),
    (b"\x80\x2e\x01\x03", NotKafka),  # SSL 2 hello: a two-byte length with its high bit set
])  # fmt: skip
def test_a06_a07_other_protocols_are_named(first_bytes: bytes, refusal: type[ProtocolError]) -> None:
    size = unpack(">i", first_bytes[:4])[0]
    assert not MIN_REQUEST_BYTES <= size <= MAX_FRAME_BYTES
    assert type(refuse_size(size, MAX_FRAME_BYTES)) is refusal


@pytest.mark.parametrize(("sizes", "expected", "told"), [
    ([-1, -2, -(2**31) + 2**30, *range(10)], InvalidFrameSize, None),
    ([MAX_FRAME_BYTES + 1, 2**31 - 1], FrameTooLarge, MAX_FRAME_BYTES),
])  # fmt: skip
def test_a01_a02_a03_sizes_that_no_request_has_are_refused(
    sizes: list[int], expected: type[ProtocolError], told: int | None
) -> None:
    for size in sizes:
        refusal = refuse_size(size, MAX_FRAME_BYTES)
        assert type(refusal) is expected
        assert str(size if told is None else told) in str(refusal)
    assert isinstance(refuse_size(-(2**31), MAX_FRAME_BYTES), ProtocolError)


@given(int32s)
def test_a39_every_size_gets_some_refusal_with_a_cause(size: int) -> None:
    refusal = refuse_size(size, MAX_FRAME_BYTES)
    assert refusal.cause in {"tls_on_plaintext", "not_kafka", "frame_too_large", "invalid_frame_size"}


@pytest.mark.parametrize(("key", "version"), [(84, 0), (999, 1), (-1, 0), (32767, -1), (10_000, 3)])
def test_a12_refused_request_is_named_by_key_and_version(key: int, version: int) -> None:
    refusal = unsupported(api_number(key, version))
    assert isinstance(refusal, UnsupportedRequest)
    assert str(refusal) == f"api_key={key} api_version={version}"
