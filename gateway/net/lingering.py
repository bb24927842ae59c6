"""Closed transports whose peer has not received everything yet: the last replies to slow clients.

`close()` alone is not enough. The kernel answers input that nothing reads with RST, and then drops what it still has
to send: a client that keeps sending would lose replies to requests that were carried out (hazard L02). So the
sending side is closed first, what comes is read and dropped, and the rest follows when the peer has acknowledged all
of it. A client that still sends may meanwhile see the end and stop. All of it is bounded in time, and a drain waits
for it as for open connections.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.net.stalled_write import unacknowledged_bytes, unread_bytes, unsent_bytes
from gateway.runtime.lateness import LATE_MS

LINGER_S: Final = 10.0
"""How long a closed transport may take to hand over what is left; in a drain, without any progress."""

_LOOK_S: Final = 0.02
_FIN_S: Final = 1.0
"""How long a peer that sent more after the end of its replies may take to close its side."""


class HasFileno(Protocol):
    """A socket."""

    def fileno(self) -> int:
        """Its descriptor; negative once it is closed."""


class _Discarding(asyncio.Protocol):
    """Reads what comes and keeps nothing of it, until the peer closes its side; the user learns of the end alone."""

    def __init__(self, user: asyncio.BaseProtocol, *, received: bool) -> None:
        self._user = user
        self.received = received
        self.ended = False

    def data_received(self, data: bytes) -> None:
        self.received = True

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self._user.connection_lost(exc)


@dataclass(slots=True)
class _Rest:
    """What is left of one transport.

    Attributes:
        left_bytes: that its peer has not acknowledged.
        give_up_s: when it is cut off.
        input: reads it.
        handed_over_s: since when its peer has everything.
    """

    left_bytes: int
    give_up_s: float
    input: _Discarding
    handed_over_s: float | None = None


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
        self._rests: dict[asyncio.Transport, _Rest] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def close(
        self, transport: asyncio.Transport, connection: HasFileno | None = None, *, ended: bool = False
    ) -> None:
        """Close a transport; what its peer does not have yet may still leave for `LINGER_S`.

        Args:
            transport: see above.
            connection: its socket; None: it is asked for it.
            ended: the peer has sent its end, and all before it was read. With TLS more may have come behind it.
        """
        if transport.is_closing():
            transport.close()
            return
        if connection is None:
            connection = transport.get_extra_info("socket")
        descriptor = -1 if connection is None else connection.fileno()
        left_bytes = transport.get_write_buffer_size() + unsent_bytes(descriptor)
        ended = ended and transport.get_extra_info("ssl_object") is None
        if not left_bytes and (ended or not unread_bytes(descriptor)):
            transport.close()
            return
        if self.most is not None and len(self._rests) >= self.most:
            self._give_up(next(iter(self._rests)))
        discarding = _Discarding(transport.get_protocol(), received=not left_bytes)
        self._rests[transport] = _Rest(left_bytes, self._loop.time() + LINGER_S, discarding)
        transport.set_protocol(discarding)
        transport.write_eof()
        transport.resume_reading()
        if self._timer is None:
            self._arm()

    def _look(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        if (late_s := now_s - self._due_s) * 1000 >= LATE_MS:
            for rest in self._rests.values():
                rest.give_up_s += late_s
        for transport, rest in list(self._rests.items()):
            if rest.input.ended:
                del self._rests[transport]
            elif self._is_over(transport, rest, now_s):
                self._give_up(transport)
        if self._rests:
            self._arm()

    def _arm(self) -> None:
        self._due_s = self._loop.time() + _LOOK_S
        self._timer = self._loop.call_later(_LOOK_S, self._look)

    def _is_over(self, transport: asyncio.Transport, rest: _Rest, now_s: float) -> bool:
        left_bytes = unacknowledged_bytes(transport)
        if not left_bytes:
            if rest.handed_over_s is None:
                rest.handed_over_s = now_s
            # Read what has come since: a peer that sends nothing more loses nothing by the end.
            return not rest.input.received or now_s >= rest.handed_over_s + _FIN_S
        if left_bytes < rest.left_bytes and self.most is None:
            rest.left_bytes, rest.give_up_s = left_bytes, now_s + LINGER_S
        return now_s >= rest.give_up_s

    def _give_up(self, transport: asyncio.Transport) -> None:
        del self._rests[transport]
        transport.abort()

    @property
    def unsent(self) -> bool:
        """Whether there is anything that the end of the process would cut off."""
        return any(not rest.input.ended for rest in self._rests.values())

    def abort(self) -> None:
        """Give up all of them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for transport in list(self._rests):
            self._give_up(transport)
