"""Sections about the PROXY protocol: load balancers in front of the gateway, and proxies in front of the brokers."""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from typing import Annotated, TypeAlias

from pydantic import Field

from config.ip_address import AddressOrBlock
from config.section import Section


class SendProxyProtocol(StrEnum):
    """Which version of the PROXY protocol connections to brokers begin with."""

    NONE = "none"
    V1 = "v1"
    V2 = "v2"


SendProxyProtocolKey: TypeAlias = Annotated[SendProxyProtocol, Field(strict=False)]


class ProxyProtocolSettings(Section, frozen=True):
    """Load balancers that tell who their clients are; a listener with this section takes nothing else.

    Attributes:
        trusted: addresses and blocks of the load balancers; whoever else connects is closed unread, since a header
            could name anybody.
        timeout_ms: from accept to the end of the header.
        max_waiting: how many sockets may be without their header at once; they have a place among the connections.
    """

    trusted: Annotated[tuple[AddressOrBlock, ...], Field(strict=False, min_length=1, max_length=256)]
    timeout_ms: Annotated[int, Field(ge=1, le=60_000)] = 3_000
    max_waiting: Annotated[int, Field(ge=1, le=100_000)] = 1_000

    @property
    def trusts_everybody(self) -> bool:
        """Whether any address at all is trusted."""
        return any(ipaddress.ip_network(each).prefixlen == 0 for each in self.trusted)
