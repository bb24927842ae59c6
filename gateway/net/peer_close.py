"""Detects clients that left while they were not read (hazard C08).

A paused transport sees neither FIN nor RST. So a client that exceeds its quota and vanishes would keep two
descriptors until its throttle ends. One that vanishes after a half-close would keep them until its broker answers.
Every two seconds the gateway asks the kernel about all channels that are not read. That costs one system call for any
number of them, and no time on the data path. Setup that only a lasting connection needs is done at its first check.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Iterable
from typing import Final, Protocol

INTERVAL_S: Final = 2.0
_LOOKS_PER_TURN: Final = 500
"""A first check takes a few microseconds, so thousands of new connections are checked over several turns."""
_ENDS_PER_TURN: Final = 16
"""Ending a channel takes some tenths of a millisecond, so hundreds are ended over several turns."""
_RESET: Final = select.POLLHUP | select.POLLERR
_GONE: Final = select.POLLRDHUP | _RESET


class Watched(Protocol):
    """The part of a channel that the detector uses."""

    def unread_fd(self) -> int | None:
        """The client's descriptor while the client is not read, None otherwise."""

    @property
    def leaves_with_fin(self) -> bool:
        """Whether a client that closes its side has left; if not, it may still wait for its replies."""

    def client_gone(self) -> None:
        """End the channel: the client has left or reset the connection. Does nothing if it has ended already."""

    def outlive_look(self) -> None:
        """Note that the channel has lasted until a check. Called at each check."""


def peer_gone(fd: int) -> bool:
    """Whether the peer of a socket that is not read has closed its side or reset the connection."""
    poll = select.poll()
    poll.register(fd, _GONE)
    return bool(poll.poll(0))


class PeerCloseDetector:
    """Checks the channels of one listener."""

    def __init__(self, loop: asyncio.AbstractEventLoop, channels: Iterable[Watched]) -> None:
        """Create a detector; `start` begins the checks.

        Args:
            loop: provides the timer.
            channels: the listener's channels, a live collection.
        """
        self._loop = loop
        self._channels = channels
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check every `INTERVAL_S` from now on."""
        self._timer = self._loop.call_later(INTERVAL_S, self._look)

    def stop(self) -> None:
        """Stop the checks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self.start()
        # A channel that raises ends.
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
        """Notify these channels, a few in each turn. A channel that has ended meanwhile ignores it."""
        for channel in channels[:per_turn]:
            how(channel)
        if len(channels) > per_turn:
            self._loop.call_soon(self._notify, how, channels[per_turn:], per_turn)
