"""Answers ApiVersions: the broker's response, cut to the versions that the gateway supports (KIP-511).

Versions that we do not know are answered here with error 35, whatever their header looks like: kinder than Kafka,
which closes unless the header is flexible (hazards A15, A16).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from gateway.quota_admin.rights import QuotaAdmin
from gateway.session.response_queue import CollectedAnswer
from gateway.session.routes import Route, Session
from protocol import api_versions
from protocol.api_keys import Api, ApiKey
from protocol.headers import correlation_id_of

_QUOTA_APIS: Final = frozenset({ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS})


class ApiVersionsHandler:
    """Forwards known versions, answers the others."""

    max_request_bytes = 128 * 1024

    def __init__(self, admin: QuotaAdmin | None) -> None:
        self._admin = admin

    def on_request(self, session: Session, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`."""
        if route.unknown_version:
            session.answer(api_versions.unsupported_version_reply(correlation_id_of(frame)), now_ms=now_ms)
            return
        session.forward(frame, route.api, CollectedAnswer(partial(self._on_reply, route.api)))

    def _on_reply(self, api: Api, frame: bytes, _now_ms: int) -> bytes:
        admin = self._admin
        # Where the cluster decides about permissions, the broker has to know the API as well.
        own = _QUOTA_APIS if admin is not None and not admin.asks_cluster else frozenset()
        return api_versions.intersect(frame, api, own)
