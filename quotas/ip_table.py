"""A table of addresses and blocks with a quota; the time of a lookup does not grow with its size.

A look-up tries the address itself and then each prefix length in use, the longest first: at most 33 times for IPv4
and 129 for IPv6. The quotas themselves are in `quotas.limits`. This table changes with them, one name at a time, and
is never built again.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from quotas.entities import Name


class IpTable:
    """See the module. Names of entities are spelled as `quotas.addresses` spells them."""

    __slots__ = ("_addresses", "_blocks")

    def __init__(self) -> None:
        """Starts without addresses."""
        self._addresses: set[str] = set()
        # version -> length, longest first -> leading bits of a block
        self._blocks: dict[int, dict[int, set[int]]] = {4: {}, 6: {}}

    def add(self, name: Name | None) -> None:
        """Add the name of an entity, if it is an address or a block."""
        if not isinstance(name, str):
            return
        if (block := _block(name)) is None:
            self._addresses.add(name)
            return
        version, length, bits = block
        by_length = self._blocks[version]
        if length not in by_length:
            by_length = dict(sorted({**by_length, length: set()}.items(), reverse=True))
            self._blocks[version] = by_length
        by_length[length].add(bits)

    def discard(self, name: Name | None) -> None:
        """Remove the name of an entity."""
        if not isinstance(name, str):
            return
        if (block := _block(name)) is None:
            self._addresses.discard(name)
            return
        version, length, bits = block
        blocks = self._blocks[version][length]
        blocks.discard(bits)
        if not blocks:
            del self._blocks[version][length]

    def find(self, address: str) -> str | None:
        """The name whose quota applies to an address: the address or its longest block; None if there is neither.

        Args:
            address: in its one spelling.
        """
        return next(self.covering(address), None)

    def covering(self, address: str) -> Iterator[str]:
        """The address, if it is in the table, and then all blocks that contain it, the longest first."""
        if address in self._addresses:
            yield address
        version, most = (6, 128) if ":" in address else (4, 32)
        by_length = self._blocks[version]
        if not by_length:
            return
        bits = int(ipaddress.IPv6Address(address)) if version == 6 else _bits_of_ipv4(address)
        for length, blocks in by_length.items():
            if bits >> (most - length) in blocks:
                yield str(ipaddress.ip_network(f"{address}/{length}", strict=False))


def _block(name: str) -> tuple[int, int, int] | None:
    """Version, length and leading bits of a block; None: it is an address."""
    if "/" not in name:
        return None
    block = ipaddress.ip_network(name)
    return (
        block.version,
        block.prefixlen,
        int(block.network_address) >> (block.max_prefixlen - block.prefixlen),
    )


def _bits_of_ipv4(address: str) -> int:
    # This takes a fifth of the time of `ipaddress`, which would check the address again.
    first, second, third, fourth = map(int, address.split("."))
    return first << 24 | second << 16 | third << 8 | fourth
