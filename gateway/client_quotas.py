"""The byte-rate and request-time quotas as the data path uses them (KIP-13, KIP-124).

One object for the whole gateway, so that a client's connections, on whatever listener, share what it may use.
The arithmetic is in `quotas`; what a "request handler thread" is for a gateway is decided here (see
docs/behaviour.md): the CPU time this process spends on the client's events, or the time a broker takes to answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gateway.observer import Observer
from protocol.api_keys import Api, ApiKey
from quotas.bandwidth import ByteRateQuotas
from quotas.combine import ThrottledBy
from quotas.entities import QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import RateSettings, RateTracker
from quotas.request_time import RequestTimeQuotas

WAITING_APIS: Final = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.CREATE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DELETE_TOPICS,
        ApiKey.ELECT_LEADERS,
        ApiKey.SHARE_FETCH,
    }
)
"""APIs whose replies wait for others (replicas, group members, records): their time is not a broker's work."""


class RequestTimeSource(StrEnum):
    """What counts as the time of a request."""

    GATEWAY = "gateway"
    UPSTREAM = "upstream"


class QuotaScope(StrEnum):
    """What one counter covers: the whole gateway, or one upstream broker as in a Kafka cluster."""

    GATEWAY = "gateway"
    BROKER = "broker"


@dataclass(slots=True)
class TimedRequest:
    """A request whose time is measured: whose it is, and when it was forwarded (ns, `perf_counter` scale)."""

    api: Api
    client_id: str
    forwarded_ns: int


class ClientQuotas:
    """See the module.

    Attributes:
        produce, fetch: counters of the byte rates.
        request_time: counters of the request percentage.
        limits: the configured quotas; whoever sees another `version` there calls `refresh`.
        limits_produce, limits_fetch, times_requests: whether any such quota is set, as of `version`.
    """

    __slots__ = (
        "_observer",
        "_per_broker",
        "_source",
        "fetch",
        "limits",
        "limits_fetch",
        "limits_produce",
        "produce",
        "request_time",
        "times_requests",
        "version",
    )

    def __init__(
        self,
        limits: Limits,
        settings: RateSettings,
        observer: Observer,
        *,
        scope: QuotaScope = QuotaScope.GATEWAY,
        source: RequestTimeSource = RequestTimeSource.GATEWAY,
    ) -> None:
        self.produce = ByteRateQuotas(limits, QuotaKey.PRODUCER_BYTE_RATE, settings)
        self.fetch = ByteRateQuotas(limits, QuotaKey.CONSUMER_BYTE_RATE, settings)
        self.request_time = RequestTimeQuotas(limits, settings)
        self.limits = limits
        self._observer = observer
        self._per_broker = scope is QuotaScope.BROKER
        self._source = source
        self.refresh()

    def refresh(self) -> None:
        """Look again which keys have a quota at all: without one nothing is counted or measured for it."""
        limits = self.limits
        self.version = limits.version
        self.limits_produce = limits.enabled(QuotaKey.PRODUCER_BYTE_RATE)
        self.limits_fetch = limits.enabled(QuotaKey.CONSUMER_BYTE_RATE)
        self.times_requests = limits.enabled(QuotaKey.REQUEST_PERCENTAGE)

    def _scope(self, broker_id: int | None) -> int | None:
        # -1: the bootstrap port, whose broker is not known by id.
        return (-1 if broker_id is None else broker_id) if self._per_broker else None

    def produce_tracker(
        self, user: str, client_id: str, broker_id: int | None, *, now_ms: int
    ) -> RateTracker | None:
        """What a producer's bytes are counted by; None when no producer_byte_rate is set at all."""
        return self.produce.tracker(user, client_id, scope=self._scope(broker_id), now_ms=now_ms)

    def fetch_tracker(
        self, user: str, client_id: str, broker_id: int | None, *, now_ms: int
    ) -> RateTracker | None:
        """What a consumer's bytes are counted by; None when no consumer_byte_rate is set at all."""
        return self.fetch.tracker(user, client_id, scope=self._scope(broker_id), now_ms=now_ms)

    def record_request_time(
        self,
        user: str,
        timed: TimedRequest,
        broker_id: int | None,
        *,
        busy_ns: int,
        answered_ns: int,
        now_ms: int,
    ) -> int:
        """Count the time of an answered request.

        Args:
            user: the principal's name.
            timed: the request.
            broker_id: the broker it went to.
            busy_ns: CPU time that the gateway spent on this connection since the last answer.
            answered_ns: when the answer came.
            now_ms: the time.

        Returns:
            How long the client has to wait, at most one window.
        """
        time_ns = busy_ns
        if self._source is RequestTimeSource.UPSTREAM:
            waits = timed.api.key in WAITING_APIS
            time_ns = 0 if waits else max(0, answered_ns - timed.forwarded_ns)
        return self.request_time.record(
            user, timed.client_id, time_ns, scope=self._scope(broker_id), now_ms=now_ms
        )

    def book(
        self, api_key: ApiKey, by: ThrottledBy, tracker: RateTracker, throttle_time_ms: int, *, now_ms: int
    ) -> None:
        """Put a wait into the books of the counter that asked for it."""
        tracker.book.book(throttle_time_ms, now_ms=now_ms)
        self._observer.throttled(api_key, tracker.match.rule, throttle_time_ms, by=by)

    def book_request_time(
        self,
        user: str,
        timed: TimedRequest,
        broker_id: int | None,
        throttle_time_ms: int,
        *,
        now_ms: int,
    ) -> None:
        """Put a wait into the books of the request quota."""
        tracker = self.request_time.tracker(
            user, timed.client_id, scope=self._scope(broker_id), now_ms=now_ms
        )
        if tracker is not None:
            self.book(timed.api.key, ThrottledBy.REQUEST, tracker, throttle_time_ms, now_ms=now_ms)
