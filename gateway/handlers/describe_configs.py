"""DescribeConfigs: broker settings that hold addresses are told as null, like sensitive ones (hazard E19)."""

from __future__ import annotations

from functools import partial

from gateway.handlers.context import MAX_REQUEST_BYTES, HandlerContext
from gateway.in_flight import CollectedAnswer
from gateway.routes import Route
from gateway.session import ClientSession
from protocol.api_keys import Api
from protocol.codec import mask_addresses


class DescribeConfigsHandler:
    """Forwards the request and masks the answer."""

    max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self, context: HandlerContext) -> None:
        self._context = context

    def on_request(self, session: ClientSession, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`."""
        on_reply = partial(self._on_reply, route.api)
        session.forward(frame, route.api, CollectedAnswer(on_reply))

    def _on_reply(self, api: Api, frame: bytes, _now_ms: int) -> bytes:
        return mask_addresses(frame, api, self._context.topology.cluster.hosts)
