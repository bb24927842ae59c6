"""Kafka's security protocols, and the versions of TLS."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from pydantic import Field


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
        """Kafka's frames travel inside TLS."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)


SecurityProtocolKey: TypeAlias = Annotated[SecurityProtocol, Field(strict=False)]
"""As a key of the configuration file, where it is a text."""

TlsVersion: TypeAlias = Literal["TLSv1.2", "TLSv1.3"]
"""Older ones are broken (RFC 8996)."""
