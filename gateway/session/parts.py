"""Counts messages that are relayed in pieces, so that exactly the relayed bytes are charged. Pure.

A length that a client announces is a promise, and one that it may make in another's name. So neither a quota nor a
usage record counts it before the bytes are here, and where the connection ends no bytes of a request have to be given
back (hazard M01); of a Fetch reply only a place in the bound (`ReplyParts`). Messages that came whole are counted at
once, by their handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quotas.rate_quotas import RateTracker


class Watch(Protocol):
    """Looks at the bytes of one message that are relayed as they are."""

    def take(self, data: bytes, at: int, end: int, *, now_ms: int) -> None:
        """The next bytes."""

    def end(self, *, now_ms: int) -> None:
        """No more of it comes."""


class PartsRow(Protocol):
    """A usage record's row; see `gateway.usage.row`."""

    def count(self, units: int) -> None:
        """A message of so many units."""

    def add(self, units: int) -> None:
        """So many more of them."""

    def ended(self, units: int) -> None:
        """So many together."""


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
            size: what the whole request counts, in bytes.
            came_bytes: what of it has been counted.
            row: the usage record; None: none is kept.
            trackers: the quotas' counters.
            inner: looks at the same bytes.
            on_last: called with the last part's bytes and the time, before it is relayed; it records them.
        """
        self._size = size
        self._left_bytes = size - came_bytes
        self._row = row
        self._trackers = trackers
        self._inner = inner
        self._on_last = on_last

    def take(self, data: bytes, at: int, end: int, *, now_ms: int) -> None:
        """See `Watch`."""
        came_bytes = end - at
        if self._inner is not None:
            self._inner.take(
                data, at, end, now_ms=now_ms
            )  # first: a piece with a fault does not pass, nor count
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
        if self._row is not None:
            self._row.ended(self._size - self._left_bytes)
        if self._inner is not None:
            self._inner.end(now_ms=now_ms)


class ReplyParts:
    """Counts a reply. Its quota has been asked for the whole of it, so that its head has the throttle time."""

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
        """Nothing has come yet.

        Args:
            size: what the whole reply counts, in bytes.
            uncounted_bytes: how much of its beginning does not count.
            row: the usage record; None: none is kept.
            trackers: the quotas' counters, which have recorded the whole.
            inner: looks at the same bytes.
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
