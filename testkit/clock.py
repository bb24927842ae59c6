"""FakeClock: the only clock of the unit tests, an integer that a test moves."""

from __future__ import annotations


class FakeClock:
    """Milliseconds of a monotonic clock.

    Attributes:
        now_ms: the present; pass it on as ``now_ms``.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms

    def advance(self, ms: int) -> int:
        """Moves the clock forward and returns the new time; refuses to go back."""
        if ms < 0:
            raise ValueError(f"a monotonic clock does not go back: {ms} ms")
        self.now_ms += ms
        return self.now_ms

    def advance_to(self, now_ms: int) -> int:
        """Moves the clock to a time; refuses a time that has passed."""
        return self.advance(now_ms - self.now_ms)
