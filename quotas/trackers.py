"""A bounded table of counters that never forgives.

Client ids are free to invent, so the number of counters needs a limit. Forgetting one that holds a debt would
let its owner escape by flooding the table; therefore only a counter that is as good as new may go, and when
none is, newcomers with the same limit share a counter. Work per call is bounded: a few of the oldest are
looked at whenever one is added (a second-chance sweep), and nothing ever walks the whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, ItemsView, Iterable
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

UNLIMITED: Final = float(2**63 - 1)  # what Kafka's sensors are bound by when nothing is configured

_SWEEP: Final = 4
_SWEEP_WHEN_FULL: Final = 8
_SWEEP_NOW_AND_THEN: Final = 256


class Tracked(Protocol):
    """What the table needs to know of a counter."""

    @property
    def last_ms(self) -> int:
        """When it was used last."""

    def forgettable(self, *, now_ms: int) -> bool:
        """Whether a new counter would decide the same."""

    def forget(self) -> None:
        """Called when the table drops it: save what must not be lost, turn its holders away."""


K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Tracked)


class TrackerTable(Generic[K, T]):
    """Counters by key, and the shared ones by limit."""

    def __init__(self, make: Callable[[K | None, float, int], T], *, max_trackers: int, idle_expiry_ms: int):
        """An empty table.

        Args:
            make: a new counter from its key (None: a shared one), its limit per second and now_ms.
            max_trackers: how many counters of their own there may be.
            idle_expiry_ms: an unused counter goes after this time at the earliest, unless its place is needed.
        """
        self._make = make
        self._max_trackers = max_trackers
        self._idle_expiry_ms = idle_expiry_ms
        self._own: dict[K, T] = {}
        self._shared: dict[float, T] = {}

    def own(self) -> ItemsView[K, T]:
        """The counters that have a key."""
        return self._own.items()

    def shared(self) -> Iterable[T]:
        """The counters that clients without one of their own share."""
        return self._shared.values()

    def find(self, key: K, limit_per_s: float) -> T | None:
        """The counter that a client would be counted by, None when it is still to be made."""
        tracker = self._own.get(key)
        if tracker is None and len(self._own) >= self._max_trackers:
            return self._shared.get(limit_per_s)
        return tracker

    def find_own(self, key: K) -> T | None:
        """The counter of this key alone."""
        return self._own.get(key)

    def find_shared(self, limit_per_s: float) -> T | None:
        """The shared counter of this limit."""
        return self._shared.get(limit_per_s)

    def find_or_make(self, key: K, limit_per_s: float, *, now_ms: int) -> T:
        """The counter of this key; a shared one when the table is full."""
        tracker = self._own.get(key)
        if tracker is not None:
            return tracker
        self._sweep(_SWEEP, self._idle_expiry_ms, now_ms=now_ms)
        if len(self._own) >= self._max_trackers:
            self._sweep(_SWEEP_WHEN_FULL, 0, now_ms=now_ms)
        if len(self._own) < self._max_trackers:
            tracker = self._own[key] = self._make(key, limit_per_s, now_ms)
            return tracker
        if limit_per_s not in self._shared:
            # The number of limits in force is bounded by the configuration; those of the past go here.
            for limit, other in list(self._shared.items()):
                if other.forgettable(now_ms=now_ms):
                    self._shared.pop(limit).forget()
            self._shared[limit_per_s] = self._make(None, limit_per_s, now_ms)
        return self._shared[limit_per_s]

    def expire(self, *, now_ms: int) -> None:
        """Drops what has long been unused, a bounded number at a time; so idle counters go without newcomers too."""
        self._sweep(_SWEEP_NOW_AND_THEN, self._idle_expiry_ms, now_ms=now_ms)

    def _sweep(self, count: int, idle_ms: int, *, now_ms: int) -> None:
        for key in list(islice(self._own, count)):
            tracker = self._own.pop(key)
            if now_ms - tracker.last_ms >= idle_ms and tracker.forgettable(now_ms=now_ms):
                tracker.forget()
            else:
                self._own[key] = tracker
