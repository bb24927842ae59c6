"""The clocks: the loop's own, so that deadlines and timers agree, and the wall clock.

Wall time labels seconds, files and entries of a history for people. No computation uses both clocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

NowMs: TypeAlias = Callable[[], int]
"""Monotonic milliseconds; the zero is arbitrary."""

WallMs: TypeAlias = Callable[[], int]
"""Milliseconds since the epoch."""


class HasTime(Protocol):
    """The part of an event loop that a clock needs."""

    def time(self) -> float:
        """Monotonic seconds."""


def loop_clock(loop: HasTime) -> NowMs:
    """A clock that reads `loop.time()`."""
    seconds = loop.time

    def now_ms() -> int:
        return int(seconds() * 1000)

    return now_ms


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
