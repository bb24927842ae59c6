"""CreateTopics, CreatePartitions and DeleteTopics under the controller mutation quota (KIP-599).

One `MutationExchange` per request: ask the cluster what it knows of the topics, charge topic by topic in wire
order, forward what was admitted, merge the broker's results with the refusals, give back what was charged for
topics that the broker refused. The client's connection is muted meanwhile, so requests of one connection are
decided one after the other, as in Kafka.

Kafka validates before it charges (live: in debt a topic that exists is still answered with error 36). A gateway can
only know what Metadata shows; what it cannot know is refunded when the broker's answer shows it. A request that is
too old to be refused waits, unread, while its client's debt is more than one window's worth.

While no such quota is set and usage records are kept, the exchange charges nothing and refuses nothing, and what
cannot be taken apart is relayed as it comes: a record must not cost a client its request.
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
    """Starts an exchange; relays the request when it is neither charged nor listed in usage records."""

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
            FrameTooLarge: it would have to be charged or searched, and is larger than what is collected whole.
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
        """Whether one of the topics is the gateway's; of one that is given by its id the cluster has to say."""
        own = self._context.own_topics
        return any(topic.name is None or topic.name in own.names for topic in request.topics)

    def _request(self, route: Route, frame: bytes) -> Steps[TopicMutations | None]:
        """None when it can't be read and need not be: the broker says what is wrong with it."""
        try:
            return (yield from parse_topic_mutations(frame, route.api))
        except ProtocolError as fault:
            context = self._context
            if context.mutations_enabled or context.own_topics:
                raise
            if isinstance(fault, TooManyElements) and context.usage is not None:
                context.usage.event_missed()
            return None
