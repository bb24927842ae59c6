"""Refuses requests that would write to, alter or delete the gateway's own topics (hazard K11).

The gateway removes such topics from a request and answers them with TOPIC_AUTHORIZATION_FAILED. It relays the rest.
If the rest is empty, the broker answers an empty array, and the request is counted as usual. CreateTopics,
CreatePartitions, DeleteTopics and Metadata have their own handlers, which do the same.

Produce by topic id passes only with ids that are known to belong to other topics. The gateway first looks up an
unknown id on the client's own connection. If the broker does not know the id either, the gateway refuses it. So an id
of the gateway's own topic cannot pass before the gateway knows it, at its start or after the topic was created again.
Only a gateway that keeps its quotas or usage records in topics has these handlers.
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
"""From this length on a name's length takes two bytes. A client may also encode a shorter one so, to hide a name."""

MOST_LOOKUPS: Final = 500
"""Ids that are looked up at once. The others are answered as unknown, and the client tries them again."""

_LOOKED_THROUGH_AT_ONCE: Final = 1_000
"""Topics and partitions of a Produce that are checked in `on_head`, at about 3 us each."""

_REFUSED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class OwnTopicsHandler:
    """Handles APIs whose requests name topics, except Produce."""

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
    """Produce: the first bytes decide about a request with one topic. Of other requests all topics are checked.

    If such a request is short and was received whole, it is checked in the received bytes. Other requests are
    collected first, and checked in steps.
    """

    max_request_bytes = 2**31 - 1

    def __init__(self, own: OwnTopics, produce: HeadHandler) -> None:
        """Args: own: the topics. produce: handler of the requests that name none of them."""
        self._own = own
        self._names = own.names
        self._produce = produce

    def _passes(self, called: bytes | None, api: Api) -> bool:
        """Whether the topic with this name or id is known not to be the gateway's."""
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
        # Nearly all requests have no tags, no transaction, and one topic with a length of one byte.
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
        """The decision about a request; None: it names none of the gateway's topics."""
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
        """See `RequestHandler`. It gets requests that name the gateway's topics, or that were not checked yet."""
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
        """The ids whose topics are not known."""
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
        """Forward the allowed topics of a request. `unknown` are ids that the broker does not know."""
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
        head = RequestHead(size, correlation_id, client_id_length)
        outcome = self._produce.on_head(session, route, head, frame, 0, now_ms=now_ms)
        reply = outcome if isinstance(outcome, Pending) else None
        if reply is None and outcome is not HeadDecision.NO_REPLY:  # the request waits, and is handled again
            session.put_back(request.frame)
            return
        self._own.refusals += own_count > 0
        # With acks=0 a refusal cannot be answered, so the refused topics are dropped.
        if count and reply is not None:
            reply.answer = CollectedAnswer(partial(_insert, api, results, count, reply.answer))
        session.relay(frame, api, reply)


def _insert(
    api: Api, results: bytes, count: int, inner: Answer | None, frame: bytes, now_ms: int
) -> bytes | None:
    """The broker's answer with the gateway's results. `inner` handles the broker's answer first."""
    if isinstance(inner, CollectedAnswer):
        answered = inner.on_reply(frame, now_ms)
        assert answered is None or isinstance(answered, bytes)  # Produce answers in one step
        if answered is None:
            return None
        frame = answered
    return insert_results(frame, api, results, count)
