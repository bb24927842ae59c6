"""[connections]: how many connections, at which rate, and what happens beyond (KIP-612, KIP-402, KIP-306).

Rates of single addresses are quotas and so in [[quotas]]; the limits of one listener are in [[listeners]].
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from pydantic import Field, field_validator

from config.ip_address import Address
from config.section_base import Count, CountOrZero, Key, MaxTrackers, Section, SmallCount, faults_error
from quotas.addresses import address_spelling
from quotas.connections import AfterHold
from quotas.ip_limits import IPV6_PREFIX_BITS


class ConnectionSettings(Section, frozen=True):
    """Limits of all listeners together. Rates are averages over the windows of `[client_quota]`.

    Attributes:
        max_connections: Kafka's max.connections. Not set: as many as the file descriptors allow.
        max_connection_creation_rate: Kafka's max.connection.creation.rate, per second. Not set: unlimited.
        max_connections_per_ip: Kafka's max.connections.per.ip. Not set: unlimited.
        max_connections_per_ip_overrides: other limits for single addresses.
        after_hold: what happens to a throttled connection, whose address connects too often, at the end of
            its wait. close: it is closed, as in Kafka. recheck: it is let in if its address is within its rate by
            then, as KIP-612 says.
        max_held: maximum number of throttled connections. Not set: an eighth of the file descriptors, at most
            1,000.
        max_tls_handshakes_per_second: how many TLS handshakes start per second on all listeners. Further ones
            wait. 200 handshakes with RSA 2048 take about half a core.
        protected_slots: connections that the protected listener may have after `max_connections` is reached.
            The default is enough for an operator's own tools.
        failed_authentication_delay_ms: Kafka's connection.failed.authentication.delay.ms, with its default.
            The bound is 60 s, because each delayed answer keeps a socket open.
        ipv6_prefix_bits: IPv6 addresses that agree in this many leading bits are one client. 128: each
            address is its own.
        max_trackers: how many addresses have a rate counter of their own. Beyond it, addresses of one network
            share a counter.
    """

    max_connections: Count | None = None
    max_connection_creation_rate: Count | None = None
    max_connections_per_ip: CountOrZero | None = None
    max_connections_per_ip_overrides: Mapping[Address, CountOrZero] = Field(default_factory=dict)
    after_hold: Annotated[AfterHold, Field(strict=False)] = AfterHold.CLOSE
    max_held: SmallCount | None = None
    max_tls_handshakes_per_second: SmallCount = 200
    protected_slots: SmallCount = 32
    failed_authentication_delay_ms: Annotated[int, Field(ge=0, le=60_000)] = 100
    ipv6_prefix_bits: Annotated[int, Field(ge=1, le=128)] = IPV6_PREFIX_BITS
    max_trackers: MaxTrackers = 10_000

    @field_validator("max_connections_per_ip_overrides", mode="before")
    @classmethod
    def _check_addresses(cls, overrides: Any) -> Any:
        faults: list[tuple[Key, str]] = []
        seen: dict[str, str] = {}
        for address in overrides if isinstance(overrides, dict) else ():
            with suppress(ValueError, AttributeError, TypeError):  # reported elsewhere
                first = seen.setdefault(address_spelling(address), address)
                if first != address:
                    faults.append(((address,), f'is the same address as "{first}"'))
        if faults:
            raise faults_error(faults)
        return overrides
