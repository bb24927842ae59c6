"""Messages that are sent in a burst before the next interval. [io]: timers of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gateway.fleet.exchange import Exchange
from gateway.fleet.shares import Share
from gateway.runtime.clock import NowMs


class UrgentMessages:
    """The first message is sent in the loop's next turn, later ones after `Exchange.urgent_after_ms`."""

    def __init__(self, exchange: Exchange, send: Callable[[Sequence[Share]], None], now_ms: NowMs) -> None:
        """Send urgent messages until `stop`; needs a running loop.

        Args:
            exchange: of this member.
            send: takes the messages.
            now_ms: the loop's clock.
        """
        self._exchange = exchange
        self._send = send
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._not_before_ms = now_ms()
        self._timer: asyncio.TimerHandle | None = None
        exchange.on_urgent(self._wake)

    def _wake(self) -> None:
        if self._timer is None:
            wait_ms = max(0, self._not_before_ms - self._now_ms())
            self._timer = self._loop.call_later(wait_ms / 1000, self._tell)

    def _tell(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        self._not_before_ms = now_ms + self._exchange.urgent_after_ms(now_ms=now_ms)
        if shares := self._exchange.tell_urgent(now_ms=now_ms):
            self._send(shares)

    def stop(self) -> None:
        """Stop; later usage waits for the next tick."""
        self._exchange.on_urgent(lambda: None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
