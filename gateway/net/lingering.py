"""Transports that were closed with bytes unsent: the last replies to clients that read slowly.

`close()` alone waits for ever for a peer that does not read, and the end of the process does not wait at all; so
each of them gets a little while, and a drain waits for them like for open connections.
"""

from __future__ import annotations

import asyncio
from typing import Final

LINGER_S: Final = 10.0
"""How long a closed transport may take to hand over what is left."""


class Lingering:
    """The closed transports of one listener that are not done.

    Attributes:
        most: see the constructor; None: any number, which is right in a drain, when no new connection is let in.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, most: int = 256) -> None:
        """None yet.

        Args:
            loop: gives the timers.
            most: how many there may be, each with its descriptor; beyond, the oldest is cut off.
        """
        self._loop = loop
        self.most: int | None = most
        self._timers: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def close(self, transport: asyncio.Transport) -> None:
        """Close a transport; what is unsent may still leave for `LINGER_S`."""
        transport.close()
        if transport.get_write_buffer_size():
            if self.most is not None and len(self._timers) >= self.most:
                self._drop_oldest()
            self._timers[transport] = self._loop.call_later(LINGER_S, self._give_up, transport)

    def _drop_oldest(self) -> None:
        done = [each for each in self._timers if not each.get_write_buffer_size()]
        for transport in done or [next(iter(self._timers))]:
            self._timers[transport].cancel()
            self._give_up(transport)

    def _give_up(self, transport: asyncio.Transport) -> None:
        del self._timers[transport]
        transport.abort()

    @property
    def unsent(self) -> bool:
        """Whether there is anything that the end of the process would cut off."""
        return any(transport.get_write_buffer_size() for transport in self._timers)

    def abort(self) -> None:
        """Give up all of them."""
        for transport, timer in self._timers.items():
            timer.cancel()
            transport.abort()
        self._timers.clear()
