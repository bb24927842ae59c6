"""Runs long work in the loop in slices, so that clients wait for one slice at most.

Not in threads: one that computes keeps the interpreter's lock for milliseconds at each of the loop's callbacks.
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
    """Asked between items: ``if slices.over: await slices.next()``. A few items are never interrupted."""

    __slots__ = ("_asked", "_before_s", "_began_s", "_ends_s", "_every")

    def __init__(self, *, every: int = 16) -> None:
        """The first slice begins.

        Args:
            every: the clock is looked at once for so many items; 1 for items that may be long.
        """
        self._every = every
        self._asked = 0
        self._before_s = 0.0
        self._began_s = time.thread_time()
        self._ends_s = time.perf_counter() + SLICE_S

    @property
    def over(self) -> bool:
        """Whether the slice has had its time."""
        self._asked += 1
        return self._asked % self._every == 0 and time.perf_counter() >= self._ends_s

    @property
    def spent_s(self) -> float:
        """CPU time that all slices took so far."""
        return self._before_s + time.thread_time() - self._began_s

    async def next(self) -> None:
        """The loop does what else there is, then a slice begins."""
        self._before_s = self.spent_s
        await asyncio.sleep(0)
        self._began_s = time.thread_time()
        self._ends_s = time.perf_counter() + SLICE_S


async def in_slices(steps: Generator[None, None, T], slices: Slices) -> T:
    """What a generator of many small steps comes to."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if slices.over:
            await slices.next()


async def free(items: list[Any] | dict[Any, Any]) -> None:
    """Empties a long container that has the last references; to let go of it at once would be one long event."""
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
    """For work that makes hundreds of thousands of objects, of which most go again when it is done.

    The collector would walk through all of them again and again, tens of milliseconds each time.
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
    """Tens of thousands of new objects stay, so the collector need not look at them again, as after the start."""
    gc.freeze()
