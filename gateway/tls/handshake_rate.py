"""How many TLS handshakes begin per second, decided before any cryptography (hazard H22).

A handshake costs the gateway about a millisecond and its client only a few bytes, so they are paced: one by one,
evenly (`handshake_steps.py` sees to it that their computations are spread too). A connection that comes too early
waits unread, in the order of accept, as KIP-612 has it for connections. One that is closed, or whose deadline passes,
leaves the queue and has cost nothing. A client that has sent nothing takes no place in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Final

_GRAIN_S: Final = 0.002  # timers are no finer
_LOOKED_AT: Final = 100
_UNBOUND_PER_S: Final = 10_000
_CATCH_UP_S: Final = 0.1
"""How much of the time that late timers have lost, while a connection waited, is made good."""


class HandshakeRateLimiter:
    """Shared by all listeners.

    Attributes:
        per_second: the limit; may change at any time; None: unlimited.
        delayed: how many had to wait so far.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, per_second: int | None, max_waiting: int) -> None:
        """Nothing waits yet.

        Args:
            loop: gives time and timers.
            per_second: see above.
            max_waiting: beyond so many a connection is refused.
        """
        self.per_second = per_second
        self.delayed = 0
        self._loop = loop
        self._max_waiting = max_waiting
        self._waiting: dict[Hashable, Callable[[bool], bool]] = {}
        self._next_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Connections that wait."""
        return len(self._waiting)

    def request(self, connection: Hashable, begin: Callable[[bool], bool]) -> bool:
        """Begin a handshake now, or as soon as the rate allows.

        Args:
            connection: for `cancel`.
            begin: told whether it had to wait; returns whether the handshake has begun: otherwise the next connection
                gets the permit.

        Returns:
            False when too many wait already.
        """
        if not self._waiting and self._take_permit():
            begin(False)
            return True
        if len(self._waiting) >= self._max_waiting:
            return False
        self.delayed += 1
        self._waiting[connection] = begin
        self._arm()
        return True

    def cancel(self, connection: Hashable) -> None:
        """Wait no more; nothing happens if it did not."""
        self._waiting.pop(connection, None)

    def stop(self) -> None:
        """Forget all that wait."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take_permit(self, *, waited_s: float = 0.0) -> bool:
        if self.per_second is None:
            return True
        now_s = self._loop.time()
        if self._next_s - now_s > _GRAIN_S:
            return False
        self._next_s = max(self._next_s, now_s - waited_s) + 1 / self.per_second
        return True

    def _arm(self) -> None:
        if self._timer is None and self._waiting:
            wait_s = max(_GRAIN_S / 2, self._next_s - self._loop.time() - _GRAIN_S)
            self._timer = self._loop.call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        # A few at a time, so that no client waits for more than these; those that have gone cost next to nothing.
        left = 1 + (self.per_second or _UNBOUND_PER_S) // 500
        for _ in range(_LOOKED_AT + left):
            if not left or not self._waiting or not self._take_permit(waited_s=_CATCH_UP_S):
                break
            if self._waiting.pop(next(iter(self._waiting)))(True):
                left -= 1
            elif self.per_second is not None:
                self._next_s -= 1 / self.per_second
        self._arm()
