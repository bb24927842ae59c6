"""FindCoordinator, DescribeCluster and DescribeQuorum: responses with the gateway's addresses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from gateway.handlers.context import MAX_REQUEST_BYTES, HandlerContext
from gateway.session.response_queue import CollectedAnswer
from gateway.session.routes import Route, Session
from protocol.addresses import Advertise
from protocol.api_keys import Api
from protocol.steps import Steps

Rewrite: TypeAlias = Callable[[bytes, Api, Advertise], bytes | Steps[bytes]]


class AddressHandler:
    """Rewrites the whole response with one function of `protocol.addresses`."""

    max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self, context: HandlerContext, rewrite: Rewrite) -> None:
        self._context = context
        self._rewrite = rewrite

    def on_request(self, session: Session, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`."""
        on_reply = partial(self._on_reply, route.api)
        session.forward(frame, route.api, CollectedAnswer(on_reply))

    def _on_reply(self, api: Api, frame: bytes, _now_ms: int) -> bytes | Steps[bytes]:
        return self._rewrite(frame, api, self._context.topology.advertise)
