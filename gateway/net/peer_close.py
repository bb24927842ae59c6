"""Detects clients that left while they were not read (hazard C08).

A paused transport sees neither FIN nor RST, so a client that exceeds its quota and vanishes would hold two
descriptors until its throttle ends, and one that vanishes after a half-close as long as its broker takes to answer.
Every two seconds the kernel is asked about all channels that are not read; that costs one system call for any number
of them and nothing on the data path. What only a connection that lasts needs is done at its first look.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Iterable
from typing import Final, Protocol

INTERVAL_S: Final = 2.0
_LOOKS_PER_TURN: Final = 500
"""A first look takes some microseconds: of thousands that came together all others would wait for it."""
_ENDS_PER_TURN: Final = 16
"""An end takes some tenths of a millisecond: of hundreds that left together all others would wait for it."""
_RESET: Final = select.POLLHUP | select.POLLERR
_GONE: Final = select.POLLRDHUP | _RESET


class Watched(Protocol):
    """A channel, as far as this watch is concerned."""

    def unread_fd(self) -> int | None:
        """The client's descriptor while it is not read from, None otherwise."""

    @property
    def leaves_with_fin(self) -> bool:
        """Whether a client that closes its side has left; otherwise it may wait for its replies."""

    def client_gone(self) -> None:
        """The client has left, or reset the connection; nothing happens when the channel has ended already."""

    def outlive_look(self) -> None:
        """It has lasted until a look, or until one more."""


def peer_gone(fd: int) -> bool:
    """Whether the peer of a socket that is not read has closed its side or reset the connection."""
    poll = select.poll()
    poll.register(fd, _GONE)
    return bool(poll.poll(0))


class PeerCloseDetector:
    """Looks at the channels of one listener."""

    def __init__(self, loop: asyncio.AbstractEventLoop, channels: Iterable[Watched]) -> None:
        """Make it; `start` begins to look.

        Args:
            loop: gives the timer.
            channels: a live collection.
        """
        self._loop = loop
        self._channels = channels
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look every `INTERVAL_S` from now on."""
        self._timer = self._loop.call_later(INTERVAL_S, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self.start()
        # One that fails at it ends.
        self._notify(lambda channel: channel.outlive_look(), list(self._channels), _LOOKS_PER_TURN)
        unread = {fd: channel for channel in self._channels if (fd := channel.unread_fd()) is not None}
        if not unread:
            return
        poll = select.poll()
        for fd, channel in unread.items():
            poll.register(fd, _GONE if channel.leaves_with_fin else _RESET)
        gone = [unread[fd] for fd, _ in poll.poll(0)]
        self._notify(lambda channel: channel.client_gone(), gone, _ENDS_PER_TURN)

    def _notify(self, how: Callable[[Watched], None], channels: list[Watched], per_turn: int) -> None:
        """Notify these, some in each turn; one that has ended meanwhile ignores it."""
        for channel in channels[:per_turn]:
            how(channel)
        if len(channels) > per_turn:
            self._loop.call_soon(self._notify, how, channels[per_turn:], per_turn)
