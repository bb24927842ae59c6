"""PROXY protocol, versions 1 and 2: reads and writes the address of a client behind a load balancer.

    v1   "PROXY TCP4 192.0.2.7 192.0.2.1 40000 9092" CR LF, at most 107 bytes
    v2   signature, version and command, family, length uint16, addresses, then fields of type, length, value

No byte after the header may be consumed, because TLS or Kafka begins there. So the reader gets the received bytes and
returns how many of them belong to the header. Fields are skipped, except a checksum, which is verified. Source: "The
PROXY protocol", versions 1 & 2 (HAProxy's proxy-protocol.txt).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum
from struct import Struct
from typing import Final, TypeAlias

from protocol.errors import ProtocolError

Endpoint: TypeAlias = tuple[str, int]
"""An IP address as text, and a port."""

MAX_V1_BYTES: Final = 107
MAX_V2_LENGTH: Final = 4_096
"""The most bytes of addresses and fields. The format allows 65,535; load balancers send less than 600 unless they add
certificates."""

_V1: Final = b"PROXY "
_V2: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_HEAD: Final = Struct(">12sBBH")
_LOCAL: Final = 0
_PROXY: Final = 1
_UNSPECIFIED: Final = 0x00
_TCP4: Final = 0x11
_TCP6: Final = 0x21
_UNIX: Final = (0x31, 0x32)
# Family -> bytes of its addresses.
_ADDRESS_BYTES: Final = {_UNSPECIFIED: 0, _TCP4: 12, _TCP6: 36, _UNIX[0]: 216, _UNIX[1]: 216}
_CHECKSUM: Final = 0x03
_PORT: Final = re.compile(rb"0|[1-9][0-9]{0,4}")


class ProxyProtocolError(ProtocolError):
    """A header that breaks the format or is too long."""

    cause = "proxy_invalid"


class NoProxyHeader(ProxyProtocolError):
    """The first bytes begin no header at all: the sender is no load balancer with this protocol."""

    cause = "proxy_missing"


class ProxyVersion(StrEnum):
    """The two formats of a header."""

    V1 = "v1"
    V2 = "v2"


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """The content of a header.

    Attributes:
        source: the client's address; None when the connection is the load balancer's own or has no IP address, so
            that only the socket's address is known.
        destination: the address that the client connected to; None with `source`.
    """

    source: Endpoint | None = None
    destination: Endpoint | None = None


class ProxyHeaderReader:
    """Reads one header from a connection's first bytes.

    Attributes:
        header: its content, as soon as it is complete.
    """

    def __init__(self) -> None:
        self.header: ProxyHeader | None = None
        self._taken = bytearray()

    @property
    def most(self) -> int:
        """The most bytes that may belong to the header; at least 1 until the header is complete."""
        if len(self._taken) < _V2_HEAD.size or self._taken.startswith(_V1):
            return MAX_V1_BYTES - len(self._taken)
        return _V2_HEAD.size + _length(self._taken) - len(self._taken)

    def feed(self, data: bytes) -> int:
        """Read received bytes.

        Args:
            data: the bytes after those that belonged to the header so far; not empty.

        Returns:
            How many of them belong to the header: all, unless the header is complete now.

        Raises:
            NoProxyHeader: this is no header.
            ProxyProtocolError: the header is invalid.
        """
        seen = bytes(self._taken + data)
        end = self._end_of_v1(seen) if seen[:1] == _V1[:1] else self._end_of_v2(seen)
        if end is None:
            self._taken += data
            return len(data)
        parse = _parse_v1 if seen[:1] == _V1[:1] else _parse_v2
        self.header = parse(seen[:end])
        return end - len(self._taken)

    @staticmethod
    def _end_of_v1(seen: bytes) -> int | None:
        if seen[: len(_V1)] != _V1[: len(seen)]:
            raise NoProxyHeader("not a PROXY header")
        end = seen.find(b"\n", 0, MAX_V1_BYTES) + 1
        if end == 0 and len(seen) >= MAX_V1_BYTES:
            raise ProxyProtocolError(f"no end of the line within {MAX_V1_BYTES} bytes")
        return end or None

    @staticmethod
    def _end_of_v2(seen: bytes) -> int | None:
        if seen[: len(_V2)] != _V2[: len(seen)]:
            raise NoProxyHeader("not a PROXY header")
        if len(seen) < _V2_HEAD.size:
            return None
        length = _length(seen)
        if length > MAX_V2_LENGTH:
            raise ProxyProtocolError(f"{length} bytes of addresses and fields; at most {MAX_V2_LENGTH}")
        end = _V2_HEAD.size + length
        return end if len(seen) >= end else None


def build_header(version: ProxyVersion, source: Endpoint | None, destination: Endpoint | None) -> bytes:
    """A header to send.

    Args:
        version: the header's format.
        source: the client's address; None for a connection of the sender itself.
        destination: the address that the client connected to; None with `source`.
    """
    if source is None or destination is None:
        return (
            b"PROXY UNKNOWN\r\n" if version is ProxyVersion.V1 else _V2_HEAD.pack(_V2, 0x20, _UNSPECIFIED, 0)
        )
    addresses = [ipaddress.ip_address(host.partition("%")[0]) for host, _ in (source, destination)]
    if len({address.version for address in addresses}) > 1:
        addresses = [_as_ipv6(address) for address in addresses]
    ports = (source[1], destination[1])
    ipv4 = addresses[0].version == 4
    if version is ProxyVersion.V1:
        family = "TCP4" if ipv4 else "TCP6"
        return f"PROXY {family} {addresses[0]} {addresses[1]} {ports[0]} {ports[1]}\r\n".encode("ascii")
    family_byte = _TCP4 if ipv4 else _TCP6
    body = b"".join([*(address.packed for address in addresses), *(port.to_bytes(2) for port in ports)])
    return _V2_HEAD.pack(_V2, 0x20 | _PROXY, family_byte, len(body)) + body


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum of version 2's field 0x03."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _CRC_TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC_TABLE: Final = _crc_table()


def _length(seen: bytes | bytearray) -> int:
    length: int = _V2_HEAD.unpack_from(seen)[3]
    return length


def _parse_v1(line: bytes) -> ProxyHeader:
    if not line.endswith(b"\r\n"):
        raise ProxyProtocolError("the line does not end in CR LF")
    words = line[:-2].split(b" ")
    if words[1] == b"UNKNOWN":
        return ProxyHeader()
    if len(words) != 6 or words[1] not in (b"TCP4", b"TCP6"):
        raise ProxyProtocolError("not PROXY TCP4|TCP6|UNKNOWN, two addresses, two ports")
    version = 4 if words[1] == b"TCP4" else 6
    source, destination = (_text_address(word, version) for word in words[2:4])
    return ProxyHeader((source, _text_port(words[4])), (destination, _text_port(words[5])))


def _text_address(word: bytes, version: int) -> str:
    try:
        address = ipaddress.ip_address(word.decode("ascii"))
    except ValueError as exc:
        raise ProxyProtocolError("not an IP address") from exc
    if address.version != version or b"%" in word:
        raise ProxyProtocolError("an address of another family")
    return _plain(address)


def _text_port(word: bytes) -> int:
    if _PORT.fullmatch(word) is None or int(word) > 0xFFFF:
        raise ProxyProtocolError("not a port")
    return int(word)


def _parse_v2(seen: bytes) -> ProxyHeader:
    _, version_and_command, family, length = _V2_HEAD.unpack_from(seen)
    if version_and_command >> 4 != 2:
        raise ProxyProtocolError(f"version {version_and_command >> 4}")
    command = version_and_command & 0x0F
    if command == _LOCAL:
        return ProxyHeader()  # the rest is skipped
    if command != _PROXY or family not in _ADDRESS_BYTES:
        raise ProxyProtocolError(f"command {command} and family {family:#04x}")
    body = seen[_V2_HEAD.size :]
    size = _ADDRESS_BYTES[family]
    if length < size:
        raise ProxyProtocolError(f"{length} bytes hold no addresses of family {family:#04x}")
    _check_fields(seen, _V2_HEAD.size + size)
    if family not in (_TCP4, _TCP6):
        return ProxyHeader()
    width = 4 if family == _TCP4 else 16
    source, destination = (_plain(ipaddress.ip_address(body[at : at + width])) for at in (0, width))
    ports = body[2 * width : 2 * width + 4]
    return ProxyHeader((source, int.from_bytes(ports[:2])), (destination, int.from_bytes(ports[2:])))


def _check_fields(seen: bytes, at: int) -> None:
    """Walk the fields and verify a checksum, for which its own bytes count as zeros."""
    while at < len(seen):
        value = at + 3
        end = value + int.from_bytes(seen[at + 1 : value])
        if value > len(seen) or end > len(seen):
            raise ProxyProtocolError("a field reaches past the end")
        if seen[at] == _CHECKSUM:
            zeroed = seen[:value] + bytes(end - value) + seen[end:]
            if end - value != 4 or crc32c(zeroed) != int.from_bytes(seen[value:end]):
                raise ProxyProtocolError("a wrong checksum")
        at = end


def _plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """The text of an address; an address mapped into IPv6 is written as IPv4."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


def _as_ipv6(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv6Address:
    if isinstance(address, ipaddress.IPv6Address):
        return address
    return ipaddress.IPv6Address(f"::ffff:{address}")
