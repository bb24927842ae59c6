"""[drain]: how the gateway stops."""

from __future__ import annotations

from config.section_base import CountOrZero, Section


class DrainSettings(Section, frozen=True):
    """How the gateway stops.

    Attributes:
        timeout_ms: how long requests that were already read may take until they are answered. Then their
            connections are closed. Most clients wait 30 s for an answer.
    """

    timeout_ms: CountOrZero = 30_000

    @property
    def gently_ms(self) -> int:
        """How long clients of a process that was replaced may continue before it drains."""
        return self.timeout_ms // 2

    @property
    def longest_ms(self) -> int:
        """The longest that a process may take from the order to drain until its last connection is closed."""
        return self.gently_ms + self.timeout_ms
