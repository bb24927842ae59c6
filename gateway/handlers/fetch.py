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

from gateway.client_quotas import ClientQuotas
from gateway.handlers.context import MAX_REQUEST_BYTES, HandlerContext
from gateway.in_flight import HeadAnswer, Pending
from gateway.mute import MuteReason
from gateway.routes import Route, Verdict
from gateway.session import ClientSession
from protocol import throttle
from protocol.api_keys import Api
from protocol.fetch import asks_within, clamp_max_bytes, counted_bytes
from quotas.combine import ThrottledBy
from quotas.rate_quotas import RateTracker


class FetchHandler:
    """Relays requests that ask for no more than a quota's window passes; collects and clamps the others."""

    max_request_bytes = 2**31 - 1

    def __init__(self, context: HandlerContext) -> None:
        self._quotas = context.client_quotas

    def on_head(
        self,
        session: ClientSession,
        route: Route,
        data: bytes,
        at: int,
        size: int,
        correlation_id: int,
        client_id_length: int,
        *,
        now_ms: int,
    ) -> Verdict:
        """See `HeadHandler`."""
        quotas = self._quotas
        if quotas is None or not quotas.limits_fetch:
            session.in_flight.pending.append(Pending(correlation_id))
            return Verdict.RELAY
        client_id = session.client_id_at(data, at, client_id_length)
        if client_id is None:
            return Verdict.MORE
        tracker = _tracker(quotas, session, client_id, now_ms)
        most_bytes = None if tracker is None else tracker.max_in_window()
        if most_bytes is not None:
            if session.in_flight.awaits_head:
                session.mute(MuteReason.AWAITING_FETCH)
                return Verdict.WAIT
            if size <= MAX_REQUEST_BYTES and not asks_within(
                data, at, client_id_length, route.api, most_bytes
            ):
                return Verdict.COLLECT
        answer = HeadAnswer(partial(self._on_reply, session, route.api, client_id))
        session.in_flight.pending.append(Pending(correlation_id, answer))
        return Verdict.RELAY

    def on_request(self, session: ClientSession, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`: only requests come here that may ask for too much."""
        client_id = session.client_id_of(frame)
        assert self._quotas is not None
        tracker = _tracker(self._quotas, session, client_id, now_ms)
        most_bytes = None if tracker is None else tracker.max_in_window()
        if most_bytes is not None:
            frame = clamp_max_bytes(frame, route.api, most_bytes)
        answer = HeadAnswer(partial(self._on_reply, session, route.api, client_id))
        session.forward(frame, route.api, answer)

    def _on_reply(
        self, session: ClientSession, api: Api, client_id: str, head: bytes, size: int, now_ms: int
    ) -> bytes | None:
        session.release(MuteReason.AWAITING_FETCH)
        quotas = self._quotas
        assert quotas is not None
        # Looked up again: a quota that changed while the broker was waiting for records applies to this answer.
        tracker = _tracker(quotas, session, client_id, now_ms)
        if tracker is None:
            return None
        wanted_ms = tracker.record(counted_bytes(size, api), now_ms=now_ms)
        if wanted_ms <= 0 and now_ms >= session.owed_until_ms:
            return None
        wanted_ms = session.within_ceiling(wanted_ms, tracker, now_ms=now_ms)
        if wanted_ms <= 0:
            return None
        patched = bytearray(head)
        final_ms = throttle.patch(patched, api, wanted_ms)
        session.throttle(final_ms, now_ms=now_ms)
        if session.is_longest(ThrottledBy.FETCH, wanted_ms, final_ms):
            quotas.book(api.key, ThrottledBy.FETCH, tracker, wanted_ms, now_ms=now_ms)
        return bytes(patched)


def _tracker(quotas: ClientQuotas, session: ClientSession, client_id: str, now_ms: int) -> RateTracker | None:
    """The client's counter, kept with the session: the next answer is likely counted by it too."""
    known = session.fetch_counter
    version = quotas.limits.version
    if (
        known is not None
        and known[0] == client_id
        and known[1] is session.user
        and known[2] == version
        and now_ms < known[3].good_until_ms
    ):
        return known[3]
    tracker = quotas.fetch_tracker(session.user, client_id, session.broker_id, now_ms=now_ms)
    session.fetch_counter = None if tracker is None else (client_id, session.user, version, tracker)
    return tracker
