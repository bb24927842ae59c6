"""Alterations in progress: each is completed even if its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class WritesInProgress:
    """See the module."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[int]] = set()

    async def carry_out(self, alteration: Coroutine[Any, Any, int]) -> int:
        """Wait for an alteration; it continues when the waiting is cancelled.

        Args:
            alteration: makes it durable and brings it into force; returns the new version.

        Returns:
            What it returns; what it raises is raised here.
        """
        task = asyncio.create_task(alteration)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def done(self) -> None:
        """Wait for all that are on their way, whatever becomes of them."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[int]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, even when its client is gone
