"""Fetch under the consumer byte rate (KIP-13).

The forwarded max_bytes is lowered to what the quota's window can pass; the answer is counted when its head is
seen, delivered in full with its throttle time, and the channel is muted. Kafka instead throws the data away and
answers empty: a gateway would have paid for the transfer already, and a batch larger than the window would never
arrive (hazards C12, C13; docs/behaviour.md).

A client with a limit has one Fetch under way per connection, as everywhere in Kafka: many at once would all be
answered in full before the first of them is counted.
"""

from __future__ import annotations

from functools import partial

from gateway.handlers.context import HandlerContext
from gateway.session.client_quotas import ClientQuotas
from gateway.session.mute import MuteReason
from gateway.session.response_queue import Answer, HeadAnswer, Pending
from gateway.session.routes import HeadDecision, Route, Session
from gateway.session.throttle_state import CachedSensor
from protocol.api_keys import Api
from protocol.errors import Truncated
from protocol.fetch import asks_within, clamped_head, counted_bytes
from protocol.headers import CLIENT_ID_AT, HEAD_BYTES
from quotas.combine import ThrottledBy


class FetchHandler:
    """Relays requests, with max_bytes lowered in those that ask for more than a quota's window passes."""

    def __init__(self, context: HandlerContext) -> None:
        self._quotas = context.client_quotas

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
        quotas = self._quotas
        if quotas is None or not quotas.counts_fetch:
            session.responses.pending.append(Pending(correlation_id))
            return HeadDecision.RELAY
        known = _counter(quotas, session, data, at, client_id_length, now_ms)
        if known is None:
            return HeadDecision.MORE
        _, _, _, tracker, _, _, sized = known
        if sized is not None and not session.times_requests:
            answer: Answer = sized[route.api.flexible_header]
            session.responses.pending.append(Pending(correlation_id, answer))
            return HeadDecision.RELAY
        most_bytes = None if tracker is None else tracker.max_in_window()
        lowered = None
        if most_bytes is not None:
            if session.responses.awaits_head:
                session.mute(MuteReason.AWAITING_FETCH)
                return HeadDecision.WAIT
            if not asks_within(data, at, client_id_length, route.api, most_bytes):
                try:
                    lowered = clamped_head(data, at, size, client_id_length, route.api, most_bytes)
                except Truncated:
                    return HeadDecision.MORE
        answer = HeadAnswer(partial(self._on_reply, session, route.api, known))
        if lowered is not None:
            session.rewrite_head(lowered, answer)
            return HeadDecision.REWRITE
        session.responses.pending.append(Pending(correlation_id, answer))
        return HeadDecision.RELAY

    def _on_reply(
        self, session: Session, api: Api, asked: CachedSensor, head: bytes, size: int, now_ms: int
    ) -> bytes | None:
        session.release(MuteReason.AWAITING_FETCH)
        quotas = self._quotas
        assert quotas is not None
        # Looked up again: a quota that changed while the broker was waiting for records applies to this answer.
        known = asked
        if not _valid(asked, quotas, session, now_ms):
            client_id, raw = asked.client_id, asked.raw_client_id
            known = session.throttling.fetch_sensor = quotas.fetch_sensor(
                session.listener, session.user, client_id, raw, session.broker_id, now_ms=now_ms
            )
        tracker, row = known.tracker, known.row
        if row is not None:
            row.count(counted_bytes(size, api))
        if tracker is None:
            return None
        wanted_ms = tracker.record(counted_bytes(size, api), now_ms=now_ms)
        wanted_ms = session.throttling.within_ceiling(wanted_ms, tracker, now_ms=now_ms)
        if wanted_ms <= 0:
            return None
        return session.throttle_reply(head, api, ThrottledBy.FETCH, known, wanted_ms, now_ms=now_ms)


def _counter(
    quotas: ClientQuotas, session: Session, data: bytes, at: int, client_id_length: int, now_ms: int
) -> CachedSensor | None:
    """What the client's answers are counted by, kept with the session: the next is likely counted by it too.

    None when the client id of the request at `at` has not been received whole.
    """
    known = session.throttling.fetch_sensor
    if (
        known is None
        or not data.startswith(known[5], at + CLIENT_ID_AT)
        or not _valid(known, quotas, session, now_ms)
    ):
        client_id = session.client_id_at(data, at, client_id_length)
        if client_id is None:
            return None
        raw = data[at + CLIENT_ID_AT : at + HEAD_BYTES + max(client_id_length, 0)]
        known = session.throttling.fetch_sensor = quotas.fetch_sensor(
            session.listener, session.user, client_id, raw, session.broker_id, now_ms=now_ms
        )
    return known


def _valid(known: CachedSensor, quotas: ClientQuotas, session: Session, now_ms: int) -> bool:
    """Whether the user and the limits are still those of the sensor."""
    return (
        known[1] is session.user
        and known[2] == quotas.limits.version
        and (known[3] is None or now_ms < known[3].good_until_ms)
    )
