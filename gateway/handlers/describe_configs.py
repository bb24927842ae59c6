"""DescribeConfigs: broker settings that hold addresses are answered as null, like sensitive ones (hazard E19).

Connection limits of brokers are answered as the gateway's own where it has them, see
`gateway.quota_admin.broker_limits`.
"""

from __future__ import annotations

from functools import partial

from gateway.handlers.context import MAX_REQUEST_BYTES, HandlerContext
from gateway.quota_admin.broker_limits import BrokerLimits
from gateway.session.response_queue import CollectedAnswer
from gateway.session.routes import Route, Session
from protocol.api_keys import Api
from protocol.codec import ShownConfig, asked_broker_configs, mask_addresses, replace_broker_configs


class DescribeConfigsHandler:
    """Forwards the request and masks the answer."""

    max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self, context: HandlerContext, limits: BrokerLimits | None) -> None:
        self._context = context
        self._limits = limits

    def on_request(self, session: Session, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`."""
        limits = self._limits
        asked = {} if limits is None else asked_broker_configs(frame, route.api)
        on_reply = partial(self._on_reply, route.api, asked)
        session.forward(frame, route.api, CollectedAnswer(on_reply))

    def _on_reply(
        self, api: Api, asked: dict[str, frozenset[str] | None], frame: bytes, _now_ms: int
    ) -> bytes:
        limits = self._limits
        if limits is not None and asked:

            def shown(resource: str) -> dict[str, ShownConfig]:
                wanted = asked.get(resource)
                return {
                    key: config
                    for key, config in limits.shown(resource).items()
                    if wanted is None or key in wanted
                }

            frame = replace_broker_configs(frame, api, shown, limits.keys)
        return mask_addresses(frame, api, self._context.topology.cluster.hosts)
