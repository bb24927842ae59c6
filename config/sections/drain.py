"""[drain]: how the gateway stops."""

from __future__ import annotations

from config.section_base import CountOrZero, Section


class DrainSettings(Section, frozen=True):
    """How the gateway stops.

    Attributes:
        timeout_ms: how long requests already read may take to be answered before connections are closed; 30 s is
            what most clients wait for an answer.
    """

    timeout_ms: CountOrZero = 30_000
