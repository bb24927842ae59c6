"""Long walks as generators in steps, so that the loop can do other work in between.

A walk is a generator that yields after every `STEP_ELEMENTS` elements or so, and returns what it found. A short one
ends before its first `yield`, so that one step of it has the result at once.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeAlias, TypeVar

STEP_ELEMENTS: Final = 100
"""Elements that are read in one step, at 1 to 10 us each: what one client has done in a turn of the loop is a part
of what all others wait."""

T = TypeVar("T")

Steps: TypeAlias = Generator[None, Any, T]
"""What is sent in is the time, for those walks that need it."""


def put_off(steps: Steps[T]) -> Steps[T]:
    """The same walk with nothing of it done; as any that is under way, it can be sent the time."""

    def waiting() -> Steps[T]:
        yield
        return (yield from steps)

    begun = waiting()
    next(begun)
    return begun


def finish(steps: Steps[T]) -> T:
    """The result of a walk, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
