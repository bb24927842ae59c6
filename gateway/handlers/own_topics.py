"""Refuses requests that would write to, alter or delete the gateway's own topics (hazard K11).

Such topics are cut out of a request and answered with TOPIC_AUTHORIZATION_FAILED, the rest of it is relayed. The rest
may be empty: the broker then answers an empty array, and what the request cost is counted as ever. CreateTopics,
CreatePartitions, DeleteTopics and Metadata have handlers of their own, which do the same.

Produce by topic id passes only with ids that the cluster has given another name: an id of which nothing is known is
asked for on the client's own connection first, and what the broker does not know either is answered here. So no id
passes because the gateway has not heard yet of its own topic, as at its start or when the topic was made anew.
These handlers are only in the table of a gateway that keeps its quotas or usage records in topics.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from gateway.handlers.context import MAX_REQUEST_BYTES
from gateway.session.mute import MuteReason
from gateway.session.response_queue import Answer, CollectedAnswer, Pending
from gateway.session.routes import HeadDecision, HeadHandler, HeadOutcome, RequestHead, Route, Session
from gateway.upstream.own_topics import OwnTopics
from protocol import codec
from protocol.api_keys import Api, ApiKey
from protocol.error_codes import ErrorCode
from protocol.errors import TooManyElements, Truncated
from protocol.headers import HEAD, HEAD_BYTES, correlation_id_of
from protocol.metadata import read_topics
from protocol.named_topics import (
    NamedTopics,
    insert_results,
    parse_named_topics,
    refused_results,
    refused_transaction,
)
from protocol.produce import FIRST_VERSION_WITH_TOPIC_IDS, only_topic
from protocol.steps import Steps, finish

GUARDED: Final = (
    ApiKey.DELETE_RECORDS,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ALTER_CONFIGS,
    ApiKey.ELECT_LEADERS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
)

_SHORT: Final = 127
"""Names from here on have lengths of two bytes; so may shorter ones, of clients that have something to hide."""

MOST_LOOKUPS: Final = 500
"""Ids that are asked for at once; the others are answered as unknown, and the client tries them again."""

_LOOKED_THROUGH_AT_ONCE: Final = 1_000
"""Topics and partitions of a Produce that are looked through at its head, at some 3 us each."""

_REFUSED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class OwnTopicsHandler:
    """APIs that name the topics they are about."""

    max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self, own: OwnTopics) -> None:
        self._own = own

    def on_request(self, session: Session, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`."""
        session.run(self._serve(session, route.api, frame, now_ms))

    def _serve(self, session: Session, api: Api, frame: bytes, now_ms: int) -> Steps[None]:
        request = yield from parse_named_topics(frame, api)
        if not request.names_any(self._own.names):
            session.forward(frame, api)
            return
        self._own.refusals += 1
        if api.key is ApiKey.ADD_PARTITIONS_TO_TXN:
            correlation_id = correlation_id_of(frame)
            reply = yield from refused_transaction(
                request, self._own.names, correlation_id, _REFUSED, ErrorCode.OPERATION_NOT_ATTEMPTED
            )
            session.answer(reply, now_ms=now_ms)
            return
        results, count = yield from refused_results(request, self._own.names, _REFUSED)
        on_reply = partial(_insert, api, results, count, None)
        session.forward(request.without(self._own.names), api, CollectedAnswer(on_reply))


