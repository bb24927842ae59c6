"""A bounded table of counters that keeps debts, and that no kind of client can fill for the others.

Clients can invent client ids and addresses, so the number of counters needs a bound. Each counter belongs to a
*kind*: the clients whose names one party can invent, such as those of one user or of one network. When the table is
full,

* a counter that is equivalent to a new one is dropped;
* otherwise, if the new client's kind has fewer counters than the largest kind, it gets the place of one of the
  largest kind's counters. The use in the dropped counter is added to the counter that its kind shares;
* otherwise the new client is counted by the counter that its own kind shares.

So a kind that stays below its share (the places divided by the kinds) has a counter for each of its clients. No use
is forgiven: a new counter begins with the use in its kind's shared counter.

Shared counters are bounded too. Kinds beyond the bound share counters by a hash of their names. If there are too many
limits as well, they share by the limit alone (hazard K08).

Work per call is bounded: whenever a counter is added, a few of the oldest are checked (a second-chance sweep). No
call walks the whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, ItemsView, Iterator
from itertools import chain, islice
from typing import Final, Generic, Protocol, Self, TypeAlias, TypeVar

from quotas.group_sizes import GroupSizes

UNLIMITED: Final = float(2**63 - 1)  # the bound of Kafka's sensors when nothing is configured

Kind: TypeAlias = str | tuple[str, str]
"""A user or a network. For clients without a name of their own it is their listener and their network."""

SharedBy: TypeAlias = float | tuple[float, float]
"""The limit that clients of a shared counter have in common, with the size of their bucket in seconds if any."""

FLEET_KIND: Final[Kind] = ("", "fleet")
"""The kind of counters that are only known from other members of a fleet, if their own kind is not known. They get it
with the first look-up for a client here."""

_SWEEP: Final = 4
_SWEEP_WHEN_FULL: Final = 8
_SWEEP_NOW_AND_THEN: Final = 256
_BUCKETS: Final = 64
_MIN_SHARED: Final = 16


class Tracked(Protocol):
    """A counter as the table uses it.

    Attributes:
        kind: set by the table.
    """

    kind: Kind

    @property
    def last_ms(self) -> int:
        """The time of its last use."""

    @property
    def limit_per_s(self) -> SharedBy:
        """The configured limit, of which a part may be in force."""

    def forgettable(self, *, now_ms: int) -> bool:
        """Whether a new counter would decide the same."""

    def absorb(self, other: Self, *, now_ms: int) -> None:
        """Count the use of another counter as if it were recorded now. The other counter does not change."""

    def forget(self) -> None:
        """Called when the table drops the counter: keep its totals, and make its holders look up another."""


K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Tracked)


class TrackerTable(Generic[K, T]):
    """Counters by key, and the shared ones by kind and limit."""

    def __init__(self, make: Callable[[K | None, float, int], T], *, max_trackers: int, idle_expiry_ms: int):
        """An empty table.

        Args:
            make: returns a new counter for a key (None: a shared one), a limit per second and now_ms.
            max_trackers: the most counters that are not shared.
            idle_expiry_ms: an unused counter is dropped after this time at the earliest, unless its place is needed.
        """
        self._make = make
        self._max_trackers = max_trackers
        self._max_shared = max(_MIN_SHARED, max_trackers // 16)
        self._idle_expiry_ms = idle_expiry_ms
        self._own: dict[K, T] = {}
        self._by_kind: dict[Kind, dict[K, T]] = {}
        self._sizes: GroupSizes[Kind] = GroupSizes()
        # Three levels: by kind, by the hash of a kind, by the limit alone.
        self._shared: tuple[dict[tuple[Kind | int | None, SharedBy], T], ...] = ({}, {}, {})

    def own(self) -> ItemsView[K, T]:
        """The counters that have a key."""
        return self._own.items()

    def shared(self) -> Iterator[T]:
        """The counters that clients without one of their own share."""
        return chain.from_iterable(level.values() for level in self._shared)

    def find(self, key: K, limit_per_s: SharedBy, kind: Kind) -> T | None:
        """The counter of a client's use, None when there is none yet."""
        return self._own.get(key) or self.find_shared(limit_per_s, kind)

    def find_own(self, key: K) -> T | None:
        """The counter of this key alone."""
        return self._own.get(key)

    def find_shared(self, limit_per_s: SharedBy, kind: Kind) -> T | None:
        """The shared counter that clients of this kind with this limit use, or would start from."""
        found = self._shared[0].get((kind, limit_per_s))
        if found is None and not self._has_place_for(kind):
            found = self._shared[1].get((_bucket(kind), limit_per_s))
            found = found or self._shared[2].get((None, limit_per_s))
        return found

    def find_or_make(self, key: K, limit_per_s: SharedBy, kind: Kind, *, now_ms: int) -> T:
        """The counter of this key, or one that its kind shares when the table is full.

        Args:
            key: the counter's key.
            limit_per_s: the configured limit.
            kind: see the module.
            now_ms: the present.
        """
        tracker = self._own.get(key)
        if tracker is not None:
            if tracker.kind == FLEET_KIND and kind != FLEET_KIND:
                self._move(key, tracker, kind)
            return tracker
        self._sweep(_SWEEP, self._idle_expiry_ms, now_ms=now_ms)
        if len(self._own) >= self._max_trackers:
            self._sweep(_SWEEP_WHEN_FULL, 0, now_ms=now_ms)
        if not self._has_place_for(kind):
            return self._find_or_make_shared(limit_per_s, kind, now_ms=now_ms)
        if len(self._own) >= self._max_trackers:
            self._take_from_largest(now_ms=now_ms)
        tracker = self._make(key, _limit_of(limit_per_s), now_ms)
        shared = self._shared[0].get((kind, limit_per_s))
        if shared is not None and not shared.forgettable(now_ms=now_ms):
            tracker.absorb(shared, now_ms=now_ms)
        tracker.kind = kind
        self._own[key] = tracker
        self._by_kind.setdefault(kind, {})[key] = tracker
        self._sizes.add(kind)
        return tracker

    def expire(self, *, now_ms: int) -> None:
        """Drops a bounded number of counters that have long been unused, also if no counter is added."""
        self._sweep(_SWEEP_NOW_AND_THEN, self._idle_expiry_ms, now_ms=now_ms)
        for level in self._shared:
            _sweep_shared(level, _SWEEP_NOW_AND_THEN, now_ms=now_ms)

    def _has_place_for(self, kind: Kind) -> bool:
        # The largest kind has two counters more: otherwise two kinds would take a place from each other in turns.
        return len(self._own) < self._max_trackers or self._sizes.largest >= self._sizes[kind] + 2

    def _take_from_largest(self, *, now_ms: int) -> None:
        kind = self._sizes.largest_group()
        counters = self._by_kind[kind]
        key = min(islice(counters, _SWEEP_WHEN_FULL), key=lambda each: counters[each].last_ms)
        tracker = self._own.pop(key)
        self._left(key, tracker)
        if not tracker.forgettable(now_ms=now_ms):
            shared = self._find_or_make_shared(tracker.limit_per_s, kind, now_ms=now_ms)
            shared.absorb(tracker, now_ms=now_ms)
        tracker.forget()

    def _find_or_make_shared(self, limit_per_s: SharedBy, kind: Kind, *, now_ms: int) -> T:
        places = (
            (self._shared[0], (kind, limit_per_s)),
            (self._shared[1], (_bucket(kind), limit_per_s)),
            (self._shared[2], (None, limit_per_s)),
        )
        for level, name in places:
            if name in level:
                return level[name]
        tracker = self._make(None, _limit_of(limit_per_s), now_ms)
        tracker.kind = kind
        for level, name in places:
            _sweep_shared(level, _SWEEP, now_ms=now_ms)
            # The configuration bounds the number of limits in force. Counters of earlier limits are swept.
            if len(level) < self._max_shared or name[0] is None:
                level[name] = tracker
                break
        return tracker

    def _sweep(self, count: int, idle_ms: int, *, now_ms: int) -> None:
        for key in list(islice(self._own, count)):
            tracker = self._own.pop(key)
            if now_ms - tracker.last_ms >= idle_ms and tracker.forgettable(now_ms=now_ms):
                self._left(key, tracker)
                tracker.forget()
            else:
                self._own[key] = tracker

    def _move(self, key: K, tracker: T, kind: Kind) -> None:
        self._left(key, tracker)
        tracker.kind = kind
        self._by_kind.setdefault(kind, {})[key] = tracker
        self._sizes.add(kind)

    def _left(self, key: K, tracker: T) -> None:
        counters = self._by_kind[tracker.kind]
        del counters[key]
        self._sizes.remove(tracker.kind)
        if not counters:
            del self._by_kind[tracker.kind]


def _limit_of(shared_by: SharedBy) -> float:
    return shared_by[0] if isinstance(shared_by, tuple) else shared_by


def _bucket(kind: Kind) -> int:
    return hash(kind) % _BUCKETS


def _sweep_shared(level: dict[tuple[Kind | int | None, SharedBy], T], count: int, *, now_ms: int) -> None:
    for name in list(islice(level, count)):
        tracker = level.pop(name)
        if tracker.forgettable(now_ms=now_ms):
            tracker.forget()
        else:
            level[name] = tracker
