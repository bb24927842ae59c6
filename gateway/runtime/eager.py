"""Eager: runs a coroutine without a task. It starts within the call, and continues when an awaited result arrives.

A task needs a turn of the loop before its first step, a name, and an entry in the set of all tasks. That is as much
work as the steps themselves, twice for each connection of a client. An eager coroutine can wait only for futures. It
cannot use `asyncio.current_task`, `asyncio.timeout` and `asyncio.sleep(0)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


class Eager:
    """Runs one coroutine."""

    __slots__ = ("_cancelled", "_over", "_steps", "_waits_for")

    def __init__(self) -> None:
        self._steps: Generator[Any, Any, None] | None = None
        self._waits_for: asyncio.Future[Any] | None = None
        self._over: asyncio.Future[None] | None = None
        self._cancelled = False

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Begin. Exceptions of the first step are raised here, those of later steps go to the loop's handler."""
        self._steps = coroutine.__await__()
        self._step()

    def cancel(self) -> None:
        """Cancel the future that the coroutine waits for. Does nothing after the end."""
        self._cancelled = True
        if self._waits_for is not None:
            self._waits_for.cancel()

    async def over(self) -> None:
        """Wait for the coroutine's end, and for a turn of the loop. A cancelled waiter cancels the coroutine."""
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
            # With a default, since compiled code would create a traceback for StopIteration.
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
