"""ThrottleState: until when a connection is muted, what is due later, and its cached counters. Pure.

No mute is longer than the ceiling (`SessionSettings.max_mute_ms`); what a quota asks for beyond it is kept by the
counter, `RateTracker.blocked_until_ms`, and is due at the next requests of any connection (hazard C07).
"""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

from gateway.session.settings import SessionSettings
from gateway.usage.row import UsageRow
from quotas.combine import ThrottledBy
from quotas.entities import QuotaKey
from quotas.rate_quotas import RateTracker

MAX_CACHED_NAME_BYTES: Final = 1_024
"""Client ids up to here are kept with their connection as they stand in requests; longer ones are read each time."""

NOT_KEPT: Final = -1
"""In the place of `CachedSensor.version`: what counts the next request is looked for again."""


class CachedSensor:
    """What a connection's last request was counted by; kept, as the next one is likely counted by it too.

    Attributes:
        client_id, user: whose request it was.
        version: of the limits, or `NOT_KEPT`.
        tracker: the quota's; None when no such quota is set at all.
        row: the usage record's; None when none is kept.
        raw_client_id: with its length, as it stands in the request: one comparison shows that it is the same. Empty
            where it is too long to be kept.
        of_topics: whether any topic has a quota that counts them too, or their records have one.
        records: what their records are counted by, where no topic has such a quota; None: look at `of_topics`.
        groups: of the client's groups that have a quota: what they count the same requests by. Where a capacity is
            divided, also what new clients share.
        trackers: its own counter, if there is one, and those of the groups. A longer wait of one is the client's.
    """

    __slots__ = (
        "client_id",
        "groups",
        "of_topics",
        "raw_client_id",
        "records",
        "row",
        "tracker",
        "trackers",
        "user",
        "version",
    )

    def __init__(
        self,
        client_id: str,
        user: str,
        version: int,
        tracker: RateTracker | None,
        row: UsageRow | None,
        raw_client_id: bytes,
        of_topics: bool = False,
        groups: tuple[CachedSensor, ...] = (),
        records: RateTracker | None = None,
    ) -> None:
        self.raw_client_id = raw_client_id
        self.user = user
        self.version = version
        self.tracker = tracker
        self.row = row
        self.of_topics = of_topics
        self.records = records
        self.groups = groups
        of_groups = [each.tracker for each in groups if each.tracker is not None]
        self.trackers: tuple[RateTracker, ...] = (*(() if tracker is None else (tracker,)), *of_groups)
        self.client_id = client_id

    def is_of(self, user: str, raw_client_id: bytes, version: int, *, now_ms: int) -> bool:
        """Whether a request of this user and client is counted by it, as of this version of the limits."""
        return (
            self.version == version
            and self.raw_client_id == raw_client_id
            and self.user is user
            and (self.tracker is None or now_ms < self.tracker.good_until_ms)
        )

    def of(self, tracker: RateTracker) -> CachedSensor:
        """The sensor of one of its counters."""
        for each in self.groups:
            if each.tracker is tracker:
                return each
        return self

    def record_groups(
        self, wanted_ms: int, value: float, waiter: object, *, now_ms: int
    ) -> tuple[CachedSensor, int]:
        """Count by the groups what its own counter has counted.

        Args:
            wanted_ms: how long the client has to wait for its own counter.
            value: in bytes.
            waiter: the connection.
            now_ms: the time.

        Returns:
            What asks for the longest wait, and that wait.
        """
        asking = self
        for each in self.groups:
            tracker = each.tracker
            assert tracker is not None
            tracker.last_value = value
            wait_ms = tracker.record(value, waiter, now_ms=now_ms)
            if wait_ms > wanted_ms:
                asking, wanted_ms = each, wait_ms
        return asking, wanted_ms


