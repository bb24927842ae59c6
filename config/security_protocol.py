"""Kafka's security protocols: how a connection is made, apart from who may do what on it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

from pydantic import Field


class SecurityProtocol(StrEnum):
    """Kafka's names: TLS or not, and whether clients authenticate by SASL."""

    PLAINTEXT = "PLAINTEXT"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SSL = "SSL"
    SASL_SSL = "SASL_SSL"

    @property
    def sasl(self) -> bool:
        """Nobody is served before a SASL exchange has succeeded."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)

    @property
    def tls(self) -> bool:
        """Kafka's frames travel inside TLS."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)


SecurityProtocolKey: TypeAlias = Annotated[SecurityProtocol, Field(strict=False)]
"""As a key of the configuration file, where it is a text."""
