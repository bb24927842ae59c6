"""Produce: relayed as it arrives, under the producer byte rate (KIP-13).

The frame's bytes are counted as they arrive (hazard M01). When the frame is complete, a client over its quota is
muted, so the next frame waits even if it came in the same segment. The reply carries the rest of the throttle
(KIP-219). A request with acks=0 has no reply, and its client is muted all the same. While the counter is blocked, a
request waits before it is relayed. On a new connection it also waits for a mute that an earlier connection left
behind (hazard K04). The contents of records are never read.

A reply is collected if the gateway changes it: throttle_time_ms of a throttled one, brokers' addresses from v10 on
(KIP-951). Other replies are relayed.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from gateway.handlers.context import HandlerContext
from gateway.handlers.topic_use import ProduceTopics, count_plain_produce, plain_records
from gateway.session.client_quotas import ClientQuotas
from gateway.session.parts import RequestParts
from gateway.session.response_queue import CollectedAnswer, Pending, TimedRequest, WholeProduce
from gateway.session.routes import HeadDecision, HeadHandler, HeadOutcome, RequestHead, Route, Session
from gateway.session.throttle_state import CachedSensor, ThrottleState
from protocol.api_keys import Api, ApiKey, describe
from protocol.errors import Truncated
from protocol.headers import CLIENT_ID_AT, HEAD_BYTES
from protocol.produce import (
    PLAIN_ACKS,
    VERSIONS_WITH_ENDPOINTS,
    names_no_broker,
    read_acks,
    rewrite_endpoints,
)
from quotas.bound_queue import LOOK_MS
from quotas.combine import ThrottledBy
from quotas.overload import BrokerTimes
from quotas.rate_quotas import RateTracker

_NO_REPLY: Final = HeadDecision.NO_REPLY
"""A constant, because looking up a member of an enum costs a third of a microsecond in Python 3.11."""


class ProduceHandler(HeadHandler):
    """Counts bytes and notes the expected reply.

    Parameters of the methods: a request begins in `data` at `at`, with its size. `size` bytes follow that field, and
    `came_bytes` of them have arrived. `head_bytes` is the number of bytes from `at` to the end of the client id.
    """

    def __init__(self, context: HandlerContext, quotas: ClientQuotas | None) -> None:
        self._context = context
        self._quotas = quotas
        # One answer object per version serves all requests: it has no state of a single request.
        self._rewriting = {
            version: CollectedAnswer(
                partial(self._rewrite, describe(ApiKey.PRODUCE, version)), partial(names_no_broker, version)
            )
            for version in VERSIONS_WITH_ENDPOINTS
        }

    def on_head(
        self,
        session: Session,
        route: Route,
        head: RequestHead,
        data: bytes,
        at: int,
        *,
        now_ms: int,
    ) -> HeadOutcome:
        """See `HeadHandler`."""
        api, quotas = route.api, self._quotas
        size, client_id_length = head.size, head.client_id_length
        head_bytes = HEAD_BYTES + (client_id_length if client_id_length > 0 else 0)
        acks = 1
        if data[at + head_bytes : at + head_bytes + 4] not in PLAIN_ACKS[api.version] or head_bytes > size:
            read = read_acks(data, at, len(data), client_id_length, api)
            if read is None:
                return HeadDecision.MORE
            acks = read
        # The condition that is true for most requests comes first. It decides which `Pending` the reply has.
        if quotas is None or quotas.overload is None or len(data) - at - 4 < size:
            times = None
            pending = None if acks == 0 else Pending(head.correlation_id, self._rewriting.get(api.version))
        else:
            times = quotas.overload.times
            pending = (
                None if acks == 0 else WholeProduce(head.correlation_id, self._rewriting.get(api.version))
            )
        if quotas is not None and quotas.counts_produce:
            decision = self._hold_or_count(
                session, quotas, api, data, at, size, head_bytes, pending, now_ms=now_ms
            )
            if decision is not None:
                return decision
        if pending is None:
            return _NO_REPLY
        if times is not None:
            _measure(times, session, api, pending, now_ms)
        return pending

    def _hold_or_count(
        self,
        session: Session,
        quotas: ClientQuotas,
        api: Api,
        data: bytes,
        at: int,
        size: int,
        head_bytes: int,
        pending: Pending | None,
        *,
        now_ms: int,
    ) -> HeadDecision | None:
        """Make the request wait, or count its received bytes. Returns None if it is relayed.

        The steps of every request are in this method and not in separate ones: a call costs 50 to 100 ns.
        """
        throttling = session.throttling
        sensor = throttling.produce_sensor
        raw_client_id = data[at + CLIENT_ID_AT : at + head_bytes]
        if sensor is None or not sensor.is_of(
            session.user, raw_client_id, quotas.limits.version, now_ms=now_ms
        ):
            sensor = _find_sensor(session, quotas, data, at, head_bytes, raw_client_id, now_ms)
            wait_ms = throttling.inherited_ms(sensor, now_ms=now_ms)
            if wait_ms > 0:
                assert throttling.inherited_from is not None
                asking = sensor.of(throttling.inherited_from)
                return session.hold(api, ThrottledBy.PRODUCE, asking, wait_ms, now_ms=now_ms)
        came_bytes = min(size, len(data) - at - 4)
        tracker, row = sensor.tracker, sensor.row
        if sensor.groups:
            asking, wait_ms = _longest_wait(throttling, sensor, came_bytes, now_ms)
            if wait_ms > 0:
                return session.hold(api, ThrottledBy.PRODUCE, asking, wait_ms, now_ms=now_ms)
        elif tracker is not None and (now_ms < tracker.blocked_until_ms or tracker.queue is not None):
            wait_ms = tracker.wait_ms(throttling, came_bytes, now_ms=now_ms)
            if wait_ms > 0:
                queue = None if sensor.of_topics else tracker.queue
                if wait_ms > LOOK_MS and queue is not None and queue.may_look(throttling):
                    wait_ms = LOOK_MS
                return session.hold(api, ThrottledBy.PRODUCE, sensor, wait_ms, now_ms=now_ms)
        topics: ProduceTopics | None = None
        records = 0
        if sensor.records is not None and (row is None or row.topics is None):
            records = plain_records(sensor.records, data, at, size, head_bytes, api, now_ms)
        if sensor.of_topics and not records:
            topics = ProduceTopics(session, quotas, api, sensor, data, at, size, head_bytes)
            decision = _hold_for_topics(session, api, topics, now_ms)
            if decision is not None:
                return decision
            if came_bytes < size and topics.any_used_up(now_ms):
                return HeadDecision.WHOLE
        held_by, throttling.held_by = throttling.held_by, None
        if row is not None:
            row.use(throttling.serial, now_ms=now_ms)
            row.count(came_bytes)
            if (
                topics is None
                and row.topics is not None
                and not count_plain_produce(row, data, at, size, head_bytes, api)
            ):
                topics = ProduceTopics(session, quotas, api, sensor, data, at, size, head_bytes)
        if came_bytes < size:
            self._count_in_parts(
                session, api, sensor, topics, records, pending, held_by, came_bytes, size, now_ms
            )
            return None
        self._charge_whole(session, api, sensor, pending, held_by, came_bytes, now_ms)
        if topics is not None:
            topics.relayed(now_ms, pending)
        elif records:
            self._charge_records(session, api, sensor, records, pending, now_ms)
        return None

    def _count_in_parts(
        self,
        session: Session,
        api: Api,
        sensor: CachedSensor,
        topics: ProduceTopics | None,
        records: int,
        pending: Pending | None,
        held_by: RateTracker | None,
        came_bytes: int,
        size: int,
        now_ms: int,
    ) -> None:
        """Count the first bytes of a request, and let the rest be counted as it arrives."""
        row, trackers = sensor.row, sensor.trackers
        for tracker in trackers:
            tracker.record_part(came_bytes, now_ms=now_ms)
        by_topic = None if topics is None else topics.relayed(now_ms, pending)
        if trackers or row is not None or by_topic is not None or records:
            on_last = partial(self._charge_whole, session, api, sensor, pending, held_by)
            if records:
                on_last = partial(self._charge_last, session, api, sensor, records, pending, held_by)
            session.watch_rest(RequestParts(size, came_bytes, row, trackers, by_topic, on_last))

    def _charge_last(
        self,
        session: Session,
        api: Api,
        sensor: CachedSensor,
        records: int,
        pending: Pending | None,
        held_by: RateTracker | None,
        came_bytes: int,
        now_ms: int,
    ) -> None:
        """Charge the last bytes of a request, and its records."""
        self._charge_whole(session, api, sensor, pending, held_by, came_bytes, now_ms)
        self._charge_records(session, api, sensor, records, pending, now_ms)

    def _charge_records(
        self,
        session: Session,
        api: Api,
        sensor: CachedSensor,
        records: int,
        pending: Pending | None,
        now_ms: int,
    ) -> None:
        """Charge the records of a plain request. If its client has to wait, its reply has the throttle time."""
        assert sensor.records is not None
        wait_ms = sensor.records.record(float(records), now_ms=now_ms)
        if wait_ms > 0:
            assert self._quotas is not None
            topics = ProduceTopics(session, self._quotas, api, sensor, b"", 0, 0, 0)
            topics.wait_for_records(sensor.records, wait_ms, pending, now_ms)

    def _charge_whole(
        self,
        session: Session,
        api: Api,
        sensor: CachedSensor,
        pending: Pending | None,
        held_by: RateTracker | None,
        came_bytes: int,
        now_ms: int,
    ) -> None:
        """Charge the last bytes of a request. Its client waits for all its bytes, and its reply says so."""
        throttling = session.throttling
        tracker = sensor.tracker
        wanted_ms = 0 if tracker is None else tracker.record(came_bytes, throttling, now_ms=now_ms)
        if sensor.groups:
            sensor, wanted_ms = sensor.record_groups(wanted_ms, came_bytes, throttling, now_ms=now_ms)
            tracker = sensor.tracker
        if wanted_ms <= 0 or tracker is None:
            return
        wanted_ms = min(wanted_ms, throttling.max_mute_ms)
        session.throttle(wanted_ms, tracker, now_ms=now_ms)
        if pending is not None:
            until_ms = now_ms + wanted_ms
            pending.answer = CollectedAnswer(partial(self._on_reply, session, api, sensor, until_ms, held_by))
            return
        assert self._quotas is not None
        self._quotas.record_throttle(
            api.key,
            ThrottledBy.PRODUCE,
            tracker,
            wanted_ms,
            user=sensor.user,
            client_id=sensor.client_id,
            kind=session.kind,
            now_ms=now_ms,
            row=sensor.row,
            again=held_by is tracker,
        )

    def _rewrite(self, api: Api, frame: bytes, _now_ms: int) -> bytes:
        return rewrite_endpoints(frame, api, self._context.topology.advertise)

    def _on_reply(
        self,
        session: Session,
        api: Api,
        sensor: CachedSensor,
        until_ms: int,
        held_by: RateTracker | None,
        frame: bytes,
        now_ms: int,
    ) -> bytes:
        """The reply of a request above the quota, with the rest of the wait."""
        if api.version in VERSIONS_WITH_ENDPOINTS:
            frame = self._rewrite(api, frame, now_ms)
        wanted_ms = max(0, until_ms - now_ms)
        return session.throttle_reply(
            frame, api, ThrottledBy.PRODUCE, sensor, wanted_ms, held_by=held_by, now_ms=now_ms
        )


def _measure(times: BrokerTimes, session: Session, api: Api, pending: Pending, now_ms: int) -> None:
    """Let the broker's response time be measured for a request that arrived in one piece."""
    responses, throttling = session.responses, session.throttling
    ahead = len(responses.pending)
    if throttling.measured_window is times.window and ahead >= throttling.measured_ahead:
        return
    kind = session.kind
    last = responses.pending[-1].timed if responses.pending else None
    client = kind if isinstance(kind, str) else session.address
    sample = times.send(
        client,
        None if last is None else last.sample,
        idle=responses.idle,
        ahead=ahead,
        now_ms=now_ms,
    )
    if sample is None:
        throttling.measured_window, throttling.measured_ahead = times.window, ahead
    else:
        pending.timed = TimedRequest(api, "", 0, measured=False)
        pending.timed.sample = sample
        times.look_at(responses, client)


