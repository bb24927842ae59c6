"""CreateTopics, CreatePartitions and DeleteTopics under the controller mutation quota (KIP-599).

One `MutationExchange` per request: ask the cluster what it knows of the topics, charge topic by topic in wire
order, forward what was admitted, merge the broker's results with the refusals, give back what was charged for
topics that the broker refused. The client's connection is muted meanwhile, so requests of one connection are
decided one after the other, as in Kafka.

Kafka validates before it charges (live: in debt a topic that exists is still answered with error 36). A gateway can
only know what Metadata tells; what it cannot know is refunded when the broker's answer shows it.
"""

from __future__ import annotations

from gateway.handlers.context import MAX_REQUEST_BYTES, HandlerContext
from gateway.handlers.mutation_exchange import MutationExchange
from gateway.routes import Route
from gateway.session import ClientSession
from protocol.headers import correlation_id_of
from protocol.topic_mutations import parse_topic_mutations


class TopicMutationHandler:
    """Starts an exchange, or forwards the request when no mutation quota is set."""

    max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self, context: HandlerContext) -> None:
        self._context = context

    def on_request(self, session: ClientSession, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`."""
        if not self._context.mutations_enabled:
            session.forward(frame, route.api)
            return
        request = parse_topic_mutations(frame, route.api)
        client_id = session.client_id_of(frame)
        exchange = MutationExchange(self._context, session, request, correlation_id_of(frame), client_id)
        exchange.start(now_ms)