class TopicWait(NamedTuple):
    """What the quotas of topics ask of a connection.

    Attributes:
        until_ms: nothing is to be fetched before.
        sensor: of the counter that asks for it.
        fetched: those counters that a Fetch is lowered for; none that is only observed, or counts records.
        by: the family of the quota that asks for it.
    """

    until_ms: int
    sensor: CachedSensor
    fetched: tuple[RateTracker, ...]
    by: ThrottledBy


_SERIALS: Final = itertools.count(1)


class ThrottleState:
    """See the module.

    Attributes:
        serial: another number for each connection.
        until_ms: when the last throttle is over.
        inherited_until_ms: when the mute is over that an earlier connection left behind (hazards K03, K04).
        inherited_from: the counter that it was left with.
        held_by: the counter that holds the next request, or made the Fetch under way wait; what it then asks for is
            no throttle of another request.
        held_for_time: the next request has waited for the request quota, and passes.
        held_by_api: the counter of its API that made the next request wait.
        max_mute_ms: see the module.
        most_in_flight: how many requests may be without a reply; fewer while the request quota throttles.
        topic_wait: of the topics that were fetched last; None: no quota of a topic has counted them.
        held_for_topics: the next Fetch has waited for topics, and is not asked for those that it names again.
        measured_window: of `BrokerTimes`, in which no more requests of the client are measured; None: there is none.
        measured_ahead: a request with fewer before it on its connection still says something in that window.
        fetch_answer: of the last Fetch that was counted: that of the next one if it is counted alike. It refers to
            the session.
        produce_sensor, fetch_sensor: what the last one was counted by, for whom and as of which limits.
    """

    __slots__ = (
        "_api_counters",
        "_fetching",
        "_max_in_flight_requests",
        "_muting",
        "_waits_at",
        "fetch_answer",
        "fetch_sensor",
        "held_by",
        "held_by_api",
        "held_for_time",
        "held_for_topics",
        "inherited_from",
        "inherited_until_ms",
        "max_mute_ms",
        "measured_ahead",
        "measured_window",
        "most_in_flight",
        "produce_sensor",
        "serial",
        "topic_wait",
        "until_ms",
    )

    def __init__(self, settings: SessionSettings) -> None:
        self.serial = next(_SERIALS)
        self._max_in_flight_requests = settings.max_in_flight_requests
        self.max_mute_ms = settings.max_mute_ms
        self.until_ms = 0
        self.inherited_until_ms = 0
        self.inherited_from: RateTracker | None = None
        self.held_by: RateTracker | None = None
        self.held_for_time = False
        self.held_by_api: RateTracker | None = None
        self._api_counters: dict[QuotaKey, RateTracker] | None = None  # where it may have places
        self.most_in_flight = settings.max_in_flight_requests
        self.topic_wait: TopicWait | None = None
        self.held_for_topics = False
        self.measured_window: object | None = None
        self.measured_ahead = 0
        self.produce_sensor: CachedSensor | None = None
        self.fetch_sensor: CachedSensor | None = None
        self.fetch_answer: object | None = None
        # Of topics and records, where the next request may have places.
        self._waits_at: list[RateTracker] | None = None
        self._muting: RateTracker | None = None  # what asked for the throttle that ends last
        # What the answers under way will be counted by, and how many bytes they may bring.
        self._fetching: list[tuple[tuple[RateTracker, ...], int]] | None = None

    def inherit(self, sensor: CachedSensor, before: CachedSensor | None) -> None:
        """The connection's requests are counted by other counters than before: it serves what others left there.

        Args:
            sensor: with the counters.
            before: what its last request of this kind was counted by.
        """
        now = sensor.trackers
        earlier: tuple[RateTracker, ...] = () if before is None else before.trackers
        for tracker in earlier:
            if tracker not in now:
                tracker.leave(self)
        added = [tracker for tracker in now if tracker not in earlier]
        if not added:
            return
        if self.inherited_from not in now:
            self.inherited_until_ms, self.inherited_from = 0, None
        for tracker in added:
            if tracker.max_in_window() is not None and tracker.left_until_ms > self.inherited_until_ms:
                self.inherited_until_ms, self.inherited_from = tracker.left_until_ms, tracker

    def inherited_ms(self, sensor: CachedSensor, *, now_ms: int) -> int:
        """How long a request waits for what an earlier connection has left with one of these counters."""
        wait_ms = self.inherited_until_ms - now_ms
        return wait_ms if wait_ms > 0 and self.inherited_from in sensor.trackers else 0

    def counted_by(self, key: QuotaKey, tracker: RateTracker) -> None:
        """Requests of a family of APIs are counted by this, where the connection may wait in turn with others."""
        counters = self._api_counters
        if counters is None:
            counters = self._api_counters = {}
        before = counters.get(key)
        if before is not tracker:
            if before is not None:
                before.leave(self)
            counters[key] = tracker

    def waits_at(self, counters: list[RateTracker]) -> None:
        """The next request waits in turn with others at these counters, of topics and records, and at no others."""
        before, self._waits_at = self._waits_at, counters or None
        for counter in before or ():
            if counter not in counters:
                counter.leave(self)

    def fetch_begins(self, sensor: CachedSensor, asked: int, topics: tuple[RateTracker, ...] = ()) -> None:
        """A Fetch is forwarded whose answer counts, and may bring so many bytes.

        Args:
            sensor: counts it.
            asked: see above.
            topics: the counters of the topics that are among them.
        """
        if self._fetching is None:
            self._fetching = []
        counters = sensor.trackers
        if topics:
            counters = (*counters, *[each for each in topics if each not in counters])
        self._fetching.append((counters, asked))
        for each in counters:
            each.fetches += 1
            each.asked += asked

    def fetch_ends(self) -> None:
        """The first of them is answered, or the connection has ended."""
        if not self._fetching:
            return
        counters, asked = self._fetching.pop(0)
        for each in counters:
            each.fetches -= 1
            each.asked -= asked

    def leave(self) -> None:
        """The connection has ended; what is left of its mute is for the next ones."""
        for counter in (self._api_counters or {}).values():
            counter.leave(self)
        self.waits_at([])
        while self._fetching:
            self.fetch_ends()
        self.fetch_answer = None
        for sensor in (self.produce_sensor, self.fetch_sensor):
            for tracker in () if sensor is None else sensor.trackers:
                tracker.leave(self)
        muting = self._muting
        if muting is not None:  # what another quota or the broker has asked for is not the counter's
            muting.left_until_ms = max(muting.left_until_ms, min(self.until_ms, muting.owed_until_ms))

    def extend(
        self,
        throttle_time_ms: int,
        request_row: UsageRow | None,
        tracker: RateTracker | None,
        *,
        now_ms: int,
    ) -> int:
        """A throttle begins; a longer one that is under way stays. Returns when it is over.

        Args:
            throttle_time_ms: > 0.
            request_row: the usage record of the client's request time. This one and those of the sensors note
                that the client may have wanted more than it was seen to want.
            tracker: the byte rate's counter that asks for it; None for another quota.
            now_ms: the time.
        """
        until_ms = now_ms + min(throttle_time_ms, self.max_mute_ms)
        if until_ms > self.until_ms:
            if tracker is not None or now_ms >= self.until_ms:
                self._muting = tracker
            self.until_ms = until_ms
        until_ms = self.until_ms
        for sensor in (self.produce_sensor, self.fetch_sensor):
            if sensor is not None and sensor.row is not None:
                sensor.row.mute(until_ms, now_ms=now_ms)
        if request_row is not None:
            request_row.mute(until_ms, now_ms=now_ms)
        return until_ms

    def one_at_a_time(self) -> None:
        """As with Kafka: of requests sent ahead all would be served before the next wait."""
        self.most_in_flight = 1

    def many_at_once(self) -> None:
        """No request has to wait for the replies of earlier ones."""
        self.most_in_flight = self._max_in_flight_requests
