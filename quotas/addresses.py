"""The canonical spelling of an address, and every spelling that Kafka accepts for it. Pure.

Kafka reads addresses with Java's `InetAddress.getByName`. Parts of an IPv4 address are decimal, with leading zeros or
without. The last part fills the remaining bytes (``127.1``, ``16909060``). An IPv6 address may be in brackets and
have a zone. Sluice keeps each address in one spelling: that of RFC 5952, without a zone, and as IPv4 if it is mapped
into IPv6. So two spellings are one entity, and a response shows the short one.

Blocks in CIDR form are addresses as well, which Kafka lacks. A block of one address is that address.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final, TypeAlias

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_MAPPED_BITS: Final = 96  # in front of an IPv4 address that is mapped into IPv6
_MOST_IPV4_CHARS: Final = 15  # Java's bound, leading zeros included
_DIGITS: Final = re.compile(r"[0-9]+")
_BYTE: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_PLAIN_IPV4: Final = re.compile(rf"{_BYTE}(?:\.{_BYTE}){{3}}")
_HOST_NAME: Final = re.compile(r"(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z][A-Za-z0-9_-]{0,62}")


def parse_address(text: str) -> _Address:
    """The address that a text names; IPv4 if it is mapped into IPv6.

    Raises:
        ValueError: the text is no address, or only a name server could resolve it.
    """
    address = _parsed(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def address_spelling(text: str) -> str:
    """The one spelling of an address.

    Raises:
        ValueError: as `parse_address`.
    """
    # Most addresses are spelled so, and a gateway may read hundreds of thousands when it starts.
    return text if _PLAIN_IPV4.fullmatch(text) else str(parse_address(text))


def one_spelling(text: str) -> str:
    """The one spelling of an address or a block.

    Raises:
        ValueError: the text is neither.
    """
    name, slash, length = text.partition("/")
    if not slash:
        return address_spelling(text)
    address = _parsed(name)
    block = ipaddress.ip_network(f"{address}/{length}")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    if mapped is not None and block.prefixlen >= _MAPPED_BITS:
        block = ipaddress.ip_network(f"{mapped}/{block.prefixlen - _MAPPED_BITS}")
    return str(block.network_address) if block.prefixlen == block.max_prefixlen else str(block)


def is_host_name(text: str) -> bool:
    """Whether a name server could know a text: it is no address in any spelling and not ``.invalid`` (RFC 6761)."""
    return _HOST_NAME.fullmatch(text) is not None and not text.lower().endswith(".invalid")


def _parsed(text: str) -> _Address:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if ":" not in bare:
        return ipaddress.IPv4Address(_ipv4_bits(text))
    bare, percent, zone = bare.partition("%")
    if percent and not zone:
        raise ValueError(f"{text} has an empty zone")
    groups = bare.split(":")
    if "." in groups[-1]:
        if groups[-1].count(".") != 3:
            raise ValueError(f"{text} ends in no IPv4 address")
        bits = _ipv4_bits(groups[-1])
        groups[-1:] = [f"{bits >> 16:x}", f"{bits & 0xFFFF:x}"]
    return ipaddress.IPv6Address(
        ":".join(group if len(group) <= 4 else group.lstrip("0") or "0" for group in groups)
    )


def _ipv4_bits(text: str) -> int:
    parts = text.split(".")
    if len(text) > _MOST_IPV4_CHARS or len(parts) > 4 or not all(_DIGITS.fullmatch(part) for part in parts):
        raise ValueError(f"{text} is no IPv4 address")
    *firsts, last = map(int, parts)
    left_bits = 32 - 8 * len(firsts)
    if any(first > 0xFF for first in firsts) or last >> left_bits:
        raise ValueError(f"{text} is no IPv4 address")
    bits = 0
    for first in firsts:
        bits = bits << 8 | first
    return bits << left_bits | last
