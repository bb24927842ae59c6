"""Client addresses: one name per client, and the connection rate that is configured for it (KIP-612).

An exact address beats a block, the longest block beats a shorter one, any block beats the default. The default
gives every address a counter of its own; the addresses of a block share one, which is what blocks are for.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from quotas.entities import Default, QuotaKey
from quotas.limits import Limits

KEY: Final = QuotaKey.CONNECTION_CREATION_RATE

UNLIMITED: Final = 2**31 - 1  # Kafka's Int.MAX: such a limit is off

_REMEMBERED: Final = 4096

_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@lru_cache(maxsize=4096)
def normalise(text: str, ipv6_prefix_bits: int = 128) -> str:
    """The one name of an address.

    Args:
        text: as the socket has it. An IPv4 address mapped into IPv6 is its IPv4 address, a zone is dropped.
        ipv6_prefix_bits: IPv6 addresses that agree in so many leading bits are one client: whoever has a
            /64 can take a new address for every connection.

    Raises:
        ValueError: the text is no address.
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        if ipv6_prefix_bits < 128:
            return str(ipaddress.ip_network((int(address), ipv6_prefix_bits), strict=False))
    return str(address)


@dataclass(frozen=True, slots=True)
class IpLimit:
    """The connection rate of one address."""

    rate_per_s: int  # UNLIMITED is off
    tracker_key: str  # the address, or the block whose addresses are counted together
    observe: bool = False  # computed and reported, but nobody is held


class IpLimits:
    """Looks up connection rates; follows `Limits` by its version."""

    def __init__(self, limits: Limits, *, ipv6_prefix_bits: int = 128) -> None:
        """Reads nothing yet.

        Args:
            limits: where connection_creation_rate is configured.
            ipv6_prefix_bits: see `normalise`.
        """
        self._limits = limits
        self._ipv6_prefix_bits = ipv6_prefix_bits
        self._version = 0
        self._found: dict[str, IpLimit] = {}
        self._exact: dict[str, tuple[int, bool]] = {}
        self._blocks: list[tuple[_Network, tuple[int, bool]]] = []  # longest first
        self._default = (UNLIMITED, False)

    def limit(self, address: str) -> IpLimit:
        """The connection rate of an address, given in any form that `normalise` takes."""
        if self._version != self._limits.version:
            self._read()
        found = self._found.get(address)
        if found is None:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            found = self._found[address] = self._look_up(address)
        return found

    def _look_up(self, address: str) -> IpLimit:
        client = normalise(address, self._ipv6_prefix_bits)
        exact = self._exact.get(normalise(address))
        if exact is not None:
            return IpLimit(exact[0], normalise(address), exact[1])
        if self._blocks:
            parsed = ipaddress.ip_address(normalise(address))
            for block, (rate, observe) in self._blocks:
                if parsed in block:
                    return IpLimit(rate, str(block), observe)
        return IpLimit(self._default[0], client, self._default[1])

    def _read(self) -> None:
        self._exact, self._blocks, self._default = {}, [], (UNLIMITED, False)
        self._found.clear()
        for entity, value in self._limits.entities(KEY) if self._limits.enabled(KEY) else ():
            # Truncated, as Kafka does.
            found = (int(value), self._limits.observes(entity))
            if isinstance(entity.ip, Default):
                self._default = found
            elif entity.ip is not None and "/" in entity.ip:
                self._blocks.append((ipaddress.ip_network(entity.ip), found))
            elif entity.ip is not None:
                self._exact[normalise(entity.ip)] = found
        self._blocks.sort(key=lambda each: each[0].prefixlen, reverse=True)
        self._version = self._limits.version
