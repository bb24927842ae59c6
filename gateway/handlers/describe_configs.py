"""DescribeConfigs: broker settings that contain addresses are answered as null (hazard E19).

If the gateway has its own connection limits of brokers, it answers these; see `gateway.quota_admin.broker_limits`. A
client that asks a broker for `SCOPE_SETTING` by its name gets the scope of the gateway's counters. Kafka's brokers do
not know this setting.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from gateway.handlers.context import MAX_REQUEST_BYTES, HandlerContext
from gateway.quota_admin.broker_limits import BrokerLimits
from gateway.session.response_queue import CollectedAnswer
from gateway.session.routes import Route, Session
from protocol.api_keys import Api
from protocol.describe_configs import AskedConfigs, ShownConfig, asked_broker_configs, edit_broker_configs
from protocol.steps import Steps
from quotas.usage_record import SCOPE_SETTING

_STATIC_BROKER: Final = 4  # Kafka's number of this config source
_STRING: Final = 2


class DescribeConfigsHandler:
    """Forwards the request and masks the answer. If no broker is named, the answer is relayed unchanged."""

    max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self, context: HandlerContext, limits: BrokerLimits | None) -> None:
        self._context = context
        self._limits = limits

    def on_request(self, session: Session, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`."""
        session.run(self._serve(session, route.api, frame))

    def _serve(self, session: Session, api: Api, frame: bytes) -> Steps[None]:
        asked = yield from asked_broker_configs(frame, api)
        answer = None if asked is None else CollectedAnswer(partial(self._on_reply, api, asked))
        session.forward(frame, api, answer)

    def _on_reply(self, api: Api, asked: AskedConfigs, frame: bytes, _now_ms: int) -> Steps[bytes]:
        limits, hosts = self._limits, self._context.topology.cluster.hosts
        scope = ShownConfig(self._context.scope, _STATIC_BROKER, _STRING)
        asks_for_scope = any(SCOPE_SETTING in (wanted or ()) for wanted in asked.values())
        if not asked or (limits is None and not asks_for_scope):
            return edit_broker_configs(frame, api, hosts)

        def shown(resource: str) -> dict[str, ShownConfig]:
            wanted = asked.get(resource)
            found = {
                key: config
                for key, config in (limits.shown(resource) if limits is not None else {}).items()
                if wanted is None or key in wanted
            }
            return {**found, SCOPE_SETTING: scope} if SCOPE_SETTING in (wanted or ()) else found

        return edit_broker_configs(frame, api, hosts, shown, limits.keys if limits is not None else ())
