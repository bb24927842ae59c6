"""[overload]: what happens when brokers are slow."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from config.section_base import Section
from quotas.limits import Enforcement


class OverloadSettings(Section, frozen=True):
    """When brokers are slow, clients get less of `[capacity]`: those of tier 3 lose first, and those of tier 0 last.

    The gateway measures how long brokers take for Produce requests, and how many they fail for want of replicas, of
    time or of storage. It takes the median of all clients.

    Attributes:
        mode: off: nothing is measured. observe: it is computed and reported, but no client gets less. enforce:
            clients get less.
        broker_time_ms: brokers that take longer for a Produce request are slow.
        error_percent: of Produce answers; brokers that fail more often for want of replicas, of time or of storage
            are short.
    """

    mode: Annotated[Enforcement, Field(strict=False)] = Enforcement.OFF
    broker_time_ms: Annotated[int, Field(ge=1, le=60_000)] = 500
    error_percent: Annotated[int, Field(ge=1, le=100)] = 10
