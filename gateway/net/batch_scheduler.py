"""Runs work that is due for many connections at once in small batches, so that data is handled in between.

Thousands of clients that came together have their deadlines together, and the loop calls all timers that are due
before it looks at a socket again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from gateway.runtime.slices import Slices

STEPS_PER_TURN: Final = 16


class BatchScheduler:
    """Steps that are due, in order: in one turn a few of them, and none begins after its first millisecond."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, steps_per_turn: int = STEPS_PER_TURN) -> None:
        self._loop = loop
        self._steps_per_turn = steps_per_turn
        self._steps: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def add(self, step: Callable[[], None], *, first: bool = False) -> None:
        """Do this step in one of the loop's next turns; one that raises does not stop the others.

        Args:
            step: to be done.
            first: before all others that wait.
        """
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._take)
        if first:
            self._steps.appendleft(step)
        else:
            self._steps.append(step)

    def _take(self) -> None:
        # Both bounds: most steps are some 50 us, and one that lets a large request continue takes milliseconds.
        slices = Slices(every=1)
        try:
            for taken in range(min(len(self._steps), self._steps_per_turn)):
                if taken and slices.over:
                    break
                self._steps.popleft()()
        finally:
            # Whatever one step did, the others are still due: among them is the end of every throttle.
            self._scheduled = bool(self._steps)
            if self._scheduled:
                self._loop.call_soon(self._take)
