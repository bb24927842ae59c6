"""Removes steps from a script while it still breaks the same rule."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from campaigns.adversary.script import Script

Fails: TypeAlias = Callable[[list[Script]], Awaitable[list[bool]]]
"""Plays scripts, at the same time if possible; which of them fail."""


async def shrink(script: Script, fails: Fails, *, most_rounds: int = 24, at_once: int = 8) -> Script:
    """The shortest failing script that removing steps leads to.

    Args:
        script: a failing script.
        fails: see `Fails`.
        most_rounds: maximum number of rounds.
        at_once: trials per round.
    """
    size = max(1, len(script.steps) // 2)
    at = 0
    for _ in range(most_rounds):
        steps = script.steps
        begins = list(range(at, len(steps), size))[:at_once]
        candidates = [script.with_steps(steps[:begin] + steps[begin + size :]) for begin in begins]
        candidates = [candidate for candidate in candidates if candidate.steps]
        failed = await fails(candidates) if candidates else []
        if any(failed):
            script = candidates[failed.index(True)]
            at = begins[failed.index(True)]
        elif begins and begins[-1] + size < len(steps):
            at = begins[-1] + size
        elif size == 1:
            break
        else:
            size, at = (size + 1) // 2 if size > 2 else size - 1, 0
    return script
