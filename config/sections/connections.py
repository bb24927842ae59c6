"""[connections]: how many, how fast, and what becomes of those beyond (KIP-612, KIP-402, KIP-306).

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
    """Limits of all listeners together. Rates are averages over the windows of [client_quota].

    Attributes:
        max_connections: Kafka's max.connections; None: as many as there are file descriptors for.
        max_connection_creation_rate: Kafka's max.connection.creation.rate, per second; None: unlimited.
        max_connections_per_ip: Kafka's max.connections.per.ip; None: unlimited.
        max_connections_per_ip_overrides: other limits for single addresses.
        after_hold: what becomes of a socket that was held because its address connects too often. close: what Kafka
            does; recheck: let in when the address is within its rate by then, as KIP-612 says.
        max_held: how many sockets may be held at once; None: an eighth of the file descriptors, 1,000 at most.
        max_tls_handshakes_per_second: how many TLS handshakes begin per second, of all listeners; the others wait.
            200 with RSA 2048 take about half a core.
        protected_slots: connections that the protected listener may have when `max_connections` is reached; enough
            for the operator's own tools.
        failed_authentication_delay_ms: Kafka's connection.failed.authentication.delay.ms, and its default; at most
            60 s, since a socket is kept for as long.
        ipv6_prefix_bits: IPv6 addresses that agree in so many leading bits are one client; 128: each is its own.
        max_trackers: how many addresses are told apart by their rates; beyond, those of one network share one.
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
            with suppress(ValueError, AttributeError, TypeError):  # what is no address is told elsewhere
                first = seen.setdefault(address_spelling(address), address)
                if first != address:
                    faults.append(((address,), f'is the same address as "{first}"'))
        if faults:
            raise faults_error(faults)
        return overrides
