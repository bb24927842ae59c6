"""Fetch and ShareFetch under the consumer byte rate (KIP-13).

The gateway lowers max_bytes of a Fetch to what the quota's window can pass. The reply has the throttle time for all
its bytes, is counted as it arrives and delivered in full. Then the client is muted. Kafka instead drops the data and
answers empty. A gateway would have paid for the transfer already, and a batch larger than the window would never
arrive (hazards C12, C13; docs/reference/differences-from-kafka.md).

All Fetch requests in flight on a client's connections share the window, and all clients that fetch a topic share the
window of its quota. On one connection a further Fetch passes behind earlier ones only if all of them fit into the
rest of the window (`RateTracker.room_beside`). Near the limit a connection has one Fetch in flight, as always in
Kafka. Otherwise many would be answered in full before the first of them is counted.

While the counter is blocked, no Fetch is forwarded. A request waits up to one window, which no client takes for a
failure. If the wait is longer, the request is answered empty with the throttle time, as in Kafka. A reply that
arrives while the counter is blocked, because other replies have used it up, is emptied and not recorded (hazard K03).

A ShareFetch (KIP-932) is counted by the same counter. It carries acknowledgements, and its reply has records that
are locked for the client, so neither may be lost or delayed. While the counter is blocked, a ShareFetch that would
have to wait is forwarded without a wish for records, and its reply has the throttle time. Every reply is delivered.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Final

from gateway.handlers.context import MAX_REQUEST_BYTES
from gateway.handlers.node_endpoints import relayed_answers
from gateway.handlers.topic_use import (
    PlainTopicsOfReply,
    TopicCounters,
    TopicsOfReply,
    count_plain_records,
    longer,
)
from gateway.session.client_quotas import ClientQuotas
from gateway.session.mute import MuteReason
from gateway.session.parts import ReplyParts, Watch
from gateway.session.response_queue import HeadAnswer, Pending, SizedAnswer
from gateway.session.routes import (
    HeadDecision,
    HeadHandler,
    HeadOutcome,
    RequestHead,
    RewrittenHead,
    Route,
    Session,
)
from gateway.session.throttle_state import CachedSensor, TopicWait
from gateway.upstream.topology import Topology
from gateway.usage.row import UsageRow
from protocol.api_keys import Api, ApiKey
from protocol.errors import Truncated
from protocol.fetch import (
    asked_bytes,
    clamped_head,
    counted_bytes,
    emptied,
    has_max_bytes,
    topics_named,
    without_records,
    without_wish_for_records,
)
from protocol.headers import CLIENT_ID_AT, HEAD, HEAD_BYTES
from protocol.node_endpoints import FIRST_FETCH_VERSION, NodeEndpoints
from quotas.combine import ThrottledBy
from quotas.rate_quotas import ANY_SHARE, RateTracker

_MOST_NAMED: Final = 100
"""Topics of a Fetch whose counters are looked up, at up to 100 us each. The rest are ignored."""

_MOST_LOOKED_AT: Final = 2_000
"""Topics of a Fetch that are checked for a quota, at about 1 us each."""

_MOST_SHARES: Final = 64
"""Most shares of a topic's window, so that clients that only wait for records do not make the others' too small."""


class FetchHandler(HeadHandler):
    """Relays requests, and lowers max_bytes in those that request more than a quota's window passes."""

    max_request_bytes = 2_147_483_647

    def __init__(self, topology: Topology, quotas: ClientQuotas | None, key: ApiKey = ApiKey.FETCH) -> None:
        """Prepare the replies that are relayed unchanged.

        Args:
            topology: addresses of brokers for the clients of this listener.
            quotas: byte rates; None: not enforced.
            key: Fetch or ShareFetch.
        """
        self._quotas = quotas
        self._relayed = relayed_answers(topology, key, FIRST_FETCH_VERSION if key is ApiKey.FETCH else 0)
        self._acknowledges = key is ApiKey.SHARE_FETCH

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
        quotas, size, client_id_length = self._quotas, head.size, head.client_id_length
        if quotas is None or not quotas.counts_fetch:
            return Pending(head.correlation_id, self._relayed.get(route.api.version))
        known = _counter(quotas, session, data, at, client_id_length, now_ms)
        tracker, row = known.tracker, known.row
        if not known.trackers and row is not None and not known.of_topics and not session.times_requests:
            row.use(session.throttling.serial, now_ms=now_ms)
            return Pending(head.correlation_id, self._sized(route.api, row))
        most_bytes = None if tracker is None else tracker.max_in_window()
        share = None if tracker is None or most_bytes is None else most_bytes // (tracker.fetches + 1)
        if known.groups:
            share = _share_of(known)
        topics = quotas.topic_wait(session.throttling, known, now_ms=now_ms)
        if known.of_topics and (topics is None or topics.until_ms <= now_ms):
            try:
                topics = self._look_for_topics(session, known, topics, route.api, head, data, at, now_ms)
            except Truncated:
                return HeadDecision.WHOLE
        if topics is not None and (wait_ms := topics.until_ms - now_ms) > 0:
            assert topics.sensor.tracker is not None
            is_long = self._acknowledges or wait_ms > topics.sensor.tracker.window_ms
            if is_long and size <= MAX_REQUEST_BYTES:
                return HeadDecision.COLLECT
            session.throttling.held_for_topics = True
            return session.hold(route.api, topics.by, topics.sensor, wait_ms, now_ms=now_ms)
        lowered = None
        counting: CachedSensor | None = None
        fetched = () if topics is None else topics.fetched
        asked = 0
        if share is not None:
            asked = asked_bytes(data, at, client_id_length, route.api)
            if session.responses.awaits_head:
                most_bytes = 0 if self._acknowledges else _room_beside(session, known, now_ms)
                if not most_bytes or asked > most_bytes:
                    session.mute(MuteReason.AWAITING_FETCH)
                    return HeadDecision.WAIT
                share = None  # it fits beside the earlier ones
            else:
                most_held_ms = 0.0 if self._acknowledges else float(known.trackers[0].window_ms)
                if size > MAX_REQUEST_BYTES:
                    most_held_ms = math.inf
                asking, wait_ms = _longest_wait(session, known, most_held_ms, now_ms)
                if wait_ms > most_held_ms:
                    return HeadDecision.COLLECT
                if wait_ms > 0:
                    return session.hold(route.api, ThrottledBy.FETCH, asking, wait_ms, now_ms=now_ms)
            counting = known
        if topics is not None and fetched:
            if counting is None:
                asked = asked_bytes(data, at, client_id_length, route.api)
            share = _share_of_topics(fetched, share)
            counting = counting or topics.sensor
        if share is not None and asked > share and has_max_bytes(route.api):
            try:
                lowered = clamped_head(data, at, size, client_id_length, route.api, share)
            except Truncated:
                return HeadDecision.MORE
        session.throttling.held_for_topics = False
        answer = self._answer(session, route.api, known, counted=counting is not None)
        reply = Pending(head.correlation_id, answer)
        if lowered is not None and share is not None:
            asked = min(asked, share)
        if counting is not None:
            session.throttling.fetch_begins(counting, asked, fetched)
        return reply if lowered is None else RewrittenHead(lowered, reply)

    def _look_for_topics(
        self,
        session: Session,
        known: CachedSensor,
        before: TopicWait | None,
        api: Api,
        head: RequestHead,
        data: bytes,
        at: int,
        now_ms: int,
    ) -> TopicWait | None:
        """The wait for the topics that a request names, after the wait for the topics of the previous reply is over.

        A request waits once. Otherwise other clients could use up each time what it has waited for, without end. The
        topic for which the previous reply required a wait is not checked again.

        Raises:
            Truncated: topics of the request have not arrived yet.
        """
        quotas, throttling = self._quotas, session.throttling
        assert quotas is not None
        if throttling.held_for_topics or (
            before is not None and (self._acknowledges or known.records is not None)
        ):
            return before
        wait = before
        found: list[bytes] = []
        names_any = False
        if not self._acknowledges:
            counters = TopicCounters(session, quotas, api, known)
            named = topics_named(data, at, head.size, head.client_id_length, api, most=_MOST_LOOKED_AT)
            try:
                for called in named:
                    names_any = True
                    if counters.may_wait_for(called):
                        found.append(called)
                        if len(found) == _MOST_NAMED:
                            break
            except Truncated:
                if len(data) - at - 4 < head.size:
                    raise
            paid = None if before is None else before.sensor.tracker
            wait = longer(before, counters.wait_to_fetch(found, now_ms, but=paid))
        if wait is None and not names_any and throttling.fetch_answer is None:
            wait = quotas.topic_wait_left(known, now_ms=now_ms)  # the request names no topics
        throttling.topic_wait = wait
        return wait

    def on_request(self, session: Session, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`. Only requests that `on_head` wanted to answer empty are collected."""
        assert self._quotas is not None
        _, _, _, client_id_length = HEAD.unpack_from(frame, 0)
        session.throttling.held_for_topics = False
        known = _counter(self._quotas, session, frame, 0, client_id_length, now_ms)
        share = _share_of(known)
        topics = self._quotas.topic_wait(session.throttling, known, now_ms=now_ms)
        if topics is not None and topics.until_ms > now_ms:
            self._answer_later(
                session, route.api, frame, known, topics.sensor, topics.until_ms - now_ms, now_ms, topics.by
            )
            return
        if share is not None:
            asking, wait_ms = _longest_wait(session, known, 0, now_ms)
            if wait_ms > 0:
                self._answer_later(session, route.api, frame, known, asking, wait_ms, now_ms)
                return
            lowered = clamped_head(frame, 0, len(frame) - 4, client_id_length, route.api, share)
            asked = asked_bytes(frame, 0, client_id_length, route.api)
            if lowered is not None:
                frame = lowered + frame[len(lowered) :]
                asked = min(asked, share)
            session.throttling.fetch_begins(known, asked)
        answer = self._answer(session, route.api, known, counted=share is not None)
        session.forward(frame, route.api, answer)

    def _answer_later(
        self,
        session: Session,
        api: Api,
        frame: bytes,
        known: CachedSensor,
        asking: CachedSensor,
        wait_ms: int,
        now_ms: int,
        by: ThrottledBy = ThrottledBy.FETCH,
    ) -> None:
        """Deliver no records now, and send the throttle time that the counter of `asking` requires."""
        if not self._acknowledges:
            self._answer_empty(session, api, frame, asking, wait_ms, now_ms, by)
            return
        assert self._quotas is not None
        reply = _FetchReply(session, self._quotas, api, known, counted=False)
        on_head = partial(reply.on_acknowledged, asking, now_ms + wait_ms, by)
        answer = HeadAnswer(on_head, self._tail(api), reply)
        session.forward(without_wish_for_records(frame, api), api, answer)

    def _answer(self, session: Session, api: Api, known: CachedSensor, *, counted: bool) -> HeadAnswer:
        """The answer object of a request. Requests of a connection that have the same counters share it."""
        kept = session.throttling.fetch_answer
        if isinstance(kept, HeadAnswer):
            reply = kept.watch
            if isinstance(reply, _FetchReply) and reply.is_of(api, known, counted=counted):
                return kept
        assert self._quotas is not None
        reply = _FetchReply(session, self._quotas, api, known, counted=counted)
        answer = session.throttling.fetch_answer = HeadAnswer(reply.on_head, self._tail(api), reply)
        return answer

    def _sized(self, api: Api, row: UsageRow) -> SizedAnswer:
        """The answer object of a request that only the usage record counts. All requests of a client share it."""
        kept = row.answer
        if kept is not None and kept[0] is api and isinstance(kept[1], SizedAnswer):
            return kept[1]
        watch = None if row.topics is None else PlainTopicsOfReply(api, row)
        answer = SizedAnswer(row, -counted_bytes(0, api), self._tail(api), watch)
        row.answer = (api, answer)
        return answer

    def _tail(self, api: Api) -> NodeEndpoints | None:
        relayed = self._relayed.get(api.version)
        return None if relayed is None else relayed.tail

    def _answer_empty(
        self,
        session: Session,
        api: Api,
        frame: bytes,
        known: CachedSensor,
        wait_ms: int,
        now_ms: int,
        by: ThrottledBy,
    ) -> None:
        session.begin_answer(now_ms=now_ms)
        empty = without_records(frame, api)
        throttling = session.throttling
        held_by, throttling.held_by = throttling.held_by, None
        if known.row is not None:
            known.row.use(throttling.serial, now_ms=now_ms)
            known.row.count(0)
        told = session.throttle_reply(empty, api, by, known, wait_ms, held_by=held_by, now_ms=now_ms)
        session.answer(told, now_ms=now_ms)


class _FetchReply:
    """Counts replies one after the other: the head checks the quota, the bytes are counted as they arrive.

    The state of the current reply is no longer needed when the next reply's head arrives.
    """

    __slots__ = (
        "_api",
        "_asked",
        "_by_topic",
        "_counted",
        "_emptied",
        "_known",
        "_now_ms",
        "_quotas",
        "_session",
    )

    def __init__(
        self, session: Session, quotas: ClientQuotas, api: Api, known: CachedSensor, *, counted: bool
    ) -> None:
        """Start before the first reply.

        Args:
            session, quotas, api: of the requests.
            known: the counters of the requests.
            counted: whether the requests count as in flight; see `ThrottleState.fetch_begins`.
        """
        self._asked = known
        self._counted = counted
        self._session = session
        self._quotas = quotas
        self._api = api
        self._known = known
        self._by_topic = _by_topic(known)
        self._emptied = False
        self._now_ms = 0

    def is_of(self, api: Api, known: CachedSensor, *, counted: bool) -> bool:
        """Whether this object can count the replies of a request with these counters."""
        return self._asked is known and self._api is api and self._counted is counted

    def on_acknowledged(
        self, asking: CachedSensor, until_ms: int, by: ThrottledBy, head: bytes, size: int, now_ms: int
    ) -> bytes | None:
        """Count the reply to a ShareFetch sent while the counter was blocked. It has the next one's throttle time."""
        self._now_ms = now_ms
        self._session.release(MuteReason.AWAITING_FETCH)
        for tracker in self._known.trackers:
            tracker.record_unchecked(counted_bytes(size, self._api), now_ms=now_ms)
        if until_ms <= now_ms:
            return None
        return self._session.throttle_reply(head, self._api, by, asking, until_ms - now_ms, now_ms=now_ms)

    def on_head(self, head: bytes, size: int, now_ms: int) -> bytes | None:
        """See `OnHead`."""
        session, api, quotas, asked = self._session, self._api, self._quotas, self._asked
        throttling = session.throttling
        self._now_ms = now_ms
        self._known = asked
        self._by_topic = _by_topic(asked)
        self._emptied = False
        session.release(MuteReason.AWAITING_FETCH)
        if self._counted:
            throttling.fetch_ends()
        held_by, throttling.held_by = throttling.held_by, None
        # Looked up again: a quota that changed while the broker was waiting for records applies to this reply.
        if not asked.is_of(session.user, asked.raw_client_id, quotas.limits.version, now_ms=now_ms):
            for tracker in asked.trackers:
                tracker.leave(session.throttling)
            self._known = _look_up(quotas, session, asked.client_id, asked.raw_client_id, now_ms)
        known = self._known
        counter = known.tracker
        if not known.trackers:
            return None
        if api.key is ApiKey.SHARE_FETCH:
            for tracker in known.trackers:
                tracker.leave(throttling)
        else:
            asking = known
            wanted_ms = 0
            for tracker in known.trackers:
                if now_ms < tracker.blocked_until_ms or tracker.queue is not None:
                    wait_ms = tracker.empties(throttling, now_ms=now_ms)
                    if wait_ms > wanted_ms:
                        asking, wanted_ms = known.of(tracker), wait_ms
            if wanted_ms > 0:
                self._emptied = True
                if known.row is not None:
                    known.row.use(throttling.serial, now_ms=now_ms)
                    known.row.count(0)
                empty = emptied(head, api)
                return session.throttle_reply(
                    empty, api, ThrottledBy.FETCH, asking, wanted_ms, held_by=held_by, now_ms=now_ms
                )
        delivered_bytes = counted_bytes(size, api)
        asking, wanted_ms = known, 0
        if counter is not None:
            counter.last_value = float(delivered_bytes)
            wanted_ms = counter.record(delivered_bytes, throttling, now_ms=now_ms)
        if known.groups:
            asking, wanted_ms = known.record_groups(wanted_ms, delivered_bytes, throttling, now_ms=now_ms)
        if wanted_ms <= 0:
            return None
        return session.throttle_reply(
            head, api, ThrottledBy.FETCH, asking, wanted_ms, held_by=held_by, now_ms=now_ms
        )

    def whole(self, data: bytes, at: int, end: int, *, now_ms: int) -> None:
        """See `ReplyWatch`."""
        if self._emptied:
            return
        known = self._known
        row = known.row
        if row is not None:
            row.use(self._session.throttling.serial, now_ms=now_ms)
            row.count(counted_bytes(end - at - 4, self._api))
        if not self._by_topic:
            return
        records = None if row is not None and row.topics is not None else known.records
        if records is None or now_ms >= records.good_until_ms:
            self._topics().whole(data, at, end, now_ms=now_ms)
            return
        wait_ms = count_plain_records(records, data, at, end, self._api, now_ms)
        if wait_ms is None:
            self._topics().whole(data, at, end, now_ms=now_ms)
        elif wait_ms > 0:
            self._topics().wait_for_records(records, wait_ms, now_ms)

    def _topics(self) -> TopicsOfReply:
        """The watch that divides the reply by topic. Created on demand, since most replies do not need it."""
        session, quotas, api = self._session, self._quotas, self._api
        return TopicsOfReply(session, quotas, api, TopicCounters(session, quotas, api, self._known))

    def begin(self, size: int) -> Watch | None:
        """See `ReplyWatch`."""
        if self._emptied:
            return None
        known, now_ms = self._known, self._now_ms
        if known.row is not None:
            known.row.use(self._session.throttling.serial, now_ms=now_ms)
            known.row.count(0)
        by_topic = self._topics().begin(size) if self._by_topic else None
        if known.row is None and not known.trackers:
            return by_topic
        delivered_bytes = counted_bytes(size, self._api)
        uncounted_bytes = 4 + size - delivered_bytes
        return ReplyParts(
            delivered_bytes, uncounted_bytes, known.row, known.trackers, by_topic, now_ms=now_ms
        )


def _counter(
    quotas: ClientQuotas, session: Session, data: bytes, at: int, client_id_length: int, now_ms: int
) -> CachedSensor:
    """The counters of the client's replies, cached in the session: the next reply likely has the same ones."""
    known = session.throttling.fetch_sensor
    raw = data[at + CLIENT_ID_AT : at + HEAD_BYTES + max(client_id_length, 0)]
    if known is None or not known.is_of(session.user, raw, quotas.limits.version, now_ms=now_ms):
        client_id = session.client_id_at(data, at, client_id_length) or ""
        before = known
        known = _look_up(quotas, session, client_id, raw, now_ms)
        session.throttling.inherit(known, before)
    return known


def _look_up(quotas: ClientQuotas, session: Session, client_id: str, raw: bytes, now_ms: int) -> CachedSensor:
    known = session.throttling.fetch_sensor = quotas.fetch_sensor(
        session.listener,
        session.user,
        client_id,
        raw,
        session.broker_id,
        kind=session.kind,
        address=session.address,
        now_ms=now_ms,
    )
    return known


def _by_topic(known: CachedSensor) -> bool:
    """Whether a reply is divided by topic."""
    return known.of_topics or (known.row is not None and known.row.topics is not None)


def _share_of(known: CachedSensor) -> int | None:
    """How many bytes one more Fetch may request: those in flight share each window. None: no limit."""
    share = None
    for tracker in known.trackers:
        most_bytes = tracker.max_in_window()
        if most_bytes is not None:
            of_counter = most_bytes // (tracker.fetches + 1)
            share = of_counter if share is None else min(share, of_counter)
    return share


def _share_of_topics(fetched: tuple[RateTracker, ...], share: int | None) -> int | None:
    """How many bytes a Fetch may request if some of its topics have a quota.

    Args:
        fetched: the counters of these topics.
        share: the client's share, from `_share_of`.
    """
    for tracker in fetched:
        most_bytes = tracker.max_in_window()
        if most_bytes is not None:
            of_topic = most_bytes // min(tracker.fetches + 1, _MOST_SHARES)
            share = of_topic if share is None else min(share, of_topic)
    return share


def _room_beside(session: Session, known: CachedSensor, now_ms: int) -> int:
    """How many bytes a Fetch behind others of its connection may request; 0: it has to wait for their replies."""
    if known.of_topics and known.records is None:
        return 0  # the topics, and so what their quotas have left, are only known from the replies
    if now_ms < session.throttling.inherited_until_ms:
        return 0
    room = ANY_SHARE
    most_under_way = 0
    for tracker in known.trackers:
        most_under_way = max(most_under_way, tracker.fetches)
        room = min(room, tracker.room_beside(tracker.fetches, tracker.asked, now_ms=now_ms))
    records = known.records
    # The number of records that a Fetch will get is not known.
    if records is not None and not records.room_beside(most_under_way, 0, now_ms=now_ms):
        return 0
    return room


def _longest_wait(
    session: Session, known: CachedSensor, most_held_ms: float, now_ms: int
) -> tuple[CachedSensor, int]:
    """The sensor that requires the longest wait of a request, and that wait in ms; 0: the request may pass."""
    throttling = session.throttling
    if now_ms < throttling.inherited_until_ms:
        wait_ms = throttling.inherited_ms(known, now_ms=now_ms)
        if wait_ms > 0:
            assert throttling.inherited_from is not None
            return known.of(throttling.inherited_from), wait_ms
    if not known.groups:
        assert known.tracker is not None
        return known, known.tracker.wait_ms(throttling, most_held_ms=most_held_ms, now_ms=now_ms)
    asking, longest_ms = known, 0
    for tracker in known.trackers:
        if tracker.max_in_window() is not None:
            wait_ms = tracker.wait_ms(throttling, most_held_ms=most_held_ms, now_ms=now_ms)
            if wait_ms > longest_ms:
                asking, longest_ms = known.of(tracker), wait_ms
    return asking, longest_ms
