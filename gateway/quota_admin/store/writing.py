"""Alterations in progress: each is completed even if its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class WritesInProgress:
    """See the module."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[int]] = set()

    async def carry_out(self, alteration: Coroutine[Any, Any, int]) -> int:
        """Run an alteration and wait for it. The alteration continues when the wait is cancelled.

        Args:
            alteration: makes the change durable and puts it in force; returns the new version.

        Returns:
            The new version. Exceptions of the alteration are raised here.
        """
        task = asyncio.create_task(alteration)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def done(self) -> None:
        """Wait for all alterations in progress, also for those that fail."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[int]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved even if the client has disconnected, so that asyncio does not log it
