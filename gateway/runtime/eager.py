"""Coroutines that start within the call, and continue when their result arrives, without a task.

A task takes a turn of the loop before its first step, a name, and a place in the set of all tasks: as much work as
the steps themselves, twice for each connection of a client. What runs here is not a task: it waits for futures alone,
and `asyncio.current_task`, `asyncio.timeout` and `asyncio.sleep(0)` are not for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


class Eager:
    """One coroutine."""

    __slots__ = ("_cancelled", "_over", "_steps", "_waits_for")

    def __init__(self) -> None:
        self._steps: Generator[Any, Any, None] | None = None
        self._waits_for: asyncio.Future[Any] | None = None
        self._over: asyncio.Future[None] | None = None
        self._cancelled = False

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Begin; what the first step raises is raised here, what a later one does goes to the loop's handler."""
        self._steps = coroutine.__await__()
        self._step()

    def cancel(self) -> None:
        """Raise `CancelledError` at what it waits for; nothing happens once it is over."""
        self._cancelled = True
        if self._waits_for is not None:
            self._waits_for.cancel()

    async def over(self) -> None:
        """Wait for its end, and for what it left to the loop's next turn; cancelled with its waiter."""
        if self._steps is None:
            await asyncio.sleep(0)
            return
        self._over = asyncio.get_running_loop().create_future()
        try:
            await self._over
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _step(self, _future: object = None) -> None:
        steps = self._steps
        assert steps is not None
        future = self._waits_for = None
        try:
            # The end is no exception here, which compiled code would make a traceback for.
            future = next(steps, None)
        except asyncio.CancelledError:
            pass
        finally:
            if future is None:
                self._steps = None
                if self._over is not None and not self._over.done():
                    self._over.set_result(None)
        if future is not None:
            self._waits_for = future
            future.add_done_callback(self._step)
            if self._cancelled:
                future.cancel()
