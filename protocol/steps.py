"""Long walks as generators in steps, so that the loop can do other work in between.

A walk is a generator that yields after about every `STEP_ELEMENTS` elements, and returns its result. A short walk
ends before its first `yield`, so its first step returns the result at once.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeAlias, TypeVar

STEP_ELEMENTS: Final = 100
"""Elements that are read in one step, at 1 to 10 us each. All other clients wait for the work of one client in a turn
of the loop."""

T = TypeVar("T")

Steps: TypeAlias = Generator[None, Any, T]
"""The value that is sent in is the time, for walks that need it."""


def put_off(steps: Steps[T]) -> Steps[T]:
    """The same walk, but its work starts after the first `yield`, so the time can be sent to it from the start."""

    def waiting() -> Steps[T]:
        yield
        return (yield from steps)

    begun = waiting()
    next(begun)
    return begun


def finish(steps: Steps[T]) -> T:
    """The result of a walk, computed without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
