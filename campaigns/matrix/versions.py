"""The versions of the matrix: the newest of each line that the package registries have."""

from __future__ import annotations

from typing import Final

BROKERS: Final = ("3.7.2", "3.9.2", "4.0.2", "4.1.2", "4.2.2", "4.3.1", "4.4.0")
"""Broker versions, all in KRaft mode, also 3.x."""

JAVA_CLIENTS: Final = ("2.8.2", "3.7.2", "3.9.2", "4.0.2", "4.4.0")
"""In addition each broker is tried with the client and tools of its own version."""

FEATURES: Final = {"4.1.2": ("share.version=1",)}
"""Features that are off by default and are switched on: share groups are a preview in 4.1."""

BY_CHANCE: Final = frozenset({("4.1.2", "librdkafka 2.16.0", "share")})
"""Broker, client and step that work only sometimes, directly too, so they show nothing about the gateway. This broker
has a preview of share groups: of ten tries three read records directly, and two through the gateway."""

UPGRADES: Final = (("3.9.2", "4.4.0"), ("4.3.1", "4.4.0"))
"""Rolling upgrades: old and new version."""
