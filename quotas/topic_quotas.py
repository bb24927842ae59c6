"""Byte rates of topics, alone and with a user or a client id: several may apply to the same bytes (after KIP-13).

Kafka has no quota for topics (KAFKA-656). There are three families: topic; user and topic; client id and topic. In
each family that has quotas the most exact entity applies, a topic by name before the default one. Each entity has a
counter for every single topic and, if its family names a user or client id, for every single one of these. The client
waits for the longest time of all.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import ItemsView
from typing import Final, NamedTuple

from quotas.entities import DEFAULT, MAX_NAME_CHARS, Family, Name, QuotaEntity, QuotaKey, cut_name
from quotas.limits import Limits
from quotas.rate import MAX_THROTTLE_MS
from quotas.rate_quotas import RateSettings, RateTracker, Scope, Urgent, stirred
from quotas.resolution import Match, Rule, TrackerKey
from quotas.throttle_stats import ThrottleStats
from quotas.trackers import Kind, TrackerTable

_RULES: Final = {
    Family.TOPIC: Rule.TOPIC,
    Family.USER_TOPIC: Rule.USER_TOPIC,
    Family.CLIENT_TOPIC: Rule.CLIENT_TOPIC,
}


_SWEPT_WAITS: Final = 2
_SWEPT_NOW_AND_THEN: Final = 256


class _Client(NamedTuple):
    """The clients whose bytes a counter may count: all of them, those of a user, a client id, or a kind."""

    user: str = ""
    client_id: str = ""
    kind: Kind = ""


class TopicKey(NamedTuple):
    """The key of a counter; user and client id are empty if the family does not name them."""

    scope: Scope
    family: Family
    topic: str
    user: str
    client_id: str

    @property
    def tracker_key(self) -> TrackerKey:
        """The tracker key of the client, as counters of clients have it."""
        return TrackerKey(self.user, self.client_id)


class TopicQuotas:
    """The counters of one key.

    Attributes:
        urgent: see `RateQuotas`.
    """

    def __init__(self, limits: Limits, key: QuotaKey, settings: RateSettings) -> None:
        """Starts with no counters.

        Args:
            limits: the configured quotas.
            key: producer_byte_rate or consumer_byte_rate.
            settings: those of the other byte rates.
        """
        self._limits = limits
        self._key = key
        self._settings = settings
        self._forgotten = ThrottleStats()
        self.urgent = Urgent()
        self._waits: OrderedDict[_Client, int] = OrderedDict()  # until when requests of these may wait
        self._waits_version = 0
        self._table: TrackerTable[TopicKey, RateTracker] = TrackerTable(
            self._make, max_trackers=settings.max_trackers, idle_expiry_ms=settings.idle_expiry_ms
        )
        self._found: dict[tuple[Scope, str, str, str], tuple[RateTracker, ...]] = {}
        self._version = 0
        # The names in quotas of topics, as of that version. For most requests, no further look-up is needed.
        self._topics: frozenset[Name | None] = frozenset()
        self._users: frozenset[Name | None] = frozenset()
        self._clients: frozenset[Name | None] = frozenset()

    @property
    def enabled(self) -> bool:
        """Whether any quota is set."""
        return self._limits.topics_enabled(self._key)

    def may_apply(self, user: str, client_id: str) -> bool:
        """Whether any quota of a topic may count this client's bytes."""
        if not self.enabled:
            return False
        if len(client_id) > MAX_NAME_CHARS:
            client_id = cut_name(client_id)
        self._follow_limits()
        users, clients = self._users, self._clients
        return (
            Family.TOPIC in self._limits.topic_families(self._key)
            or user in users
            or DEFAULT in users
            or client_id in clients
            or DEFAULT in clients
        )

    def names(self, topic: str) -> bool:
        """Whether any quota is for this topic, or for all. It is fast, because clients may name thousands."""
        self._follow_limits()
        return DEFAULT in self._topics or cut_name(topic) in self._topics

    def trackers(
        self, user: str, client_id: str, topic: str, *, kind: Kind, scope: Scope = None, now_ms: int
    ) -> tuple[RateTracker, ...]:
        """The counters of a client's bytes of a topic; empty when no quota applies.

        Args:
            user, client_id: the client.
            topic: the topic's name.
            kind: see `quotas.trackers`.
            scope: see `ScopedKey`.
            now_ms: the present.
        """
        if len(topic) > MAX_NAME_CHARS or len(client_id) > MAX_NAME_CHARS:  # clients may invent them
            topic, client_id = cut_name(topic), cut_name(client_id)
        self._follow_limits()
        if topic not in self._topics and DEFAULT not in self._topics:
            return ()
        found = self._found.get((scope, user, client_id, topic))
        for each in found or ():
            if now_ms >= each.good_until_ms:
                found = None
                break
        if found is None:
            found = tuple(self._look_up(user, client_id, topic, kind, scope, now_ms))
            # Names of topics without a quota are not kept: clients may invent them.
            if found and not any(each.shared for each in found):
                self._found[scope, user, client_id, topic] = found
        return found

    def note_wait(self, tracker: RateTracker, kind: Kind, *, now_ms: int) -> None:
        """Remembers until when requests wait for this counter, if they do: see `any_used_up`.

        Args:
            tracker: a counter of this object.
            kind: the kind of the client that it counted, of which it may be shared.
            now_ms: the present.
        """
        if tracker.match.observe:
            return
        until_ms = max(math.ceil(tracker.blocked_until_ms), now_ms + tracker.hold_ms(now_ms=now_ms))
        if until_ms > now_ms:
            key = tracker.key
            client = _Client(key.user, key.client_id) if isinstance(key, TopicKey) else _Client(kind=kind)
            self._note(client, until_ms, now_ms)

    def _note(self, client: _Client, until_ms: int, now_ms: int) -> None:
        waits = self._waits
        self._bound_waits(now_ms)
        self._sweep_waits(_SWEPT_WAITS, now_ms)
        if client not in waits and len(waits) >= self._settings.max_trackers:
            client = _Client()  # clients may invent names: then all of them may have to wait
        waits[client] = max(until_ms, waits.get(client, 0))

    def any_used_up(self, user: str, client_id: str, *, kind: Kind, now_ms: int) -> bool:
        """Whether requests wait for any counter that may count this client's bytes, of whichever topic.

        It may say so for a while when they no longer do: for at most a window after quotas have changed.
        """
        waits = self._waits
        if not waits:
            return False
        self._bound_waits(now_ms)
        if len(client_id) > MAX_NAME_CHARS:
            client_id = cut_name(client_id)
        clients = (_Client(), _Client(user), _Client("", client_id), _Client(kind=kind))
        return any(waits.get(each, 0) > now_ms for each in clients)

    def _bound_waits(self, now_ms: int) -> None:
        """Makes waits of earlier quotas end within a window: they may be longer than those of the present ones."""
        if self._waits_version == self._limits.version:
            return
        self._waits_version = self._limits.version
        latest_ms = now_ms + self._settings.window_num * self._settings.window_ms
        for client, until_ms in self._waits.items():
            self._waits[client] = min(until_ms, latest_ms)

    def _sweep_waits(self, most: int, now_ms: int) -> None:
        """Forgets waits that are over, among so many that were not looked at for the longest time."""
        waits = self._waits
        for _ in range(min(most, len(waits))):
            client, until_ms = waits.popitem(last=False)
            if until_ms > now_ms:
                waits[client] = until_ms

    def expire(self, *, now_ms: int) -> None:
        """Forgets topics and clients that have long been silent; see `RateQuotas.expire`."""
        self._table.expire(now_ms=now_ms)
        self._sweep_waits(_SWEPT_NOW_AND_THEN, now_ms)

    def own(self) -> ItemsView[TopicKey, RateTracker]:
        """The counters of one topic each, for the exchange of a fleet."""
        return self._table.own()

    def stirred(self) -> list[tuple[TopicKey, RateTracker]]:
        """Those that others may need a message about."""
        return stirred(self._table.own())

    def counter_of(self, key: TopicKey, kind: Kind, *, now_ms: int) -> RateTracker | None:
        """The counter to which records of other members of a fleet are added; see `RateQuotas.counter_of`."""
        limits = self._limits
        tracker = self._table.find_own(key)
        if tracker is not None and tracker.version == limits.version:
            self.note_wait(tracker, kind, now_ms=now_ms)
            return tracker
        if not limits.topics_enabled(self._key):
            return None
        match = self._match(key.family, key.user, key.client_id, key.topic)
        # No client has a counter with a key that names more than its family does.
        if match is None or match.limit is None or match.tracker_key != key.tracker_key:
            return None
        if tracker is None:
            tracker = self._table.find_or_make(key, match.shared_by, kind, now_ms=now_ms)
            if tracker.shared:
                return None
            # What others used is recorded next, and may be all of the quota: after an upgrade, say.
            self._note(_Client(key.user, key.client_id), now_ms + tracker.window_ms, now_ms)
        tracker.bind(match, limits.version, now_ms=now_ms)
        return tracker

    def _follow_limits(self) -> None:
        limits = self._limits
        if self._version != limits.version:
            self._found.clear()
            self._version = limits.version
            of_topics = list(limits.topic_entities(self._key))
            self._topics = frozenset(entity.topic for entity in of_topics)
            self._users = frozenset(entity.user for entity in of_topics)
            self._clients = frozenset(entity.client_id for entity in of_topics)
        elif len(self._found) >= 4 * self._settings.max_trackers:
            self._found.clear()

    def _look_up(
        self, user: str, client_id: str, topic: str, kind: Kind, scope: Scope, now_ms: int
    ) -> list[RateTracker]:
        limits = self._limits
        found = []
        for family in _RULES:
            if family not in limits.topic_families(self._key) or not limits.topics_enabled(self._key):
                continue
            match = self._match(family, user, client_id, topic)
            if match is None or match.limit is None:
                continue
            key = TopicKey(scope, family, topic, *match.tracker_key)
            tracker = self._table.find_or_make(key, match.shared_by, kind, now_ms=now_ms)
            tracker.bind(match, limits.version, now_ms=now_ms)
            found.append(tracker)
        return found

    def _match(self, family: Family, user: str, client_id: str, topic: str) -> Match | None:
        limits = self._limits
        users: tuple[Name | None, ...] = (user, DEFAULT) if family is Family.USER_TOPIC else (None,)
        clients: tuple[Name | None, ...] = (client_id, DEFAULT) if family is Family.CLIENT_TOPIC else (None,)
        counter = TrackerKey(
            user if family is Family.USER_TOPIC else "", client_id if family is Family.CLIENT_TOPIC else ""
        )
        topics: tuple[Name, ...] = (topic, DEFAULT)
        for named_topic in topics:
            for named_user in users:
                for named_client in clients:
                    entity = QuotaEntity(named_user, named_client, topic=named_topic)
                    limit = limits.get(entity, self._key)
                    if limit is not None:
                        limit *= limits.share
                        observe = limits.observes(entity)
                        return Match(limit, _RULES[family], counter, observe, entity, limits.share)
        return None

    def _make(self, key: TopicKey | None, limit: float, now_ms: int) -> RateTracker:
        return RateTracker(
            self._settings, MAX_THROTTLE_MS, self._forgotten, self.urgent, key=key, now_ms=now_ms
        )
