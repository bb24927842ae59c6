import ipaddress
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.proxy_protocol import (
    MAX_V2_LENGTH,
    Endpoint,
    NoProxyHeader,
    ProxyHeader,
    ProxyHeaderReader,
    ProxyProtocolError,
    ProxyVersion,
    build_header,
    crc32c,
)

SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")
NOBODY = ProxyHeader()
KAFKA = b"\x00\x00\x00\x17\x00\x12\x00\x03"


def v2(command: int, family: int, body: bytes, *, length: int | None = None) -> bytes:
    """A header of version 2, spelled out."""
    return SIGNATURE + bytes([0x20 | command, family]) + (length or len(body)).to_bytes(2) + body


CLIENT = ProxyHeader(("192.0.2.7", 40_000), ("198.51.100.1", 9_092))
IPV4 = bytes([192, 0, 2, 7, 198, 51, 100, 1]) + (40_000).to_bytes(2) + (9_092).to_bytes(2)


def read(stream: bytes, cuts: Iterable[int] = ()) -> tuple[ProxyHeader | None, bytes]:
    """The header at the start of a stream, and what was left of it."""
    reader = ProxyHeaderReader()
    at = 0
    for end in [*sorted(cuts), len(stream)]:
        while reader.header is None and at < end:
            # As with a peek at a socket: never more than is worth looking at, and what is not taken stays.
            at += reader.feed(stream[at : min(end, at + reader.most)])
    return reader.header, stream[at:]


@pytest.mark.parametrize(("header", "told"), [
    (b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 9092\r\n", CLIENT),
    (b"PROXY TCP6 2001:db8::7 ::1 0 65535\r\n", ProxyHeader(("2001:db8::7", 0), ("::1", 65_535))),
    (
        b"PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe 65535 65535"
        b"\r\n",
        ProxyHeader(
            ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 65_535),
            ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe", 65_535),
        ),
    ),
    (b"PROXY TCP6 ::ffff:192.0.2.7 ::1 1 2\r\n", ProxyHeader(("192.0.2.7", 1), ("::1", 2))),
    (b"PROXY UNKNOWN\r\n", NOBODY),
    (b"PROXY UNKNOWN ffff::1 anything 1 2\r\n", NOBODY),
    (v2(1, 0x11, IPV4), CLIENT),
    (v2(1, 0x21, bytes(15) + b"\x01" + bytes(15) + b"\x02" + bytes(4)), ProxyHeader(("::1", 0), ("::2", 0))),
    (
        v2(1, 0x21, bytes(10) + b"\xff\xff\xc0\x00\x02\x07" + bytes(20)),
        ProxyHeader(("192.0.2.7", 0), ("::", 0)),
    ),
    (v2(1, 0x11, IPV4 + b"\x04\x00\x02ab" + b"\xe0\x00\x00"), CLIENT),
    (v2(0, 0x00, b""), NOBODY),
    (v2(0, 0x77, b"\x01\x02\x03"), NOBODY),
    (v2(1, 0x00, b""), NOBODY),
    (v2(1, 0x31, bytes(216)), NOBODY),
    (v2(1, 0x32, bytes(216)), NOBODY),
    (v2(1, 0x11, IPV4 + b"\x04\x0f\xf1" + bytes(4_081)), CLIENT),
])  # fmt: skip
def test_header_tells_the_client_and_leaves_what_follows(header: bytes, told: ProxyHeader) -> None:
    for cuts in ((), range(1, len(header) + 4), (1,), (5, 6), (13, 16, 17)):
        assert read(header + KAFKA, cuts) == (told, KAFKA)


TCP4 = b"PROXY TCP4 192.0.2.7 198.51.100.1 "


@pytest.mark.parametrize("stream", [
    TCP4 + b"40000 9092\n", b"PROXY TCP4  192.0.2.7 198.51.100.1 40000 9092\r\n", TCP4 + b"40000 9092 \r\n",
    TCP4 + b"40000\r\n", b"PROXY TCP4 192.0.2.07 198.51.100.1 40000 9092\r\n",
    b"PROXY TCP4 192.0.2.256 198.51.100.1 40000 9092\r\n", b"PROXY TCP4 ::1 ::1 40000 9092\r\n",
    b"PROXY TCP6 192.0.2.7 198.51.100.1 40000 9092\r\n", b"PROXY TCP6 fe80::1%eth0 ::1 40000 9092\r\n",
    TCP4 + b"65536 9092\r\n", TCP4 + b"040 9092\r\n", TCP4 + b"+40 9092\r\n", TCP4 + b"-1 9092\r\n",
    TCP4 + b" 9092\r\n", b"PROXY UDP4 192.0.2.7 198.51.100.1 40000 9092\r\n",
    b"PROXY tcp4 192.0.2.7 198.51.100.1 40000 9092\r\n",
    b"PROXY TCP4 192.0.2.\xb2 198.51.100.1 40000 9092\r\n", b"PROXY \r\n",
    b"PROXY UNKNOWN" + b"x" * 93 + b"\r\n",  # 108 bytes
    b"PROXY " + b"x" * 200, v2(2, 0x11, IPV4), v2(1, 0x12, IPV4), v2(1, 0x10, IPV4), v2(1, 0x01, b""),
    v2(1, 0x41, IPV4), v2(1, 0x11, IPV4[:-1]), v2(1, 0x21, IPV4), v2(1, 0x31, bytes(215)),
    v2(1, 0x11, IPV4 + b"\x04\x00"), v2(1, 0x11, IPV4 + b"\x04\x00\x01"),
    SIGNATURE + b"\x11\x11\x00\x0c" + IPV4, v2(1, 0x11, IPV4, length=MAX_V2_LENGTH + 1),
    v2(1, 0x11, IPV4, length=65_535), v2(0, 0x00, b"", length=65_535),
])  # fmt: skip
def test_h25_broken_and_overlong_headers_are_refused(stream: bytes) -> None:
    for cuts in ((), range(1, len(stream))):
        with pytest.raises(ProxyProtocolError) as raised:
            read(stream, cuts)
        assert raised.value.cause == "proxy_invalid"


