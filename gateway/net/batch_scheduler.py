"""Runs work that is due for many connections at once in small batches, so that data is handled in between.

Thousands of clients that connect together have their deadlines together. The loop calls all due timers before it
handles a socket again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from gateway.runtime.slices import Slices

STEPS_PER_TURN: Final = 16


class BatchScheduler:
    """Runs due steps in order: a few in each turn of the loop, none of which begins after its first millisecond."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, steps_per_turn: int = STEPS_PER_TURN) -> None:
        self._loop = loop
        self._steps_per_turn = steps_per_turn
        self._steps: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def add(self, step: Callable[[], None], *, first: bool = False) -> None:
        """Run this step in one of the loop's next turns. A step that raises does not stop the others.

        Args:
            step: the step.
            first: whether to run it before all waiting steps.
        """
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._take)
        if first:
            self._steps.appendleft(step)
        else:
            self._steps.append(step)

    def _take(self) -> None:
        # Both bounds are needed: most steps take about 50 us, but one that continues a large request takes ms.
        slices = Slices(every=1)
        try:
            for taken in range(min(len(self._steps), self._steps_per_turn)):
                if taken and slices.over:
                    break
                self._steps.popleft()()
        finally:
            # Even if a step raised, the others are still due: among them may be the end of a throttle.
            self._scheduled = bool(self._steps)
            if self._scheduled:
                self._loop.call_soon(self._take)
