"""StreamsGroupHeartbeat (KIP-1071): refused to clients with a mutation quota, as the broker creates topics for it.

Which ones, and how large, the coordinator finds out from a topology that any member may have sent long ago, and it
creates them again at any member's heartbeat once they are gone. So no single request shows what it costs, and none
of a client with a mutation quota passes; with the classic protocol such a client creates its topics by CreateTopics.
A request that spells the name of one of the gateway's own topics does not pass either.
"""

from __future__ import annotations

from typing import Final

from gateway.handlers.context import MAX_REQUEST_BYTES, HandlerContext
from gateway.session.routes import Route, Session
from protocol.error_codes import ErrorCode
from protocol.headers import correlation_id_of
from protocol.streams_groups import refused_heartbeat

_LIMITED: Final = (
    b"Streams groups create topics past this client's controller mutation quota: use group.protocol=classic"
)
_OWN: Final = b"The topology names a topic of the gateway"


class StreamsGroupHandler:
    """Refuses heartbeats that may create what is not paid for, and forwards the others."""

    max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self, context: HandlerContext) -> None:
        self._context = context

    def on_request(self, session: Session, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`."""
        own = self._context.own_topics
        version, correlation_id = route.api.version, correlation_id_of(frame)
        if self._context.mutations.is_limited(session.user, session.client_id_of(frame)):
            refusal = refused_heartbeat(version, correlation_id, ErrorCode.UNSUPPORTED_VERSION, _LIMITED)
        elif any(name in frame for name in own.names):
            own.refusals += 1
            refusal = refused_heartbeat(version, correlation_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, _OWN)
        else:
            session.forward(frame, route.api)
            return
        session.answer(refusal, now_ms=now_ms)
