"""Client addresses: one name per client, and its configured connection rate (KIP-612).

An exact address beats a block, the longest block beats a shorter one, any block beats the default. The default
gives every address a counter of its own; the addresses of a block share one, which is what blocks are for.
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
"""IPv6 addresses that agree in so many leading bits are one client unless configured otherwise."""

_REMEMBERED: Final = 4096
_SITE_BITS: Final = 48


@lru_cache(maxsize=4096)
def normalise(text: str, ipv6_prefix_bits: int = 128) -> str:
    """The one name of an address.

    Args:
        text: in any spelling. An IPv4 address mapped into IPv6 is its IPv4 address, a zone is dropped.
        ipv6_prefix_bits: IPv6 addresses that agree in so many leading bits are one client: the owner of a
            /64 can take a new address for every connection.

    Raises:
        ValueError: the text is no address.
    """
    address = parse_address(text)
    if isinstance(address, ipaddress.IPv6Address) and ipv6_prefix_bits < 128:
        # Asked of IPv6, since a small number could be an IPv4 address as well.
        return str(ipaddress.IPv6Network((int(address), ipv6_prefix_bits), strict=False))
    return str(address)


@lru_cache(maxsize=4096)
def network_of(text: str) -> str:
    """The network whose addresses are taken to be of one kind: a /24 of IPv4, a /48 of IPv6.

    Sites get a /48 or less of IPv6: one that had each /64 as a kind of its own would be 65,536 of them.

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
    # Of the addresses that share a counter when there are too many; a block is of its own.
    kind: str = field(default="", compare=False)
    entity: QuotaEntity | None = field(default=None, compare=False)  # what it is set for


class IpLimits:
    """Looks up connection rates; what was found is kept until `Limits.address_version` is another."""

    def __init__(self, limits: Limits, *, ipv6_prefix_bits: int = IPV6_PREFIX_BITS) -> None:
        """Reads nothing yet.

        Args:
            limits: where connection_creation_rate is configured.
            ipv6_prefix_bits: see `normalise`.
        """
        self._limits = limits
        self._ipv6_prefix_bits = ipv6_prefix_bits
        self._version = limits.address_version
        self._found: dict[str, IpLimit] = {}

    def limit(self, address: str) -> IpLimit:
        """The connection rate of an address, given in any form that `normalise` takes."""
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
        """The rate of the addresses with this counter; None: they have none, or are counted by another one by now."""
        if self._limits.enabled(KEY) and "/" in tracker_key:
            entity = QuotaEntity(ip=tracker_key)
            rate = self._limits.get(entity, KEY)
            if rate is not None:
                return IpLimit(int(rate), tracker_key, self._limits.observes(entity), tracker_key, entity)
        try:
            # Of an IPv6 network that is one client, each address has its rate.
            found = self.limit(tracker_key.partition("/")[0])
        except ValueError:  # of another process
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
