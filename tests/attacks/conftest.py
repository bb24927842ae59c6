"""Attacks are tried on a gateway before a real Kafka: the fixtures of the integration tests."""

from __future__ import annotations

from tests.hazards.conftest import crowd
from tests.integration.conftest import kafka, nothing_leaks, start_gateway, tap

__all__ = ["crowd", "kafka", "nothing_leaks", "start_gateway", "tap"]
