"""The byte-rate and request-time quotas as the data path uses them (KIP-13, KIP-124).

The gateway has one such object, so that a client's connections on all listeners share its quotas. The arithmetic is
in `quotas`. Kafka's request time is that of its request handler threads. For the gateway it is the CPU time that this
process spends on the client's events, or the time a broker takes to answer (see docs/reference/quota-semantics.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

from gateway.observability.events import RequestObserver
from gateway.observability.throttle_journal import JournalClient, Reading, ThrottleJournal
from gateway.session.api_limits import FAMILIES, ApiLimit
from gateway.session.response_queue import TimedRequest
from gateway.session.throttle_state import (
    MAX_CACHED_NAME_BYTES,
    NOT_KEPT,
    CachedSensor,
    ThrottleState,
    TopicWait,
)
from gateway.usage.row import UsageRow
from gateway.usage.table import UsageTable
from gateway.usage.topic_ids import TopicIds
from protocol.api_keys import ApiKey
from quotas.combine import ThrottledBy
from quotas.entities import QuotaKey
from quotas.group_quotas import GroupQuotas
from quotas.lent_rates import Lender
from quotas.limits import Limits
from quotas.overload import Overload
from quotas.rate_quotas import (
    PERCENT_SECONDS_PER_NS,
    ByteRateQuotas,
    RateQuotas,
    RateSettings,
    RateTracker,
    RequestTimeQuotas,
    ScopedKey,
)
from quotas.resolution import Match, Rule, resolve
from quotas.topic_quotas import TopicKey, TopicQuotas
from quotas.trackers import Kind
from quotas.usage_record import Limit, UsageApi

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
"""APIs whose replies wait for replicas, group members or records: their response time is not a broker's work."""


_MOST_TOPIC_WAITS: Final = 10_000
"""Most clients whose waits for topics' quotas are kept for their new connections."""

_KEYS: Final = {
    ThrottledBy.PRODUCE: QuotaKey.PRODUCER_BYTE_RATE,
    ThrottledBy.FETCH: QuotaKey.CONSUMER_BYTE_RATE,
    ThrottledBy.REQUEST: QuotaKey.REQUEST_PERCENTAGE,
    **{family.by: family.key for family in FAMILIES},
    ThrottledBy.PRODUCE_RECORDS: QuotaKey.PRODUCER_RECORD_RATE,
    ThrottledBy.FETCH_RECORDS: QuotaKey.CONSUMER_RECORD_RATE,
}


def _beside(by: ThrottledBy, match: Match) -> tuple[Limit, str] | None:
    """The limit other than the client's own quota that makes it wait, as in usage records; None: its own quota."""
    if match.beside is not None:
        limit = Limit.GROUP if match.rule is Rule.GROUP else Limit.TOPIC
        name = match.beside.group if match.rule is Rule.GROUP else match.beside.topic
        return limit, name if isinstance(name, str) else "<default>"
    if by in (ThrottledBy.PRODUCE_RECORDS, ThrottledBy.FETCH_RECORDS):
        return Limit.RECORDS, ""
    if match.cut is not None:
        return Limit(match.cut.by.value), str(match.cut.tier)
    if match.is_below_ceiling:
        return Limit.CAPACITY, ""
    return None


class RequestTimeSource(StrEnum):
    """What counts as the time of a request."""

    GATEWAY = "gateway"
    UPSTREAM = "upstream"


class QuotaScope(StrEnum):
    """What one counter covers: all gateways of a fleet, this one, or one upstream broker as in a Kafka cluster."""

    FLEET = "fleet"
    GATEWAY = "gateway"
    BROKER = "broker"


