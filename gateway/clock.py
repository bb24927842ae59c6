"""The one place where time is read: the loop's own clock, so that deadlines and timers agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

NowMs: TypeAlias = Callable[[], int]
"""Monotonic milliseconds; the zero is arbitrary."""


class HasTime(Protocol):
    """An event loop, as far as a clock is concerned."""

    def time(self) -> float:
        """Monotonic seconds."""


def loop_clock(loop: HasTime) -> NowMs:
    """A clock that reads `loop.time()`."""
    time = loop.time

    def now_ms() -> int:
        return int(time() * 1000)

    return now_ms
