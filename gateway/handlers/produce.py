"""Produce: relayed as it comes, under the producer byte rate (KIP-13).

acks decide whether a reply is owed. The frame's bytes are counted when its head is seen: a client over its quota is
muted from then on, so the next frame waits even when it came in the same segment, and its reply carries what is
left of the throttle (KIP-219). acks=0 has no reply and is muted all the same. While the counter is blocked, and on
new connections while a mute that others left is not over, a request is held instead (hazard K04). Records are never
looked at.
A reply is collected where it is to be changed: throttle_time_ms of one that is throttled, brokers' addresses from v10
on (KIP-951). Others are relayed.
"""

from __future__ import annotations

from functools import partial

from gateway.handlers.context import HandlerContext
from gateway.handlers.topic_use import ProduceTopics, count_plain_produce
from gateway.session.client_quotas import ClientQuotas
from gateway.session.response_queue import CollectedAnswer, Pending
from gateway.session.routes import RELAY, HeadDecision, HeadHandler, Route, Session
from gateway.session.throttle_state import CachedSensor
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
from quotas.combine import ThrottledBy
from quotas.rate_quotas import RateTracker


class ProduceHandler(HeadHandler):
    """Counts bytes and notes what reply is to be expected."""

    def __init__(self, context: HandlerContext, quotas: ClientQuotas | None) -> None:
        self._context = context
        self._quotas = quotas
        # One answer object per version serves all requests: it holds nothing of a single one.
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
        data: bytes,
        at: int,
        size: int,
        correlation_id: int,
        client_id_length: int,
        *,
        now_ms: int,
    ) -> HeadDecision:
        """See `HeadHandler`."""
        api = route.api
        head_bytes = HEAD_BYTES + (client_id_length if client_id_length > 0 else 0)
        acks = 1
        if data[at + head_bytes : at + head_bytes + 4] not in PLAIN_ACKS[api.version] or head_bytes > size:
            read = read_acks(data, at, len(data), client_id_length, api)
            if read is None:
                return HeadDecision.MORE
            acks = read
        answer = self._rewriting.get(api.version)
        quotas = self._quotas
        topics: ProduceTopics | None = None
        if quotas is not None and quotas.counts_produce:
            # acks come after the client id, so that has been received too.
            throttling = session.throttling
            known = throttling.produce_sensor
            raw = data[at + CLIENT_ID_AT : at + head_bytes]
            if known is None or not known.is_of(session.user, raw, quotas.limits.version, now_ms=now_ms):
                client_id = session.client_id_at(data, at, client_id_length) or ""
                before = known
                known = throttling.produce_sensor = quotas.produce_sensor(
                    session.listener,
                    session.user,
                    client_id,
                    raw,
                    session.broker_id,
                    kind=session.kind,
                    now_ms=now_ms,
                )
                throttling.inherit(known.tracker, before)
                wanted_ms = throttling.inherited_until_ms - now_ms
                if known.tracker is not None and wanted_ms > 0:
                    return session.hold(api, ThrottledBy.PRODUCE, known, wanted_ms, now_ms=now_ms)
            tracker, row = known.tracker, known.row
            if tracker is not None and (now_ms < tracker.blocked_until_ms or tracker.queue is not None):
                wanted_ms = tracker.wait_ms(throttling, size, now_ms=now_ms)
                if wanted_ms > 0:
                    return session.hold(api, ThrottledBy.PRODUCE, known, wanted_ms, now_ms=now_ms)
            if known.of_topics:
                topics = ProduceTopics(session, quotas, api, known, data, at, size, client_id_length)
                try:
                    held = topics.held_by(now_ms)
                except Truncated:
                    return HeadDecision.MORE
                if held is not None:
                    return session.hold(api, ThrottledBy.PRODUCE, *held, now_ms=now_ms)
            held_by, throttling.held_by = throttling.held_by, None
            if row is not None:
                row.use(throttling.serial, now_ms=now_ms)
                row.count(size)
                if (
                    topics is None
                    and row.topics is not None
                    and not count_plain_produce(row, data, at, size, head_bytes, api)
                ):
                    topics = ProduceTopics(session, quotas, api, known, data, at, size, client_id_length)
            if tracker is not None:
                wanted_ms = tracker.record(size, throttling, now_ms=now_ms)
                if wanted_ms > 0:
                    wanted_ms = min(wanted_ms, throttling.max_mute_ms)
                    session.throttle(wanted_ms, tracker, now_ms=now_ms)
                    until_ms = now_ms + wanted_ms
                    answer = CollectedAnswer(partial(self._on_reply, session, api, known, until_ms, held_by))
                    if acks == 0:
                        quotas.record_throttle(
                            api.key,
                            ThrottledBy.PRODUCE,
                            tracker,
                            wanted_ms,
                            user=known.user,
                            client_id=known.client_id,
                            kind=session.kind,
                            now_ms=now_ms,
                            row=row,
                            again=held_by is tracker,
                        )
        if acks != 0:
            session.responses.pending.append(Pending(correlation_id, answer))
        else:
            session.responses.unanswered = True
        if topics is not None:
            topics.relayed(now_ms, owed=acks != 0)
        return RELAY

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
        """The reply of a request that went over the quota: it carries what is left of the wait."""
        if api.version in VERSIONS_WITH_ENDPOINTS:
            frame = self._rewrite(api, frame, now_ms)
        wanted_ms = max(0, until_ms - now_ms)
        return session.throttle_reply(
            frame, api, ThrottledBy.PRODUCE, sensor, wanted_ms, held_by=held_by, now_ms=now_ms
        )