class ClientQuotas:
    """See the module.

    Attributes:
        produce, fetch: counters of the byte rates.
        request_time: counters of the request percentage.
        limits: the configured quotas; `refresh` is due when their `version` has changed.
        produce_topics, fetch_topics: counters of the byte rates of topics.
        produce_groups, fetch_groups, request_groups: counters of groups of clients.
        produce_records, fetch_records: counters of records.
        topic_ids: the names of topics by id.
        counts_produce, counts_fetch: whether bytes are counted, for a quota or for usage records, as of `version`.
        times_requests: whether any request_percentage is set, as of `version`.
        api_limits: counters of requests per API, of all families.
        limited_apis: those of `api_limits` that have any quota, by API, as of `version`.
        watches: whether requests are counted or timed: `limited_apis` is not empty, or `times_requests` is true.
        usage: the usage records' table; None: no usage records are kept.
        overload: how much of the capacity the brokers can serve; None: not measured.
    """

    __slots__ = (
        "_journal",
        "_observer",
        "_per_broker",
        "_source",
        "_topic_waits",
        "api_limits",
        "counts_fetch",
        "counts_produce",
        "fetch",
        "fetch_groups",
        "fetch_records",
        "fetch_topics",
        "limited_apis",
        "limits",
        "overload",
        "produce",
        "produce_groups",
        "produce_records",
        "produce_topics",
        "request_groups",
        "request_time",
        "times_requests",
        "topic_ids",
        "usage",
        "version",
        "watches",
    )

    def __init__(
        self,
        limits: Limits,
        settings: RateSettings,
        observer: RequestObserver,
        *,
        scope: QuotaScope = QuotaScope.GATEWAY,
        source: RequestTimeSource = RequestTimeSource.GATEWAY,
        usage: UsageTable | None = None,
        journal: ThrottleJournal | None = None,
        topic_ids: TopicIds | None = None,
    ) -> None:
        self._journal = journal
        self.topic_ids = topic_ids or TopicIds()
        self.produce_topics = TopicQuotas(limits, QuotaKey.PRODUCER_BYTE_RATE, settings)
        self.fetch_topics = TopicQuotas(limits, QuotaKey.CONSUMER_BYTE_RATE, settings)
        self._topic_waits: dict[tuple[str, str], TopicWait] = {}
        self.produce = ByteRateQuotas(limits, QuotaKey.PRODUCER_BYTE_RATE, settings)
        self.fetch = ByteRateQuotas(limits, QuotaKey.CONSUMER_BYTE_RATE, settings)
        self.request_time = RequestTimeQuotas(limits, settings)
        self.produce_groups = GroupQuotas(limits, QuotaKey.PRODUCER_BYTE_RATE, settings)
        self.fetch_groups = GroupQuotas(limits, QuotaKey.CONSUMER_BYTE_RATE, settings)
        self.request_groups = GroupQuotas(
            limits, QuotaKey.REQUEST_PERCENTAGE, settings, cap_ms=settings.window_ms
        )
        self.produce_records = RateQuotas(limits, QuotaKey.PRODUCER_RECORD_RATE, settings)
        self.fetch_records = RateQuotas(limits, QuotaKey.CONSUMER_RECORD_RATE, settings)
        self.api_limits = tuple(ApiLimit(family, limits, settings) for family in FAMILIES)
        self.limits = limits
        self.overload: Overload | None = None
        self._observer = observer
        self._per_broker = scope is QuotaScope.BROKER
        self._source = source
        self.usage = usage
        self.refresh()

    @property
    def further_rates(self) -> dict[QuotaKey, RateQuotas]:
        """The counters of all rates that Kafka lacks, for fleet and metrics."""
        return {
            **{limit.family.key: limit.quotas for limit in self.api_limits},
            QuotaKey.PRODUCER_RECORD_RATE: self.produce_records,
            QuotaKey.CONSUMER_RECORD_RATE: self.fetch_records,
        }

    def set_capacity(self, capacity: Mapping[QuotaKey, float], *, observe: bool, now_ms: int) -> None:
        """Divide the capacity that is left beyond the guarantees among all clients; see `quotas.lent_rates`.

        Args:
            capacity: bytes per second by quota. Quotas that are not in it have no divided capacity.
            observe: compute and report the division without throttling.
            now_ms: the time.
        """
        for key, quotas in (
            (QuotaKey.PRODUCER_BYTE_RATE, self.produce),
            (QuotaKey.CONSUMER_BYTE_RATE, self.fetch),
        ):
            there_is = capacity.get(key)
            lender = (
                None
                if there_is is None
                else Lender(self.limits, key, there_is, observe=observe, now_ms=now_ms)
            )
            quotas.lend(lender, now_ms=now_ms)
        self.limits.set_divided(capacity)

    def tier_use(self, tier: int) -> dict[QuotaKey, float]:
        """A tier's recent use per second, by quota whose capacity is divided. Empty if any is not known."""
        divided = {QuotaKey.PRODUCER_BYTE_RATE: self.produce, QuotaKey.CONSUMER_BYTE_RATE: self.fetch}
        lenders = {key: quotas.lender for key, quotas in divided.items() if quotas.lender is not None}
        used = {key: lender.used_by(tier) for key, lender in lenders.items()}
        known = {key: each for key, each in used.items() if each is not None}
        return known if len(known) == len(used) else {}

    def divide(self, *, now_ms: int) -> Iterator[None]:
        """Divide the capacity again, in steps between which other work can run."""
        if self.overload is not None:
            self.overload.close([self.produce.lender, self.fetch.lender], now_ms=now_ms)
        yield from self.produce.divide(now_ms=now_ms)
        yield from self.fetch.divide(now_ms=now_ms)

    def refresh(self) -> None:
        """Check again which keys have a quota. Nothing is measured for keys without one."""
        limits = self.limits
        self.version = limits.version
        recorded = self.usage is not None
        metered = self.usage is not None and self.usage.topics is not None
        by_topic = metered or self.produce_topics.enabled, metered or self.fetch_topics.enabled
        self.topic_ids.wanted = any(by_topic)
        self.counts_produce = (
            recorded
            or by_topic[0]
            or self._counts(QuotaKey.PRODUCER_BYTE_RATE)
            or limits.enabled(QuotaKey.PRODUCER_RECORD_RATE)
        )
        self.counts_fetch = (
            recorded
            or by_topic[1]
            or self._counts(QuotaKey.CONSUMER_BYTE_RATE)
            or limits.enabled(QuotaKey.CONSUMER_RECORD_RATE)
        )
        self.times_requests = self._counts(QuotaKey.REQUEST_PERCENTAGE)
        self.limited_apis: dict[ApiKey, ApiLimit] = {
            api: limit
            for limit in self.api_limits
            if limits.enabled(limit.family.key)
            for api in limit.family.apis
        }
        self.watches = self.times_requests or bool(self.limited_apis)

    def _counts(self, key: QuotaKey) -> bool:
        """Whether any client or group has this quota."""
        return self.limits.enabled(key) or self.limits.groups_enabled(key)

    def scope_of(self, broker_id: int | None) -> int | None:
        """The scope of counters for connections to this broker: its id, or None for all; see `QuotaScope`."""
        return self._scope(broker_id)

    def _scope(self, broker_id: int | None) -> int | None:
        # -1 stands for the bootstrap port, whose broker has no known id.
        return (-1 if broker_id is None else broker_id) if self._per_broker else None

    def produce_tracker(
        self, user: str, client_id: str, broker_id: int | None, *, kind: Kind | None = None, now_ms: int
    ) -> RateTracker | None:
        """The counter of a producer's bytes; None if no producer_byte_rate is set at all."""
        return self.produce.tracker(user, client_id, kind=kind, scope=self._scope(broker_id), now_ms=now_ms)

    def fetch_tracker(
        self, user: str, client_id: str, broker_id: int | None, *, kind: Kind | None = None, now_ms: int
    ) -> RateTracker | None:
        """The counter of a consumer's bytes; None if no consumer_byte_rate is set at all."""
        return self.fetch.tracker(user, client_id, kind=kind, scope=self._scope(broker_id), now_ms=now_ms)

    def produce_sensor(
        self,
        listener: str,
        user: str,
        client_id: str,
        raw: bytes,
        broker_id: int | None,
        *,
        kind: Kind,
        address: str = "",
        now_ms: int,
    ) -> CachedSensor:
        """The counters of a producer's requests."""
        return self._sensor(
            (self.produce, self.produce_groups, self.produce_topics, UsageApi.PRODUCE, ApiKey.PRODUCE),
            listener, user, client_id, raw, broker_id, kind, address, now_ms,
        )  # fmt: skip

    def fetch_sensor(
        self,
        listener: str,
        user: str,
        client_id: str,
        raw: bytes,
        broker_id: int | None,
        *,
        kind: Kind,
        address: str = "",
        now_ms: int,
    ) -> CachedSensor:
        """The counters of a consumer's replies."""
        return self._sensor(
            (self.fetch, self.fetch_groups, self.fetch_topics, UsageApi.FETCH, ApiKey.FETCH),
            listener, user, client_id, raw, broker_id, kind, address, now_ms,
        )  # fmt: skip

    def _sensor(
        self,
        counted_by: tuple[RateQuotas, GroupQuotas, TopicQuotas, UsageApi, ApiKey],
        listener: str,
        user: str,
        client_id: str,
        raw: bytes,
        broker_id: int | None,
        kind: Kind,
        address: str,
        now_ms: int,
    ) -> CachedSensor:
        quotas, groups, topics, api, api_key = counted_by
        tracker = quotas.tracker(user, client_id, kind=kind, scope=self._scope(broker_id), now_ms=now_ms)
        row, version = self._row(listener, user, client_id, api, broker_id, tracker)
        beside = self._counted_beside(
            quotas, groups, user, client_id, address, broker_id, tracker, row, now_ms
        )
        if any(each.version == NOT_KEPT for each in beside):
            version = NOT_KEPT
        if not 0 < len(raw) <= MAX_CACHED_NAME_BYTES:
            raw, version = b"", NOT_KEPT
        records = self.record_counter(api_key, user, client_id, broker_id, kind=kind, now_ms=now_ms)
        by_topic = topics.may_apply(user, client_id)
        of_topics = by_topic or records is not None
        if by_topic:
            records = None
        return CachedSensor(client_id, user, version, tracker, row, raw, of_topics, beside, records)

    def _counted_beside(
        self,
        quotas: RateQuotas,
        groups: GroupQuotas,
        user: str,
        client_id: str,
        address: str,
        broker_id: int | None,
        tracker: RateTracker | None,
        row: UsageRow | None,
        now_ms: int,
    ) -> tuple[CachedSensor, ...]:
        """Sensors besides the client's own: those of its groups, and of the counter that new clients share."""
        version = self.limits.version
        found: list[CachedSensor] = []
        if groups.enabled:
            scope = self._scope(broker_id)
            for each in groups.trackers(user, client_id, address, scope=scope, now_ms=now_ms):
                found.append(CachedSensor(client_id, user, version, each, row, b""))
        for new in quotas.shared_by_new(tracker, now_ms=now_ms):
            found.append(CachedSensor(client_id, user, NOT_KEPT, new, row, b""))
        return tuple(found)

    def record_counter(
        self, api_key: ApiKey, user: str, client_id: str, broker_id: int | None, *, kind: Kind, now_ms: int
    ) -> RateTracker | None:
        """The counter of the records that a client sends or fetches; None without a limit."""
        quotas = self.produce_records if api_key is ApiKey.PRODUCE else self.fetch_records
        tracker = quotas.tracker(user, client_id, kind=kind, scope=self._scope(broker_id), now_ms=now_ms)
        return None if tracker is None or tracker.match.limit is None else tracker

    def topic_wait(self, throttling: ThrottleState, known: CachedSensor, *, now_ms: int) -> TopicWait | None:
        """The wait for the quotas of the topics that a connection fetched last.

        If another connection of the client has found a longer wait for the same counter, the result is that wait.

        Args:
            throttling: the state of the connection.
            known: the counters of its requests.
            now_ms: the time.
        """
        if not known.of_topics:
            return None
        wait = throttling.topic_wait
        if wait is not None:
            wait = self._renewed(wait, now_ms)
            left = None if wait is None else self.topic_wait_left(known, now_ms=now_ms)
            # A wait for another counter may be for topics that this connection does not fetch.
            if (
                wait is not None
                and left is not None
                and left.sensor.tracker is wait.sensor.tracker
                and left.until_ms > wait.until_ms
            ):
                wait = left
            throttling.topic_wait = wait
        return wait

    def topic_wait_left(self, known: CachedSensor, *, now_ms: int) -> TopicWait | None:
        """The last wait for topics' quotas that any connection of the client has left; None: no wait."""
        left = self._topic_waits.get((known.user, known.client_id))
        return None if left is None else self._renewed(left, now_ms)

    def _renewed(self, wait: TopicWait, now_ms: int) -> TopicWait | None:
        """The wait under the current limits; None if its counter is no longer used."""
        sensor, version = wait.sensor, self.limits.version
        if sensor.version == version:
            return wait
        tracker = sensor.tracker
        key = None if tracker is None else tracker.key
        counter = None
        if isinstance(key, TopicKey):
            counter = self.fetch_topics.counter_of(key, sensor.user, now_ms=now_ms)
        elif isinstance(key, ScopedKey):
            counter = self.fetch_records.counter_of(key, sensor.user, now_ms=now_ms)
        if counter is None:
            return None
        renewed = CachedSensor(
            sensor.client_id,
            sensor.user,
            version,
            counter,
            sensor.row,
            sensor.raw_client_id,
            of_topics=sensor.of_topics,
        )
        is_lowered_for = isinstance(key, TopicKey) and counter.max_in_window() is not None
        fetched = (counter,) if is_lowered_for else ()
        return TopicWait(counter.free_ms(now_ms=now_ms), renewed, fetched, wait.by)

    def leave_topic_wait(self, wait: TopicWait) -> None:
        """Keep a wait for the client's other connections."""
        waits = self._topic_waits
        client = (wait.sensor.user, wait.sensor.client_id)
        waits.pop(client, None)
        while len(waits) >= _MOST_TOPIC_WAITS:
            del waits[next(iter(waits))]
        waits[client] = wait

    def request_row(
        self,
        listener: str,
        user: str,
        client_id: str,
        broker_id: int | None,
        *,
        kind: Kind,
        now_ms: int,
    ) -> UsageRow | None:
        """The usage record's row of a client's request time; None if no usage records are kept."""
        if self.usage is None:
            return None
        tracker = self.request_time.tracker(
            user, client_id, kind=kind, scope=self._scope(broker_id), now_ms=now_ms
        )
        return self.usage.row(listener, user, client_id, UsageApi.REQUEST, broker_id, tracker)

    def _row(
        self,
        listener: str,
        user: str,
        client_id: str,
        api: UsageApi,
        broker_id: int | None,
        tracker: RateTracker | None,
    ) -> tuple[UsageRow | None, int]:
        """The usage record's row, and the value for `CachedSensor.version`."""
        if self.usage is None:
            return None, self.limits.version
        row = self.usage.row(listener, user, client_id, api, broker_id, tracker)
        return row, NOT_KEPT if row.shared else self.limits.version

    def request_wait_ms(
        self,
        api_key: ApiKey,
        user: str,
        client_id: str,
        broker_id: int | None,
        *,
        kind: Kind,
        address: str = "",
        now_ms: int,
    ) -> int:
        """How long the client's next request waits because its request time is used up. The wait is recorded.

        The wait is at most one window, because heartbeats wait like all other requests, and a group's coordinator
        must not take the member for dead.
        """
        counters = self._request_counters(user, client_id, broker_id, kind, address, now_ms)
        tracker = max(counters, key=lambda each: each.blocked_until_ms, default=None)
        if tracker is None or now_ms >= tracker.blocked_until_ms:
            return 0
        wait_ms = min(math.ceil(tracker.blocked_until_ms - now_ms), tracker.window_ms)
        self.record_throttle(
            api_key,
            ThrottledBy.REQUEST,
            tracker,
            wait_ms,
            user=user,
            client_id=client_id,
            kind=kind,
            now_ms=now_ms,
        )
        return wait_ms

    def api_counter(
        self, limit: ApiLimit, user: str, client_id: str, broker_id: int | None, *, kind: Kind, now_ms: int
    ) -> RateTracker | None:
        """The counter of a client's requests in a family of APIs; None if the family no longer has a quota."""
        return limit.quotas.tracker(user, client_id, kind=kind, scope=self._scope(broker_id), now_ms=now_ms)

    def api_row(
        self,
        limit: ApiLimit,
        listener: str,
        user: str,
        client_id: str,
        broker_id: int | None,
        tracker: RateTracker,
    ) -> UsageRow | None:
        """The usage record's row of a client's requests in a family; None if no usage records are kept."""
        if self.usage is None:
            return None
        return self.usage.row(listener, user, client_id, limit.family.usage, broker_id, tracker)

    def record_request_time(
        self,
        user: str,
        timed: TimedRequest,
        broker_id: int | None,
        *,
        busy_ns: int,
        answered_ns: int,
        kind: Kind,
        address: str = "",
        now_ms: int,
        row: UsageRow | None = None,
        connection: int = 0,
    ) -> int:
        """Count the time of an answered request.

        Args:
            user: the principal's name.
            timed: the request.
            broker_id: the broker it went to.
            busy_ns: CPU time that the gateway spent on this connection since the last answer.
            answered_ns: when the answer arrived, on the scale of `TimedRequest.forwarded_ns`.
            kind: see `quotas.trackers`.
            address: the client's address.
            now_ms: the time.
            row: the usage record's row.
            connection: the serial of the connection.

        Returns:
            How long the client has to wait, in ms, at most one window.
        """
        time_ns = busy_ns
        if self._source is RequestTimeSource.UPSTREAM:
            waits = timed.api.key in WAITING_APIS
            time_ns = 0 if waits else max(0, answered_ns - timed.forwarded_ns)
        if row is not None:
            row.use(connection, now_ms=now_ms)
            row.count(time_ns / 1e6)
        return self._record_time(user, timed.client_id, broker_id, time_ns, kind, address, now_ms)

    def record_more_time(
        self,
        user: str,
        client_id: str,
        broker_id: int | None,
        *,
        busy_ns: int,
        kind: Kind,
        address: str = "",
        now_ms: int,
        row: UsageRow | None = None,
    ) -> int:
        """Count time spent on a request after `record_request_time` counted it; see there."""
        if self._source is RequestTimeSource.UPSTREAM:
            busy_ns = 0
        if row is not None:
            row.add(busy_ns / 1e6)
        return self._record_time(user, client_id, broker_id, busy_ns, kind, address, now_ms)

    def _record_time(
        self,
        user: str,
        client_id: str,
        broker_id: int | None,
        time_ns: int,
        kind: Kind,
        address: str,
        now_ms: int,
    ) -> int:
        """Count time with the client's counter and those of its groups. Returns the longest wait."""
        scope = self._scope(broker_id)
        wait_ms = self.request_time.record(user, client_id, time_ns, kind=kind, scope=scope, now_ms=now_ms)
        if self.request_groups.enabled:
            for each in self.request_groups.trackers(user, client_id, address, scope=scope, now_ms=now_ms):
                each.last_value = time_ns * PERCENT_SECONDS_PER_NS
                wait_ms = max(wait_ms, each.record(each.last_value, now_ms=now_ms))
        return wait_ms

    def _request_counters(
        self, user: str, client_id: str, broker_id: int | None, kind: Kind, address: str, now_ms: int
    ) -> list[RateTracker]:
        """The counters of a client's request time: its own, if it has a quota, and those of its groups."""
        scope = self._scope(broker_id)
        own = self.request_time.tracker(user, client_id, kind=kind, scope=scope, now_ms=now_ms)
        counters = [] if own is None else [own]
        if self.request_groups.enabled:
            counters += self.request_groups.trackers(user, client_id, address, scope=scope, now_ms=now_ms)
        return counters

    def record_throttle(
        self,
        api_key: ApiKey,
        by: ThrottledBy,
        tracker: RateTracker,
        throttle_time_ms: int,
        *,
        user: str,
        client_id: str,
        kind: Kind | None = None,
        now_ms: int,
        row: UsageRow | None = None,
        again: bool = False,
    ) -> None:
        """Record a wait in the counter that required it, in the usage record and in the journal.

        Args:
            api_key: of the request.
            by: the quota's family.
            tracker: the counter.
            throttle_time_ms: the wait.
            user, client_id: the client, since many clients may share the counter.
            kind: see `quotas.trackers`; None: the user.
            now_ms: the time.
            row: the usage record's row.
            again: whether this request has waited for the counter before. It then counts as one throttled request,
                with the sum of its waits.
        """
        tracker.throttles.record(throttle_time_ms, again=again, now_ms=now_ms)
        if row is not None:
            row.delay(throttle_time_ms, beside=_beside(by, tracker.match), again=again)
        if self._journal is not None and throttle_time_ms > 0:
            match = tracker.match
            if tracker.shared and match.beside is None:
                match = resolve(self.limits, _KEYS[by], user, client_id)
            self._journal.throttled(
                JournalClient(user, client_id),
                user if kind is None else kind,
                by,
                api_key.name.lower(),
                match,
                throttle_time_ms,
                lambda: Reading(*tracker.reading(now_ms=now_ms)),
                shared=tracker.shared,
                now_ms=now_ms,
            )
        self._observer.throttled(api_key, tracker.match.rule, throttle_time_ms, by=by, again=again)

    def record_request_throttle(
        self,
        user: str,
        timed: TimedRequest,
        broker_id: int | None,
        throttle_time_ms: int,
        *,
        kind: Kind | None = None,
        address: str = "",
        now_ms: int,
        row: UsageRow | None = None,
    ) -> None:
        """Record a wait for the request quota in the counter that requires the longest wait."""
        counters = self._request_counters(
            user, timed.client_id, broker_id, user if kind is None else kind, address, now_ms
        )
        tracker = max(counters, key=lambda each: each.throttle_time_ms(now_ms=now_ms), default=None)
        if tracker is not None:
            self.record_throttle(
                timed.api.key,
                ThrottledBy.REQUEST,
                tracker,
                throttle_time_ms,
                user=user,
                client_id=timed.client_id,
                kind=kind,
                now_ms=now_ms,
                row=row,
            )
