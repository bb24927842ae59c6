"""Client addresses: one name per client, and its configured connection rate (KIP-612).

An exact address beats a block, the longest block beats a shorter one, any block beats the default. With the default
every address has a counter of its own. The addresses of a block share one counter; that is the purpose of blocks.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from quotas.addresses import parse_address
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Limits

KEY: Final = QuotaKey.CONNECTION_CREATION_RATE

UNLIMITED: Final = 2**31 - 1  # Kafka's Int.MAX: such a limit is off

IPV6_PREFIX_BITS: Final = 64
"""IPv6 addresses with the same leading bits, by default 64 of them, are one client."""

_REMEMBERED: Final = 4096
_SITE_BITS: Final = 48


@lru_cache(maxsize=4096)
def normalise(text: str, ipv6_prefix_bits: int = 128) -> str:
    """The one name of an address.

    Args:
        text: in any spelling. An IPv4 address mapped into IPv6 becomes its IPv4 address, and a zone is dropped.
        ipv6_prefix_bits: IPv6 addresses with the same leading bits, this many, are one client. The owner of a /64
            can use a new address for every connection.

    Raises:
        ValueError: the text is no address.
    """
    address = parse_address(text)
    if isinstance(address, ipaddress.IPv6Address) and ipv6_prefix_bits < 128:
        # The class is explicit, because a small number could be an IPv4 address as well.
        return str(ipaddress.IPv6Network((int(address), ipv6_prefix_bits), strict=False))
    return str(address)


@lru_cache(maxsize=4096)
def network_of(text: str) -> str:
    """The network whose addresses are one kind: a /24 of IPv4, a /48 of IPv6.

    A site gets a /48 of IPv6 or less. If each /64 were a kind of its own, one site could have 65,536 kinds.

    Raises:
        ValueError: the text is no address.
    """
    own = normalise(text, _SITE_BITS)
    return own if ":" in own else own.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class IpLimit:
    """The connection rate of one address."""

    rate_per_s: int  # UNLIMITED is off
    tracker_key: str  # the address, or the block whose addresses are counted together
    observe: bool = False  # computed and reported, and no connection is throttled
    # Addresses of one kind share a counter when the table is full; a block is a kind of its own.
    kind: str = field(default="", compare=False)
    entity: QuotaEntity | None = field(default=None, compare=False)  # the entity with this quota


class IpLimits:
    """Looks up connection rates, and caches them until `Limits.address_version` changes."""

    def __init__(self, limits: Limits, *, ipv6_prefix_bits: int = IPV6_PREFIX_BITS) -> None:
        """Reads nothing yet.

        Args:
            limits: the quotas with connection_creation_rate.
            ipv6_prefix_bits: see `normalise`.
        """
        self._limits = limits
        self._ipv6_prefix_bits = ipv6_prefix_bits
        self._version = limits.address_version
        self._found: dict[str, IpLimit] = {}

    def limit(self, address: str) -> IpLimit:
        """The connection rate of an address in any spelling that `normalise` accepts."""
        if self._version != self._limits.address_version:
            self._version = self._limits.address_version
            self._found.clear()
        found = self._found.get(address)
        if found is None:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            found = self._found[address] = self._look_up(address)
        return found

    def of_counter(self, tracker_key: str) -> IpLimit | None:
        """The rate of the addresses with this counter; None: no rate, or another counter counts them now."""
        if self._limits.enabled(KEY) and "/" in tracker_key:
            entity = QuotaEntity(ip=tracker_key)
            rate = self._limits.get(entity, KEY)
            if rate is not None:
                return IpLimit(int(rate), tracker_key, self._limits.observes(entity), tracker_key, entity)
        try:
            # In an IPv6 network that is one client, each address has the network's rate.
            found = self.limit(tracker_key.partition("/")[0])
        except ValueError:  # another process has sent an invalid key
            return None
        return found if found.rate_per_s < UNLIMITED and found.tracker_key == tracker_key else None

    def _look_up(self, address: str) -> IpLimit:
        own = client = normalise(address)
        if ":" in own and self._ipv6_prefix_bits < 128:
            client = normalise(address, self._ipv6_prefix_bits)
        limits = self._limits
        if not limits.enabled(KEY):
            return IpLimit(UNLIMITED, client)
        name = limits.find_address(own)
        counted_by = client if name is None else name
        entity = QuotaEntity(ip=DEFAULT if name is None else name)
        rate = limits.get(entity, KEY)
        if rate is None:
            return IpLimit(UNLIMITED, client)
        # Truncated, as Kafka does.
        kind = network_of(address) if counted_by == client else counted_by
        return IpLimit(int(rate), counted_by, limits.observes(entity), kind, entity)
