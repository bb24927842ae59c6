"""ThrottleState: until when a connection is muted, its places in turn, and its cached counters. Pure.

No mute is longer than `SessionSettings.max_mute_ms`. The counter keeps the rest of a longer wait in
`RateTracker.blocked_until_ms`; the next requests of any connection that it counts wait for it (hazard C07).
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
"""A connection keeps the raw bytes of a client id up to this length. Longer ones are decoded in each request."""

NOT_KEPT: Final = -1
"""A `CachedSensor.version` with which the counters are looked up again for the next request."""


class CachedSensor:
    """The counters of a connection's last request, cached because the next request likely has the same ones.

    Attributes:
        client_id, user: of that request.
        version: of the limits, or `NOT_KEPT`.
        tracker: the client's own counter; None if no such quota is set at all.
        row: the client's row in the usage record; None if no usage records are kept.
        raw_client_id: the client id's bytes in the request, with their length, so that one comparison finds an equal
            client id. Empty if too long to be kept.
        of_topics: whether quotas of topics, or of records, may count the requests too.
        records: the counter of the client's records, if no topic has such a quota; None: see `of_topics`.
        groups: sensors of those of the client's groups that have a quota. If a capacity is divided, also the sensor
            of the counter that new clients share.
        trackers: the client's own counter, if any, and those of the groups. The client waits for the longest.
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
        """Whether these counters apply to a request of this user and client, in this version of the limits."""
        return (
            self.version == version
            and self.raw_client_id == raw_client_id
            and self.user is user
            and (self.tracker is None or now_ms < self.tracker.good_until_ms)
        )

    def of(self, tracker: RateTracker) -> CachedSensor:
        """The sensor to which one of `trackers` belongs."""
        for each in self.groups:
            if each.tracker is tracker:
                return each
        return self

    def record_groups(
        self, wanted_ms: int, value: float, waiter: object, *, now_ms: int
    ) -> tuple[CachedSensor, int]:
        """Count with the groups' counters what the client's own counter has counted.

        Args:
            wanted_ms: how long the client has to wait for its own counter.
            value: bytes to count.
            waiter: the connection.
            now_ms: the time.

        Returns:
            The sensor with the longest wait, and that wait in ms.
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
    """How long a connection has to wait for quotas of topics.

    Attributes:
        until_ms: the connection may not fetch these topics before.
        sensor: sensor of the counter that requires the wait.
        fetched: the counters for which a Fetch is made smaller. Observed quotas and quotas of records are left out.
        by: the family of the quota that requires the wait.
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
        until_ms: when the last throttle ends.
        inherited_until_ms: when a mute ends that an earlier connection left behind (hazards K03, K04).
        inherited_from: the counter that keeps the inherited mute.
        held_by: the counter that delays the next request, or that delayed the current Fetch. A further wait for it is
            not recorded as a throttle of another request.
        held_for_time: whether the next request has waited for the request quota, and now passes.
        held_by_api: the counter of its API that delayed the next request.
        max_mute_ms: see the module.
        most_in_flight: how many requests may be without a reply; fewer while the request quota throttles.
        topic_wait: the wait for the last fetched topics; None: no topic's quota has counted them.
        held_for_topics: whether the next Fetch has waited for its topics, which are then not checked again.
        measured_window: the `BrokerTimes` window in which no more of the client's requests are measured; None: no
            such window.
        measured_ahead: in that window, requests with fewer requests before them on the connection are still measured.
        fetch_answer: the answer object of the last counted Fetch, reused for the next Fetch with the same counters.
            It refers to the session.
        produce_sensor, fetch_sensor: the counters of the last Produce and the last Fetch request.
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
        self._api_counters: dict[QuotaKey, RateTracker] | None = None  # where it may wait in turn
        self.most_in_flight = settings.max_in_flight_requests
        self.topic_wait: TopicWait | None = None
        self.held_for_topics = False
        self.measured_window: object | None = None
        self.measured_ahead = 0
        self.produce_sensor: CachedSensor | None = None
        self.fetch_sensor: CachedSensor | None = None
        self.fetch_answer: object | None = None
        # Counters of topics and records at which the next request may wait in turn.
        self._waits_at: list[RateTracker] | None = None
        self._muting: RateTracker | None = None  # the counter of the throttle that ends last
        # For each Fetch in flight: its counters, and how many bytes its reply may have.
        self._fetching: list[tuple[tuple[RateTracker, ...], int]] | None = None

    def inherit(self, sensor: CachedSensor, before: CachedSensor | None) -> None:
        """Take over the remaining mutes that earlier connections left with counters new to this connection.

        Args:
            sensor: the counters from now on.
            before: the counters of the connection's last request of this kind.
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
        """How long a request waits for a mute that an earlier connection left with one of these counters."""
        wait_ms = self.inherited_until_ms - now_ms
        return wait_ms if wait_ms > 0 and self.inherited_from in sensor.trackers else 0

    def counted_by(self, key: QuotaKey, tracker: RateTracker) -> None:
        """Note the counter of a family of APIs, at which the connection may wait in turn with others."""
        counters = self._api_counters
        if counters is None:
            counters = self._api_counters = {}
        before = counters.get(key)
        if before is not tracker:
            if before is not None:
                before.leave(self)
            counters[key] = tracker

    def waits_at(self, counters: list[RateTracker]) -> None:
        """Set the counters of topics and records at which the next request waits in turn with others."""
        before, self._waits_at = self._waits_at, counters or None
        for counter in before or ():
            if counter not in counters:
                counter.leave(self)

    def fetch_begins(self, sensor: CachedSensor, asked: int, topics: tuple[RateTracker, ...] = ()) -> None:
        """Note a forwarded Fetch whose reply will be counted.

        Args:
            sensor: the counters of the reply.
            asked: how many bytes the reply may have.
            topics: the counters of its topics.
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
        """Forget the oldest noted Fetch, after its reply or the end of the connection."""
        if not self._fetching:
            return
        counters, asked = self._fetching.pop(0)
        for each in counters:
            each.fetches -= 1
            each.asked -= asked

    def leave(self) -> None:
        """Leave all counters when the connection has ended, and keep the rest of its mute for later connections."""
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
        if muting is not None:  # only the part of the mute that this counter caused
            muting.left_until_ms = max(muting.left_until_ms, min(self.until_ms, muting.owed_until_ms))

    def extend(
        self,
        throttle_time_ms: int,
        request_row: UsageRow | None,
        tracker: RateTracker | None,
        *,
        now_ms: int,
    ) -> int:
        """Begin a throttle; a longer current one stays. Returns when the throttle ends.

        Args:
            throttle_time_ms: > 0.
            request_row: the client's row of request time. This row and the sensors' rows note the mute, during which
                the client's real demand is unknown.
            tracker: the byte rate's counter that requires the throttle; None for another quota.
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
        """Allow one request in flight, as Kafka does: otherwise requests sent ahead all pass before the wait."""
        self.most_in_flight = 1

    def many_at_once(self) -> None:
        """Allow the configured number of requests in flight again."""
        self.most_in_flight = self._max_in_flight_requests
