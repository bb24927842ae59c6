"""Kafka's security protocols, and the versions of TLS."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from config.section_base import Key


class SecurityProtocol(StrEnum):
    """Kafka's names: TLS or not, and whether clients authenticate by SASL."""

    PLAINTEXT = "PLAINTEXT"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SSL = "SSL"
    SASL_SSL = "SASL_SSL"

    @property
    def sasl(self) -> bool:
        """No client is served before its SASL exchange has succeeded."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)

    @property
    def tls(self) -> bool:
        """Kafka's frames are sent inside TLS."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)


SecurityProtocolKey: TypeAlias = Annotated[SecurityProtocol, Field(strict=False)]
"""As a key of the configuration file, where it is a text."""

TlsVersion: TypeAlias = Literal["TLSv1.2", "TLSv1.3"]
"""Older ones are broken (RFC 8996)."""


def useless_faults(protocol: SecurityProtocol, given: Collection[str]) -> list[tuple[Key, str]]:
    """The tables tls and sasl that have no effect with this protocol, and what to do.

    Args:
        protocol: the protocol of a listener or an upstream.
        given: those of the two tables that it has.
    """
    faults: list[tuple[Key, str]] = []
    for key in ("tls", "sasl"):
        if key in given and not getattr(protocol, key):
            has_tls, has_sasl = protocol.tls or key == "tls", protocol.sasl or key == "sasl"
            wanted = next(each for each in SecurityProtocol if (each.tls, each.sasl) == (has_tls, has_sasl))
            text = f"without effect, since security_protocol is {protocol}; remove it, or set it to {wanted}"
            faults.append(((key,), text))
    return faults
