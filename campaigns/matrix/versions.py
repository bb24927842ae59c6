"""The versions of the matrix: the newest of each line that the package registries have."""

from __future__ import annotations

from typing import Final

BROKERS: Final = ("3.7.2", "3.9.2", "4.0.2", "4.1.2", "4.2.2", "4.3.1", "4.4.0")
"""3.x in KRaft mode, as the others."""

JAVA_CLIENTS: Final = ("2.8.2", "3.7.2", "3.9.2", "4.0.2", "4.4.0")
"""Beside these each broker has the client and the tools of its own version."""

FEATURES: Final = {"4.1.2": ("share.version=1",)}
"""What an operator switches on where it is off: share groups are a preview in 4.1."""

BY_CHANCE: Final = frozenset({("4.1.2", "librdkafka 2.16.0", "share")})
"""Broker, client and step of what works only now and then, directly too: it says nothing about the gateway. The
broker has a preview of share groups: of ten tries three read records directly, and two through the gateway."""

UPGRADES: Final = (("3.9.2", "4.4.0"), ("4.3.1", "4.4.0"))
"""Rolling upgrades, from and to."""
