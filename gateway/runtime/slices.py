"""Runs long work in the loop in slices, so that clients wait for one slice at most.

Threads are no alternative: a computing thread keeps the interpreter's lock for milliseconds at each callback of the
loop.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

SLICE_S: Final = 0.001

T = TypeVar("T")


class Slices:
    """Bounds slices. Between items: ``if slices.over: await slices.next()``. A few items are never interrupted."""

    __slots__ = ("_asked", "_before_s", "_began_s", "_ends_s", "_every")

    def __init__(self, *, every: int = 16, seconds: float | None = None) -> None:
        """Begin the first slice.

        Args:
            every: after how many items the clock is read; 1 for items that may be long.
            seconds: length of the first slice; None: `SLICE_S`.
        """
        self._every = every
        self._asked = 0
        self._before_s = 0.0
        self._began_s = time.thread_time()
        self._ends_s = time.perf_counter() + (SLICE_S if seconds is None else seconds)

    @property
    def over(self) -> bool:
        """Whether the time of the slice is used up."""
        self._asked += 1
        return self._asked % self._every == 0 and time.perf_counter() >= self._ends_s

    @property
    def spent_s(self) -> float:
        """CPU time of all slices so far, in seconds."""
        return self._before_s + time.thread_time() - self._began_s

    async def next(self) -> None:
        """Let the loop run its other callbacks, then begin a slice."""
        self._before_s = self.spent_s
        await asyncio.sleep(0)
        self._began_s = time.thread_time()
        self._ends_s = time.perf_counter() + SLICE_S


async def in_slices(steps: Generator[None, None, T], slices: Slices) -> T:
    """Run a generator of many small steps in slices. Returns its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if slices.over:
            await slices.next()


async def free(items: list[Any] | dict[Any, Any]) -> None:
    """Empty a long container with the last references to its items. Freeing it at once would be one long event."""
    slices = Slices()
    while items:
        if slices.over:
            await slices.next()
        if isinstance(items, dict):
            items.popitem()
        else:
            del items[-100:]


_PAUSES: Final[list[None]] = []


@contextmanager
def without_collections() -> Iterator[None]:
    """Turn the collector off during work that creates hundreds of thousands of mostly temporary objects.

    The collector would walk through all of them repeatedly, tens of milliseconds each time.
    """
    _PAUSES.append(None)
    gc.disable()
    try:
        yield
    finally:
        _PAUSES.pop()
        if not _PAUSES:
            gc.enable()


def keep_for_good() -> None:
    """Freeze tens of thousands of new, lasting objects, so that the collector leaves them out, as after the start."""
    gc.freeze()