class OwnTopicsProduceHandler:
    """Produce: the first bytes decide about a request with one topic, one with several is looked through.

    A short one is looked through in what was received, if it is whole there; others are collected first, and looked
    through in steps.
    """

    max_request_bytes = 2**31 - 1

    def __init__(self, own: OwnTopics, produce: HeadHandler) -> None:
        """Args: own: the topics. produce: takes what names none of them."""
        self._own = own
        self._names = own.names
        self._produce = produce

    def _passes(self, called: bytes | None, api: Api) -> bool:
        """Whether a topic that is called so is known to be none of ours."""
        if api.version >= FIRST_VERSION_WITH_TOPIC_IDS:
            return called in self._own.others
        return called not in self._names

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
        api = route.api
        version = api.version
        client_id_length = head.client_id_length
        body_at = at + HEAD_BYTES + (client_id_length if client_id_length > 0 else 0)
        # Nearly all have no tags, no transaction, one topic with a length of one byte.
        if (
            9 <= version < FIRST_VERSION_WITH_TOPIC_IDS
            and data.startswith(b"\0\0", body_at)
            and data[body_at + 8 : body_at + 9] == b"\2"
            and (name_at := body_at + 10) <= len(data)
            and (name_end := name_at - 1 + data[name_at - 1]) <= len(data)
            and name_end - name_at < _SHORT
        ):
            if data[name_at:name_end] in self._names:
                return HeadDecision.COLLECT
        elif (
            version >= FIRST_VERSION_WITH_TOPIC_IDS
            and data.startswith(b"\0\0", body_at)
            and data.startswith(b"\2", body_at + 8)
            and len(data) >= body_at + 25
        ):
            if data[body_at + 9 : body_at + 25] not in self._own.others:
                return HeadDecision.COLLECT
        else:
            decision = self._walk(data, at, head.size, body_at, api)
            if decision is not None:
                return decision
        return self._produce.on_head(session, route, head, data, at, now_ms=now_ms)

    def _walk(self, data: bytes, at: int, size: int, body_at: int, api: Api) -> HeadDecision | None:
        """What is to be done with a request; None: it names none of our topics."""
        frame_end = at + 4 + size
        try:
            called = only_topic(data, body_at, min(len(data), frame_end), api)
        except Truncated:
            if len(data) >= frame_end:
                raise
            return HeadDecision.MORE
        if called is not None:
            return None if self._passes(called, api) else HeadDecision.COLLECT
        if len(data) >= frame_end:
            try:
                request = finish(parse_named_topics(data, api, at=at, most=_LOOKED_THROUGH_AT_ONCE))
            except TooManyElements:
                return HeadDecision.COLLECT
            if all(self._passes(each.called, api) for each in request.elements):
                return None
        return HeadDecision.COLLECT

    def on_request(self, session: Session, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`: what names our topics, or has been collected to be looked through."""
        session.run(self._serve(session, route, frame, now_ms))

    def _serve(self, session: Session, route: Route, frame: bytes, now_ms: int) -> Steps[None]:
        request = yield from parse_named_topics(frame, route.api)
        unknown = self._unknown(request)
        if not unknown:
            yield from self._go_on(session, route, request, unknown, now_ms)
            return
        session.mute(MuteReason.AWAITING_REPLY)
        question = codec.metadata_by_id_request(
            sorted(unknown)[:MOST_LOOKUPS], client_id=session.client_id_of(frame)
        )
        on_reply = partial(self._on_looked_up, session, route, request)
        session.ask_upstream(question, codec.OWN_CORRELATION_ID, on_reply)

    def _unknown(self, request: NamedTopics) -> set[bytes]:
        """Ids whose topics are not known."""
        if request.api.version < FIRST_VERSION_WITH_TOPIC_IDS:
            return set()
        own = self._own
        called = {each.called for each in request.elements if each.called is not None}
        return {each for each in called if each not in own.others and each not in own.ids}

    def _on_looked_up(
        self, session: Session, route: Route, request: NamedTopics, frame: bytes, now_ms: int
    ) -> Steps[None]:
        for topic in (yield from read_topics(frame, codec.METADATA_BY_ID)):
            self._own.tell_apart(topic)
        yield from self._go_on(session, route, request, self._unknown(request), now_ms)
        session.release(MuteReason.AWAITING_REPLY)

    def _go_on(
        self, session: Session, route: Route, request: NamedTopics, unknown: set[bytes], now_ms: int
    ) -> Steps[None]:
        """Forward what may pass of a request; `unknown` are ids that the broker does not know."""
        api = request.api
        frame = request.frame
        called_own = self._own.ids if api.version >= FIRST_VERSION_WITH_TOPIC_IDS else self._names
        results, count = yield from refused_results(request, called_own, _REFUSED)
        own_count = count
        if unknown:
            more, unknown_count = yield from refused_results(request, unknown, ErrorCode.UNKNOWN_TOPIC_ID)
            results, count = results + more, count + unknown_count
        if count:
            frame = request.without(called_own | unknown)
        size, _, correlation_id, client_id_length = HEAD.unpack_from(frame, 0)
        # With its own size: what is refused counts as much as what is not, as in Kafka.
        head = RequestHead(size, correlation_id, client_id_length)
        outcome = self._produce.on_head(session, route, head, frame, 0, now_ms=now_ms)
        reply = outcome if isinstance(outcome, Pending) else None
        if reply is None and outcome is not HeadDecision.NO_REPLY:  # it waits, and is looked at again
            session.put_back(request.frame)
            return
        self._own.refusals += own_count > 0
        # Without acks a refusal cannot be answered; what is refused is dropped.
        if count and reply is not None:
            reply.answer = CollectedAnswer(partial(_insert, api, results, count, reply.answer))
        session.relay(frame, api, reply)


def _insert(
    api: Api, results: bytes, count: int, inner: Answer | None, frame: bytes, now_ms: int
) -> bytes | None:
    """The broker's answer with our results in it; `inner` has it first."""
    if isinstance(inner, CollectedAnswer):
        answered = inner.on_reply(frame, now_ms)
        assert answered is None or isinstance(answered, bytes)  # Produce answers in one step
        if answered is None:
            return None
        frame = answered
    return insert_results(frame, api, results, count)
