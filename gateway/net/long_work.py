"""Limits how much long work of all connections runs in one turn of the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from gateway.net.batch_scheduler import BatchScheduler
from gateway.runtime.slices import Slices

SMALL_BYTES: Final = 512
"""Up to this size a frame's first step is as short as any event, so several of them run in one turn."""

_CHARGED_LEAST_BYTES: Final = 128
"""The least charge for a frame: its first step takes 60 us or more, however short the frame is."""

_CHARGED_BYTES: Final = 2_048
"""The highest charge for a frame: its first step ends after this many bytes."""

TURN_BYTES: Final = 8 * _CHARGED_BYTES
"""The most bytes of frames whose first step runs in one turn. Eight first steps take about 8 ms."""

TURN_S: Final = 0.008
"""The most time of first steps in one turn: a small frame with topics to create takes a quarter of a millisecond."""


class LongWork(BatchScheduler):
    """Runs steps of long work, one in each turn, and first steps while the turn has time for them.

    Thirty clients that send a large request at the same time would have thirty first steps in one turn. No event
    would be long, but all other clients would wait for their sum. The same is true for hundreds of clients with small
    requests, and for one client that sends thousands together.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, steps_per_turn=1)
        self._left_bytes = TURN_BYTES
        self._turn = Slices(every=1, seconds=TURN_S)
        self._small: deque[tuple[int, Callable[[], None]]] = deque()
        self._small_scheduled = False

    def begins_now(self, frame_bytes: int) -> bool:
        """Whether the first step of a frame's walk runs at once; if not, it waits with the others."""
        # Waiting steps come first.
        if (self._small and frame_bytes <= SMALL_BYTES) or not self._has_room():
            return False
        self._charge(frame_bytes)
        return True

    def add_small(self, step: Callable[[], None], frame_bytes: int) -> None:
        """Run the first step of a small frame when a turn has time. A step that raises does not stop the others."""
        self._small.append((frame_bytes, step))
        if not self._small_scheduled:
            self._small_scheduled = True
            self._loop.call_soon(self._take_small)

    def _take_small(self) -> None:
        # A few in every turn, even if large frames used it up: else a client with many of them would block others.
        own_bytes, own_time = _CHARGED_BYTES, Slices(every=1)
        try:
            while self._small and (self._has_room() or (own_bytes > 0 and not own_time.over)):
                frame_bytes, step = self._small.popleft()
                own_bytes -= max(frame_bytes, _CHARGED_LEAST_BYTES)
                self._charge(frame_bytes)
                step()
        finally:
            self._small_scheduled = bool(self._small)
            if self._small_scheduled:
                self._loop.call_soon(self._take_small)

    def _has_room(self) -> bool:
        """Whether one more first step may run in this turn."""
        return self._left_bytes == TURN_BYTES or (self._left_bytes > 0 and not self._turn.over)

    def _charge(self, frame_bytes: int) -> None:
        if self._left_bytes == TURN_BYTES:
            self._turn = Slices(every=1, seconds=TURN_S)
            self._loop.call_soon(self._next_turn)
        self._left_bytes -= min(max(frame_bytes, _CHARGED_LEAST_BYTES), _CHARGED_BYTES)

    def _next_turn(self) -> None:
        self._left_bytes = TURN_BYTES
