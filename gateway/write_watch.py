"""Cuts off a client that takes too little of what waits for it (hazards B08, B10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.session_settings import SessionSettings


class _Owner(Protocol):
    """A listener, as far as this watch is concerned."""

    loop: asyncio.AbstractEventLoop
    settings: SessionSettings


class _Buffer(Protocol):
    """A transport, as far as this watch is concerned."""

    def get_write_buffer_size(self) -> int:
        """Bytes that have not left."""


class WriteWatch:
    """Looks at one transport for as long as it is full: each period some of its bytes must leave."""

    __slots__ = ("_left_bytes", "_on_stalled", "_owner", "_timer", "_transport")

    def __init__(self, owner: _Owner, transport: _Buffer, on_stalled: Callable[[], None]) -> None:
        """Begin to look.

        Args:
            owner: its settings say how long a period is and how much must leave; they may change meanwhile.
            transport: full; nothing is added to it by more than replies that are made here.
            on_stalled: called once, when too little has left.
        """
        self._owner = owner
        self._transport = transport
        self._on_stalled = on_stalled
        self._start()

    def _start(self) -> None:
        self._left_bytes = self._transport.get_write_buffer_size()
        self._timer = self._owner.loop.call_later(self._owner.settings.write_timeout_ms / 1000, self._check)

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _check(self) -> None:
        settings = self._owner.settings
        progress = self._left_bytes - self._transport.get_write_buffer_size()
        if progress < settings.min_write_bytes_per_s * settings.write_timeout_ms // 1000:
            self._on_stalled()
        else:
            self._start()
