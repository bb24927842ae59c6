"""A bounded table of counters that keeps debts, and that no kind of client can fill for the others.

Client ids and addresses are free to invent, so the number of counters needs a limit. Each counter belongs to a
*kind*: the clients whose names one party can invent, such as those of one user or of one network. When the table is
full,

* a counter that is as good as new goes;
* else a newcomer whose kind has fewer counters than the largest kind gets the place of one of those. What that one
  has counted goes into the counter that its kind shares;
* else the newcomer is counted by the counter that its own kind shares.

So a kind that stays below its share (the places divided by the kinds) has a counter for each of its clients. Nothing
is forgiven: a new counter begins with what its kind's shared counter holds.

Shared counters are bounded too. Kinds beyond the bound share by a hash of their names, and where there are too many
limits as well, by the limit alone (hazard K08).

Work per call is bounded: a few of the oldest are looked at whenever one is added (a second-chance sweep), and nothing
ever walks the whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, ItemsView, Iterator
from itertools import chain, islice
from typing import Final, Generic, Protocol, Self, TypeAlias, TypeVar

from quotas.group_sizes import GroupSizes

UNLIMITED: Final = float(2**63 - 1)  # what Kafka's sensors are bound by when nothing is configured

Kind: TypeAlias = str | tuple[str, str]
"""A user or a network; of clients without a name of their own, the listener and the network that they come from."""

SharedBy: TypeAlias = float | tuple[float, float]
"""What clients that share a counter have in common: their limit, and the seconds of their bucket where it has one."""

_SWEEP: Final = 4
_SWEEP_WHEN_FULL: Final = 8
_SWEEP_NOW_AND_THEN: Final = 256
_BUCKETS: Final = 64
_MIN_SHARED: Final = 16


class Tracked(Protocol):
    """What the table needs to know of a counter.

    Attributes:
        kind: set by the table.
    """

    kind: Kind

    @property
    def last_ms(self) -> int:
        """When it was used last."""

    @property
    def limit_per_s(self) -> SharedBy:
        """The configured limit, of which a part may be in force."""

    def forgettable(self, *, now_ms: int) -> bool:
        """Whether a new counter would decide the same."""

    def absorb(self, other: Self, *, now_ms: int) -> None:
        """Count what another counter holds, as if it were recorded now; the other keeps it."""

    def forget(self) -> None:
        """Called when the table drops it: save what must not be lost, turn its holders away."""


K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Tracked)


class TrackerTable(Generic[K, T]):
    """Counters by key, and the shared ones by kind and limit."""

    def __init__(self, make: Callable[[K | None, float, int], T], *, max_trackers: int, idle_expiry_ms: int):
        """An empty table.

        Args:
            make: a new counter from its key (None: a shared one), its limit per second and now_ms.
            max_trackers: how many counters of their own there may be.
            idle_expiry_ms: an unused counter goes after this time at the earliest, unless its place is needed.
        """
        self._make = make
        self._max_trackers = max_trackers
        self._max_shared = max(_MIN_SHARED, max_trackers // 16)
        self._idle_expiry_ms = idle_expiry_ms
        self._own: dict[K, T] = {}
        self._by_kind: dict[Kind, dict[K, T]] = {}
        self._sizes: GroupSizes[Kind] = GroupSizes()
        # By kind, by the hash of a kind, by nothing but the limit.
        self._shared: tuple[dict[tuple[Kind | int | None, SharedBy], T], ...] = ({}, {}, {})

    def own(self) -> ItemsView[K, T]:
        """The counters that have a key."""
        return self._own.items()

    def shared(self) -> Iterator[T]:
        """The counters that clients without one of their own share."""
        return chain.from_iterable(level.values() for level in self._shared)

    def find(self, key: K, limit_per_s: SharedBy, kind: Kind) -> T | None:
        """The counter with what a client has used, None when there is none yet."""
        return self._own.get(key) or self.find_shared(limit_per_s, kind)

    def find_own(self, key: K) -> T | None:
        """The counter of this key alone."""
        return self._own.get(key)

    def find_shared(self, limit_per_s: SharedBy, kind: Kind) -> T | None:
        """The shared counter that clients of this kind with this limit use or would begin with."""
        found = self._shared[0].get((kind, limit_per_s))
        if found is None and not self._has_place_for(kind):
            found = self._shared[1].get((_bucket(kind), limit_per_s))
            found = found or self._shared[2].get((None, limit_per_s))
        return found

    def find_or_make(self, key: K, limit_per_s: SharedBy, kind: Kind, *, now_ms: int) -> T:
        """The counter of this key; one that its kind shares when the table is full.

        Args:
            key: what is counted.
            limit_per_s: the configured limit.
            kind: see the module.
            now_ms: the present.
        """
        tracker = self._own.get(key)
        if tracker is not None:
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
        """Drops what has long been unused, a bounded number at a time; so idle counters go without newcomers too."""
        self._sweep(_SWEEP_NOW_AND_THEN, self._idle_expiry_ms, now_ms=now_ms)
        for level in self._shared:
            _sweep_shared(level, _SWEEP_NOW_AND_THEN, now_ms=now_ms)

    def _has_place_for(self, kind: Kind) -> bool:
        # Two more: otherwise both kinds would take the place from each other in turns.
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
            # The number of limits in force is bounded by the configuration; those of the past are swept.
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
