"""Throttles of one connection: until when it is muted, what is due later, and what its requests are counted by. Pure.

The mute ceiling (`SessionSettings.max_mute_ms`) is applied here and nowhere else: no mute is longer, and what a quota
asks for beyond it is due at the connection's next requests (hazard C07).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gateway.session.response_queue import SizedAnswer
from gateway.session.settings import SessionSettings
from gateway.usage.row import UsageRow
from quotas.rate_quotas import RateTracker

MAX_CACHED_NAME_BYTES: Final = 1_024
"""Client ids up to here are kept with their connection as they stand in requests; longer ones are read each time."""


class CachedSensor(NamedTuple):
    """What a connection's last request was counted by; kept, as the next one is likely counted by it too.

    Attributes:
        client_id, user: whose request it was.
        version: of the limits; -1 when it is to be looked for again.
        tracker: the quota's; None when no such quota is set at all.
        row: the usage record's; None when none is kept.
        raw_client_id: with its length, as it stands in the request: one comparison tells that it is the same. Empty
            where it is too long to be kept; the version is -1 then.
        sized: of answers that only the usage record counts: with a plain header, and with a flexible one.
    """

    client_id: str
    user: str
    version: int
    tracker: RateTracker | None
    row: UsageRow | None
    raw_client_id: bytes
    sized: tuple[SizedAnswer, SizedAnswer] | None = None


class ThrottleState:
    """See the module.

    Attributes:
        until_ms: when the last throttle is over.
        owed_until_ms: when the rest of a throttle above the ceiling is over.
        most_in_flight: how many requests may be without a reply; fewer while the request quota throttles.
        produce_sensor, fetch_sensor: what the last one was counted by, for whom and as of which limits.
    """

    __slots__ = (
        "_max_in_flight_requests",
        "_max_mute_ms",
        "fetch_sensor",
        "most_in_flight",
        "owed_until_ms",
        "produce_sensor",
        "until_ms",
    )

    def __init__(self, settings: SessionSettings) -> None:
        self._max_in_flight_requests = settings.max_in_flight_requests
        self._max_mute_ms = settings.max_mute_ms
        self.until_ms = 0
        self.owed_until_ms = 0
        self.most_in_flight = settings.max_in_flight_requests
        self.produce_sensor: CachedSensor | None = None
        self.fetch_sensor: CachedSensor | None = None

    def within_ceiling(self, throttle_time_ms: int, tracker: RateTracker, *, now_ms: int) -> int:
        """How much of a throttle is issued at once; the rest is noted, for the connection's next requests.

        A counter forgets a request eleven windows after it, so the rest has to be remembered here.

        Args:
            throttle_time_ms: what the counter asks for; 0 for nothing.
            tracker: the counter; where no limit is enforced any more the rest is not due either.
            now_ms: the time.
        """
        if throttle_time_ms <= 0 and now_ms >= self.owed_until_ms:
            return 0
        if tracker.max_in_window() is not None:
            throttle_time_ms = max(throttle_time_ms, self.owed_until_ms - now_ms)
        if throttle_time_ms > self._max_mute_ms:
            self.owed_until_ms = now_ms + throttle_time_ms
        return min(throttle_time_ms, self._max_mute_ms)

    def extend(self, throttle_time_ms: int, request_row: UsageRow | None, *, now_ms: int) -> int:
        """A throttle begins; a longer one that is under way stays. Returns when it is over.

        Args:
            throttle_time_ms: > 0.
            request_row: the usage record of the client's request time. This one and those of the sensors note
                that the client may have wanted more than it was seen to want.
            now_ms: the time.
        """
        until_ms = self.until_ms = max(self.until_ms, now_ms + min(throttle_time_ms, self._max_mute_ms))
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
