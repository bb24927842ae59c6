"""Which addresses and blocks have a quota, so that finding a client's takes no longer when there are more of them.

A look-up asks for the address itself and then once for each prefix length in use, the longest first: at most 33
times for IPv4 and 129 for IPv6. What the quotas are is in `quotas.limits`; this table changes with them, one name at
a time, and is never built again.

One address has many spellings, `one_spelling` is the one that counts. Stores from before that was asked for may hold
others; of several names of one address the right spelling decides, else the first in the alphabet, so that it never
depends on the order in which they were set.
"""

from __future__ import annotations

import ipaddress
from typing import Final, TypeAlias

from quotas.entities import Name

_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_Named: TypeAlias = dict[str | int, list[str]]
"""Address, or leading bits of a block -> the names it was given, the one that decides first."""

_MAPPED_BITS: Final = 96  # in front of an IPv4 address that is mapped into IPv6


def one_spelling(name: str) -> str:
    """An address or a block as it is written here: short, in lower case, without a zone, IPv4 never within IPv6.

    Raises:
        ValueError: it is neither.
    """
    if "/" not in name:
        address = ipaddress.ip_address(name.partition("%")[0])
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return str(mapped or address)
    block = _block(name)
    mapped = _mapped_of(block)
    return f"{mapped}/{block.prefixlen - _MAPPED_BITS}" if mapped else str(block)


class IpTable:
    """See the module."""

    __slots__ = ("_blocks", "_exact")

    def __init__(self) -> None:
        """No address has a quota."""
        self._exact: _Named = {}
        self._blocks: dict[int, dict[int, _Named]] = {4: {}, 6: {}}  # version -> length, longest first

    def add(self, name: Name | None) -> None:
        """One more entity has this name; nothing happens unless it is an address or a block that can match."""
        place = self._place(name)
        if place is not None:
            named, key, spelled = place
            names = named.setdefault(key, [])
            names.append(str(name))
            names.sort(key=lambda each: (each != spelled, each))

    def discard(self, name: Name | None) -> None:
        """The entity with this name is gone."""
        place = self._place(name)
        if place is None:
            return
        named, key, _ = place
        named[key].remove(str(name))
        if not named[key]:
            del named[key]
        if not named and named is not self._exact:
            for version, by_length in self._blocks.items():
                self._blocks[version] = {length: blocks for length, blocks in by_length.items() if blocks}

    def find(self, address: str) -> tuple[str, str] | None:
        """Whose quota an address has.

        Args:
            address: in its one spelling.

        Returns:
            (the name that the entity was set by, the address or block in its one spelling), None when there is none.
        """
        exact = self._exact.get(address)
        if exact is not None:
            return exact[0], address
        version, most = (6, 128) if ":" in address else (4, 32)
        by_length = self._blocks[version]
        if not by_length:
            return None
        bits = int(ipaddress.IPv6Address(address)) if version == 6 else _bits_of_ipv4(address)
        for length, blocks in by_length.items():
            names = blocks.get(bits >> (most - length))
            if names is not None:
                return names[0], str(ipaddress.ip_network(f"{address}/{length}", strict=False))
        return None

    def _place(self, name: Name | None) -> tuple[_Named, str | int, str] | None:
        """Where a name belongs, by which key, and its one spelling."""
        if not isinstance(name, str):
            return None
        if "/" not in name and ":" not in name:
            # An IPv4 address has one spelling; to parse them all would be most of a start that reads many.
            return self._exact, name, name
        try:
            if "/" not in name:
                spelled = one_spelling(name)
                return self._exact, spelled, spelled
            block = _block(name)
        except ValueError:
            return None
        if _mapped_of(block) is not None:
            return None
        by_length = self._blocks[block.version]
        if block.prefixlen not in by_length:
            longest_first = sorted({**by_length, block.prefixlen: {}}.items(), reverse=True)
            by_length = self._blocks[block.version] = dict(longest_first)
        bits = int(block.network_address) >> (block.max_prefixlen - block.prefixlen)
        return by_length[block.prefixlen], bits, str(block)


def _block(name: str) -> _Network:
    address, _, length = name.partition("/")
    return ipaddress.ip_network(f"{address.partition('%')[0]}/{length}")


def _mapped_of(block: _Network) -> ipaddress.IPv4Address | None:
    """Where its IPv4 addresses begin if it is all such as are mapped into IPv6, which clients here never have."""
    return block.network_address.ipv4_mapped if isinstance(block, ipaddress.IPv6Network) else None


def _bits_of_ipv4(address: str) -> int:
    # A fifth of what `ipaddress` takes, which checks what has been checked.
    first, second, third, fourth = map(int, address.split("."))
    return first << 24 | second << 16 | third << 8 | fourth
