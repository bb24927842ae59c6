"""CreateTopics, CreatePartitions and DeleteTopics under the controller mutation quota (KIP-599).

Each request has a `MutationExchange`. It asks the cluster about the topics, charges topic by topic in wire order,
forwards the admitted topics, merges the broker's results with the refusals, and refunds topics that the broker
refused. The client is muted meanwhile, so requests of one connection are decided one after the other, as in Kafka.

Kafka validates before it charges (observed: in debt a topic that exists is still answered with error 36). A gateway
knows only what Metadata shows. Charges that turn out wrong are refunded after the broker's answer. A request of a
version that cannot be refused waits, unread, while its client's debt is more than one window's worth.

If no such quota is set and usage records are kept, the exchange charges and refuses no topic, and relays a request
that it cannot parse unchanged: usage records must not make a client's request fail.
"""

from __future__ import annotations

from gateway.handlers.context import MAX_REQUEST_BYTES, HandlerContext
from gateway.handlers.mutation_exchange import MutationExchange
from gateway.session.response_queue import Pending
from gateway.session.routes import HeadDecision, HeadOutcome, RequestHead, Route, Session
from protocol.errors import ProtocolError, TooManyElements
from protocol.headers import refuse_size
from protocol.steps import Steps
from protocol.topic_mutations import TopicMutations, parse_topic_mutations


class TopicMutationHandler:
    """Starts an exchange. Relays the request if it is neither charged nor listed in usage records."""

    max_request_bytes = 2**31 - 1

    def __init__(self, context: HandlerContext) -> None:
        self._context = context

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
        """See `HeadHandler`.

        Raises:
            FrameTooLarge: the request must be parsed, and is larger than `MAX_REQUEST_BYTES`.
        """
        context, size = self._context, head.size
        if context.mutations_enabled and not route.api.strict:
            client_id = session.client_id_at(data, at, head.client_id_length) or ""
            held_ms = context.mutations.held_ms(
                session.user, client_id, kind=session.kind, address=session.address, now_ms=now_ms
            )
            if held_ms:
                session.throttle(held_ms, now_ms=now_ms)
                return HeadDecision.WAIT
        if (context.mutations_seen or context.own_topics) and size <= MAX_REQUEST_BYTES:
            return HeadDecision.COLLECT
        if context.mutations_enabled or context.own_topics:
            raise refuse_size(size, MAX_REQUEST_BYTES)
        if context.mutations_seen and context.usage is not None:
            context.usage.event_missed()
        return Pending(head.correlation_id)

    def on_request(self, session: Session, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`."""
        session.run(self._serve(session, route, frame, now_ms))

    def _serve(self, session: Session, route: Route, frame: bytes, now_ms: int) -> Steps[None]:
        context = self._context
        request = (
            (yield from self._request(route, frame)) if context.mutations_seen or context.own_topics else None
        )
        if request is None or not (context.mutations_seen or self._may_be_own(request)):
            session.forward(frame, route.api)
        else:
            yield from MutationExchange(self._context, session, request, frame).start(now_ms)

    def _may_be_own(self, request: TopicMutations) -> bool:
        """Whether one of the topics may be the gateway's. For a topic id the cluster has to answer that."""
        own = self._context.own_topics
        return any(topic.name is None or topic.name in own.names for topic in request.topics)

    def _request(self, route: Route, frame: bytes) -> Steps[TopicMutations | None]:
        """The parsed request. None if it cannot be parsed and need not be: the broker then answers the error."""
        try:
            return (yield from parse_topic_mutations(frame, route.api))
        except ProtocolError as fault:
            context = self._context
            if context.mutations_enabled or context.own_topics:
                raise
            if isinstance(fault, TooManyElements) and context.usage is not None:
                context.usage.event_missed()
            return None