@pytest.mark.parametrize(
    "stream", [KAFKA, b"\x16\x03\x01\x02", b"GET /", b"PROXX", b"PROXY\r\n", b"\r\n\r\nx", b"proxy ", b"Q"]
)
def test_h25_bytes_that_begin_no_header_are_told_apart_at_the_first_wrong_one(stream: bytes) -> None:
    with pytest.raises(NoProxyHeader) as raised:
        read(stream, range(1, len(stream)))
    assert raised.value.cause == "proxy_missing"


def test_headers_are_bounded_and_a_second_one_is_not_taken() -> None:
    # A type that merely begins with UNKNOWN is none.
    with pytest.raises(ProxyProtocolError):
        read(b"PROXY UNKNOWN" + b"x" * 92 + b"\r\n")
    assert read(b"PROXY UNKNOWN " + b"x" * 91 + b"\r\n") == (NOBODY, b"")
    second = v2(1, 0x11, IPV4)
    assert read(b"PROXY UNKNOWN\r\n" + second) == (NOBODY, second)
    reader = ProxyHeaderReader()
    taken = reader.feed(v2(1, 0x11, IPV4, length=MAX_V2_LENGTH))
    while reader.header is None and taken < 16 + MAX_V2_LENGTH - 1:
        assert 1 <= reader.most <= 16 + MAX_V2_LENGTH
        taken += reader.feed(b"\x04")
    assert (taken, reader.most) == (16 + MAX_V2_LENGTH - 1, 1)


def test_checksum_is_verified_where_there_is_one() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    with_zeros = v2(1, 0x11, IPV4 + b"\x03\x00\x04" + bytes(4) + b"\x04\x00\x01x")
    right = with_zeros.replace(b"\x03\x00\x04" + bytes(4), b"\x03\x00\x04" + crc32c(with_zeros).to_bytes(4))
    assert read(right)[0] == CLIENT
    for wrong in (with_zeros, right[:-1] + b"y", v2(1, 0x11, IPV4 + b"\x03\x00\x00")):
        with pytest.raises(ProxyProtocolError, match="checksum"):
            read(wrong)


ipv4 = st.ip_addresses(v=4).map(str)
ipv6 = st.ip_addresses(v=6).map(str)
ports = st.integers(0, 65_535)


def as_read(endpoint: Endpoint) -> Endpoint:
    address = ipaddress.ip_address(endpoint[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), endpoint[1]


@given(
    st.sampled_from(ProxyVersion),
    st.tuples(ipv4 | ipv6, ports),
    st.tuples(ipv4 | ipv6, ports),
    st.sets(st.integers(1, 60)),
    st.binary(max_size=5),
)
def test_what_is_built_is_read_of_any_families(
    version: ProxyVersion, source: Endpoint, destination: Endpoint, cuts: set[int], rest: bytes
) -> None:
    header = build_header(version, source, destination)
    stream = header + rest
    expected = ProxyHeader(as_read(source), as_read(destination))
    assert read(stream, {cut for cut in cuts if cut < len(stream)}) == (expected, rest)


def test_own_connections_name_nobody_and_the_zone_of_an_address_is_not_told() -> None:
    for version in ProxyVersion:
        header = build_header(version, None, None)
        assert read(header + KAFKA) == (NOBODY, KAFKA)
        assert header.startswith(b"PROXY") == (version is ProxyVersion.V1)
    header = build_header(ProxyVersion.V1, ("fe80::1%eth0", 1), ("fe80::2%eth0", 2))
    assert header == b"PROXY TCP6 fe80::1 fe80::2 1 2\r\n"


@given(
    st.binary(max_size=40),
    st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 1.2.3.4 ", SIGNATURE, SIGNATURE + b"\x21\x11"]),
)
def test_any_bytes_give_a_header_or_one_error_in_any_cut(junk: bytes, start: bytes) -> None:
    stream = start + junk
    answers = []
    for cuts in ((), range(1, len(stream))):
        try:
            header, rest = read(stream, cuts)
            answers.append((header, rest if header is not None else None))
        except ProxyProtocolError:
            answers.append((None, b"refused"))
    assert answers[0] == answers[1]
