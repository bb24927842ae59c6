"""Closed transports whose peer has not received everything yet: the last replies to slow clients.

`close()` alone is not enough. The kernel answers unread input with RST, and then drops its unsent bytes. A client
that keeps sending would lose replies to requests that were carried out (hazard L02). So the gateway first closes the
sending side and drops received bytes. It closes the socket when the peer has acknowledged all bytes. A client that
is still sending may see the end meanwhile and stop. All this is bounded in time, and a drain waits for it as for
open connections.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.net.stalled_write import unacknowledged_bytes, unread_bytes, unsent_bytes
from gateway.runtime.lateness import LATE_MS

LINGER_S: Final = 10.0
"""How long a closed transport may take to send its last bytes. In a drain, the time without any progress."""

_LOOK_S: Final = 0.02
_FIN_S: Final = 1.0
"""How long a peer that sent more after the end of its replies may take to close its side."""


class HasFileno(Protocol):
    """A socket."""

    def fileno(self) -> int:
        """Its descriptor; negative once it is closed."""


class _Discarding(asyncio.Protocol):
    """Drops received bytes until the peer closes its side. Only the end is reported to the user."""

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
    """One closed transport with unsent or unread bytes.

    Attributes:
        left_bytes: bytes that the peer has not acknowledged.
        give_up_s: when the transport is aborted.
        input: drops the received bytes.
        handed_over_s: when the peer had acknowledged all bytes; None before.
    """

    left_bytes: int
    give_up_s: float
    input: _Discarding
    handed_over_s: float | None = None


class Lingering:
    """The closed transports of one listener whose peers have not received all bytes.

    Attributes:
        most: see the constructor; None: any number, for a drain, in which no new connection is accepted.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, most: int = 256) -> None:
        """Start without transports.

        Args:
            loop: provides the timers.
            most: how many transports, each with a descriptor, may linger. With more, the oldest is aborted.
        """
        self._loop = loop
        self.most: int | None = most
        self._rests: dict[asyncio.Transport, _Rest] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def close(
        self, transport: asyncio.Transport, connection: HasFileno | None = None, *, ended: bool = False
    ) -> None:
        """Close a transport. Its unsent bytes may still be sent for `LINGER_S`.

        Args:
            transport: the transport.
            connection: its socket; None: the transport is asked for it.
            ended: whether the peer has closed its side, and all its bytes were read. With TLS, more bytes may follow.
        """
        if transport.is_closing():
            transport.close()
            return
        if connection is None:
            connection = transport.get_extra_info("socket")
        descriptor = -1 if connection is None else connection.fileno()
        left_bytes = transport.get_write_buffer_size() + unsent_bytes(descriptor)
        tls = transport.get_extra_info("ssl_object") is not None
        if not left_bytes and ((ended and not tls) or not unread_bytes(descriptor)):
            transport.close()
            return
        if self.most is not None and len(self._rests) >= self.most:
            self._give_up(next(iter(self._rests)))
        # After `write_eof`, a transport with TLS drops received bytes and does not report them.
        may_send = tls and not ended
        discarding = _Discarding(transport.get_protocol(), received=may_send or not left_bytes)
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
            # A peer that has sent nothing meanwhile loses nothing now; others get time to close their side.
            return not rest.input.received or now_s >= rest.handed_over_s + _FIN_S
        if left_bytes < rest.left_bytes and self.most is None:
            rest.left_bytes, rest.give_up_s = left_bytes, now_s + LINGER_S
        return now_s >= rest.give_up_s

    def _give_up(self, transport: asyncio.Transport) -> None:
        del self._rests[transport]
        transport.abort()

    @property
    def unsent(self) -> bool:
        """Whether the end of the process would cut off any transport."""
        return any(not rest.input.ended for rest in self._rests.values())

    def abort(self) -> None:
        """Abort all transports."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for transport in list(self._rests):
            self._give_up(transport)
