"""Quotas of groups: they apply in addition to each member's own quota. Kafka lacks them.

Each group that has a quota has one counter, which all its members share. The quotas of several groups may apply to
the same request; the client waits for the longest time. A group without members or without a quota has no counter. A
counter is removed with its quota. Groups come from the configuration, so no client can create a counter.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from quotas.entities import MAX_NAME_CHARS, QuotaKey
from quotas.limits import Limits
from quotas.rate import MAX_THROTTLE_MS
from quotas.rate_quotas import RateSettings, RateTracker, Scope, ScopedKey, Urgent, stirred
from quotas.resolution import Match, TrackerKey, match_of_group
from quotas.shared_rate import ConnectionKey
from quotas.throttle_stats import ThrottleStats
from quotas.topic_quotas import TopicKey

_NO_CLIENT: Final = TrackerKey("", "")
_MOST_KEPT: Final = 10_000
"""Clients whose groups are cached after a look-up; names are at most `quotas.entities.MAX_NAME_CHARS` long."""


class GroupKey(NamedTuple):
    """The key of a group's counter."""

    scope: Scope
    group: str

    @property
    def tracker_key(self) -> TrackerKey:
        """The tracker key of no client, where counters of clients have theirs."""
        return _NO_CLIENT


CounterKey: TypeAlias = ScopedKey | TopicKey | GroupKey | ConnectionKey
"""Names a counter of a client, a topic, a group or of connections among those of one quota."""


class _Counter(Protocol):
    def bind(self, match: Match, version: int, *, now_ms: int) -> None: ...


C = TypeVar("C", bound=_Counter)


class GroupCounters(Generic[C]):
    """The counters of one key."""

    def __init__(self, limits: Limits, key: QuotaKey, make: Callable[[GroupKey, int], C]) -> None:
        """Starts with no counters.

        Args:
            limits: the configured quotas and groups.
            key: the key that this object enforces.
            make: returns a new counter for a key and a time; its limit is bound next.
        """
        self._limits = limits
        self._key = key
        self._make = make
        self._counters: dict[GroupKey, C] = {}
        self._found: dict[tuple[Scope, str, str, str], tuple[C, ...]] = {}
        self._version = 0

    @property
    def enabled(self) -> bool:
        """Whether any quota is set."""
        return self._limits.groups_enabled(self._key)

    def trackers(
        self, user: str, client_id: str, address: str, *, scope: Scope = None, now_ms: int
    ) -> tuple[C, ...]:
        """The counters of a client's groups; empty when it is in no group with a quota.

        Args:
            user: the principal's name.
            client_id: of this request, "" for none.
            address: the client's address.
            scope: see `quotas.rate_quotas.ScopedKey`.
            now_ms: the present.
        """
        self._follow_limits(now_ms)
        if not self._limits.groups_enabled(self._key):
            return ()
        client = scope, user, client_id, address
        found = self._found.get(client)
        if found is None:
            of_client = self._limits.groups.of(user, client_id, address)
            counters = (self._counter(GroupKey(scope, group), now_ms) for group in of_client)
            found = tuple(each for each in counters if each is not None)
            if len(self._found) >= _MOST_KEPT:
                self._found.clear()
            if len(client_id) <= MAX_NAME_CHARS:
                self._found[client] = found
        return found

    def expire(self, *, now_ms: int) -> None:
        """Forgets the counters of groups that have no quota any more, also if no client sends requests."""
        self._follow_limits(now_ms)

    def own(self) -> ItemsView[GroupKey, C]:
        """All counters, for the exchange of a fleet."""
        return self._counters.items()

    def find(self, key: GroupKey) -> C | None:
        """The counter of a group, None when there is none yet."""
        return self._counters.get(key)

    def counter_of(self, key: GroupKey, *, now_ms: int) -> C | None:
        """The counter to which records of other members of a fleet are added; see `RateQuotas.counter_of`."""
        self._follow_limits(now_ms)
        return self._counter(key, now_ms) if self._limits.groups_enabled(self._key) else None

    def _counter(self, key: GroupKey, now_ms: int) -> C | None:
        counter = self._counters.get(key)
        if counter is None and (match := match_of_group(self._limits, self._key, key.group)) is not None:
            counter = self._counters[key] = self._make(key, now_ms)
            counter.bind(match, self._version, now_ms=now_ms)
        return counter

    def _follow_limits(self, now_ms: int) -> None:
        """Put new limits in force, and forget groups that have no limit any more."""
        if self._version == self._limits.version:
            return
        self._version = self._limits.version
        self._found.clear()
        for key, counter in list(self._counters.items()):
            match = match_of_group(self._limits, self._key, key.group)
            if match is None:
                del self._counters[key]
            else:
                counter.bind(match, self._version, now_ms=now_ms)


class GroupQuotas(GroupCounters[RateTracker]):
    """The counters of a byte rate, or of request time.

    Attributes:
        urgent: see `RateQuotas`.
    """

    def __init__(
        self, limits: Limits, key: QuotaKey, settings: RateSettings, *, cap_ms: int = MAX_THROTTLE_MS
    ) -> None:
        """Starts with no counters.

        Args:
            limits, key: see `GroupCounters`.
            settings: those of the same quota of clients.
            cap_ms: the longest wait for one request.
        """
        super().__init__(limits, key, self._new)
        self._settings = settings
        self._cap_ms = cap_ms
        self._forgotten = ThrottleStats()
        self.urgent = Urgent()

    def stirred(self) -> list[tuple[GroupKey, RateTracker]]:
        """The counters that other members may need a message about."""
        return stirred(self.own())

    def _new(self, key: GroupKey, now_ms: int) -> RateTracker:
        return RateTracker(self._settings, self._cap_ms, self._forgotten, self.urgent, key=key, now_ms=now_ms)
