"""Counts messages that are relayed in pieces, so that exactly the relayed bytes are charged. Pure.

A client may announce a length and not send the bytes, even under another client's name. So quotas and usage records
count bytes only when they arrive, and no bytes of a request have to be uncounted when the connection ends (hazard
M01). For a Fetch reply, only its place in the bound is given back (`ReplyParts`). Messages that arrive whole are
counted at once, by their handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quotas.rate_quotas import RateTracker


class Watch(Protocol):
    """Watches the bytes of one message that is relayed unchanged."""

    def take(self, data: bytes, at: int, end: int, *, now_ms: int) -> None:
        """Take the next bytes, `data[at:end]`."""

    def end(self, *, now_ms: int) -> None:
        """Note that no more bytes of the message will arrive."""


class PartsRow(Protocol):
    """A usage record's row; see `gateway.usage.row`."""

    def count(self, units: int) -> None:
        """Count a message of this many units."""

    def add(self, units: int) -> None:
        """Count more units of the last message."""

    def ended(self, units: int) -> None:
        """Note the total units of a message that has ended."""


class RequestParts:
    """Counts a request whose first bytes have been counted."""

    __slots__ = ("_inner", "_left_bytes", "_on_last", "_row", "_size", "_trackers")

    def __init__(
        self,
        size: int,
        came_bytes: int,
        row: PartsRow | None,
        trackers: Sequence[RateTracker],
        inner: Watch | None,
        on_last: Callable[[int, int], None],
    ) -> None:
        """Count the rest.

        Args:
            size: bytes to count for the whole request.
            came_bytes: the part of them that has been counted.
            row: the usage record's row; None: no usage records are kept.
            trackers: the quotas' counters.
            inner: another watch of the same bytes.
            on_last: called with the size of the last part and the time, before it is relayed; records the last part.
        """
        self._size = size
        self._left_bytes = size - came_bytes
        self._row = row
        self._trackers = trackers
        self._inner = inner
        self._on_last = on_last
        for tracker in trackers:  # it is not forgotten for being empty before the rest is recorded
            tracker.parts += 1

    def take(self, data: bytes, at: int, end: int, *, now_ms: int) -> None:
        """See `Watch`."""
        came_bytes = end - at
        if self._inner is not None:
            self._inner.take(
                data, at, end, now_ms=now_ms
            )  # first: if this raises, the piece is neither relayed nor counted
        self._left_bytes -= came_bytes
        if self._row is not None:
            self._row.add(came_bytes)
        if not self._left_bytes:
            self._on_last(came_bytes, now_ms)
        else:
            for tracker in self._trackers:
                tracker.record_part(came_bytes, now_ms=now_ms)

    def end(self, *, now_ms: int) -> None:
        """See `Watch`."""
        for tracker in self._trackers:
            tracker.parts -= 1
        if self._row is not None:
            self._row.ended(self._size - self._left_bytes)
        if self._inner is not None:
            self._inner.end(now_ms=now_ms)


class ReplyParts:
    """Counts a reply whose whole size the quota has already recorded, to put the throttle time into its head."""

    __slots__ = ("_begun_ms", "_inner", "_left_bytes", "_row", "_size", "_trackers", "_uncounted_bytes")

    def __init__(
        self,
        size: int,
        uncounted_bytes: int,
        row: PartsRow | None,
        trackers: Sequence[RateTracker],
        inner: Watch | None,
        *,
        now_ms: int,
    ) -> None:
        """Start before the first bytes of the reply.

        Args:
            size: bytes to count for the whole reply.
            uncounted_bytes: bytes at its beginning that are not counted.
            row: the usage record's row; None: no usage records are kept.
            trackers: the quotas' counters, which have recorded the whole reply.
            inner: another watch of the same bytes.
            now_ms: the time.
        """
        self._size = self._left_bytes = size
        self._uncounted_bytes = uncounted_bytes
        self._row = row
        self._trackers = trackers
        self._inner = inner
        self._begun_ms = now_ms
        for tracker in trackers:
            tracker.expect(size, now_ms=now_ms)

    def take(self, data: bytes, at: int, end: int, *, now_ms: int) -> None:
        """See `Watch`."""
        came_bytes = end - at
        if self._uncounted_bytes:
            uncounted_bytes = min(self._uncounted_bytes, came_bytes)
            self._uncounted_bytes -= uncounted_bytes
            came_bytes -= uncounted_bytes
        self._left_bytes -= came_bytes
        if self._row is not None:
            self._row.add(came_bytes)
        for tracker in self._trackers:
            tracker.arrived(came_bytes, now_ms=now_ms)
        if self._inner is not None:
            self._inner.take(data, at, end, now_ms=now_ms)

    def end(self, *, now_ms: int) -> None:
        """See `Watch`."""
        if self._row is not None:
            self._row.ended(self._size - self._left_bytes)
        if self._left_bytes:
            for tracker in self._trackers:
                tracker.give_up(self._left_bytes, since_ms=self._begun_ms, now_ms=now_ms)
        if self._inner is not None:
            self._inner.end(now_ms=now_ms)
