"""Limits how much long work of all connections runs in one turn of the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from gateway.net.batch_scheduler import BatchScheduler

SMALL_BYTES: Final = 512
"""Up to here a frame's first step is as short as any event: several of those that wait are taken in one turn."""

_CHARGED_LEAST_BYTES: Final = 128
"""What any frame is charged: to answer it takes some 60 us, however short it is."""

_CHARGED_BYTES: Final = 2_048
"""The most that a frame is charged: beyond so much, its first step ends."""

TURN_BYTES: Final = 8 * _CHARGED_BYTES
"""Of frames whose first step is taken as soon as they are here, in one turn. Eight first steps are some 8 ms."""


class LongWork(BatchScheduler):
    """Steps of long work, one in each turn, and first steps for as long as the turn has time for them.

    Thirty clients that send a large request at once have thirty first steps in one turn: no event is long, and all
    others wait for the sum of them. So do hundreds with small ones, and so does one that sends thousands together.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, steps_per_turn=1)
        self._left_bytes = TURN_BYTES
        self._small: deque[tuple[int, Callable[[], None]]] = deque()
        self._small_scheduled = False

    def begins_now(self, frame_bytes: int) -> bool:
        """Whether the first step of a frame's walk is to be taken at once; if not, it waits as the others do."""
        # Those that wait already come first.
        if self._left_bytes <= 0 or (self._small and frame_bytes <= SMALL_BYTES):
            return False
        self._charge(frame_bytes)
        return True

    def add_small(self, step: Callable[[], None], frame_bytes: int) -> None:
        """Take the first step of a small frame when a turn has time for it; one that raises does not stop others."""
        self._small.append((frame_bytes, step))
        if not self._small_scheduled:
            self._small_scheduled = True
            self._loop.call_soon(self._take_small)

    def _take_small(self) -> None:
        # Some in every turn, whatever large frames took of it: a client that always has more would starve all others.
        own_bytes = _CHARGED_BYTES
        try:
            while self._small and (self._left_bytes > 0 or own_bytes > 0):
                frame_bytes, step = self._small.popleft()
                own_bytes -= max(frame_bytes, _CHARGED_LEAST_BYTES)
                self._charge(frame_bytes)
                step()
        finally:
            self._small_scheduled = bool(self._small)
            if self._small_scheduled:
                self._loop.call_soon(self._take_small)

    def _charge(self, frame_bytes: int) -> None:
        if self._left_bytes == TURN_BYTES:
            self._loop.call_soon(self._next_turn)
        self._left_bytes -= min(max(frame_bytes, _CHARGED_LEAST_BYTES), _CHARGED_BYTES)

    def _next_turn(self) -> None:
        self._left_bytes = TURN_BYTES
