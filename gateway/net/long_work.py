"""Long work of all connections: how much of it one turn of the loop does, however many of them have some."""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.net.batch_scheduler import BatchScheduler

FREE_BYTES: Final = 512
"""Up to here a frame is walked as soon as it is here, as what is relayed: it costs no more than any event."""

_CHARGED_BYTES: Final = 2_048
"""The most that a frame is charged: beyond so much, its first step ends."""

TURN_BYTES: Final = 8 * _CHARGED_BYTES
"""Of frames whose first step is taken as soon as they are here, in one turn. Eight first steps are some 8 ms."""


class LongWork(BatchScheduler):
    """Steps of long work, one in each turn, and first steps for as long as the turn has time for them.

    Thirty clients that send a large request at once have thirty first steps in one turn: no event is long, and all
    others wait for the sum of them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, steps_per_turn=1)
        self._left_bytes = TURN_BYTES

    def begins_now(self, frame_bytes: int) -> bool:
        """Whether the first step of a frame's walk is to be taken at once; if not, it waits as the others do."""
        if frame_bytes <= FREE_BYTES:
            return True
        if self._left_bytes <= 0:
            return False
        if self._left_bytes == TURN_BYTES:
            self._loop.call_soon(self._next_turn)
        self._left_bytes -= min(frame_bytes, _CHARGED_BYTES)
        return True

    def _next_turn(self) -> None:
        self._left_bytes = TURN_BYTES