def _find_sensor(
    session: Session,
    quotas: ClientQuotas,
    data: bytes,
    at: int,
    head_bytes: int,
    raw_client_id: bytes,
    now_ms: int,
) -> CachedSensor:
    """Look up the counters of the client's requests, and cache them in the session."""
    throttling = session.throttling
    before = throttling.produce_sensor
    sensor = throttling.produce_sensor = quotas.produce_sensor(
        session.listener,
        session.user,
        session.client_id_at(data, at, head_bytes - HEAD_BYTES) or "",
        raw_client_id,
        session.broker_id,
        kind=session.kind,
        address=session.address,
        now_ms=now_ms,
    )
    throttling.inherit(sensor, before)
    return sensor


def _longest_wait(
    throttling: ThrottleState, sensor: CachedSensor, came_bytes: int, now_ms: int
) -> tuple[CachedSensor, int]:
    """The sensor with the longest wait, of the client's counter and those of its groups, and that wait in ms."""
    asking, longest_ms = sensor, 0
    for tracker in sensor.trackers:
        if now_ms < tracker.blocked_until_ms or tracker.queue is not None:
            wait_ms = tracker.wait_ms(throttling, came_bytes, now_ms=now_ms)
            if wait_ms > longest_ms:
                asking, longest_ms = sensor.of(tracker), wait_ms
    return asking, longest_ms


def _hold_for_topics(session: Session, api: Api, topics: ProduceTopics, now_ms: int) -> HeadDecision | None:
    """Make the request wait while a quota of its topics lets nothing pass; None: it need not wait."""
    try:
        held = topics.held_by(now_ms)
    except Truncated:
        return HeadDecision.MORE
    if held is None:
        return None
    return session.hold(api, held.by, held.sensor, held.until_ms - now_ms, now_ms=now_ms)
