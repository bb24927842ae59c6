"""ApiVersions: the broker's answer, cut to what the gateway understands too (KIP-511).

Versions that we do not know are answered here with error 35, whatever their header looks like: kinder than Kafka,
which closes unless the header is flexible (hazards A15, A16).
"""

from __future__ import annotations

from functools import partial

from gateway.in_flight import CollectedAnswer
from gateway.routes import Route
from gateway.session import ClientSession
from protocol import api_versions
from protocol.api_keys import Api
from protocol.headers import correlation_id_of


class ApiVersionsHandler:
    """Forwards known versions, answers the others."""

    max_request_bytes = 128 * 1024

    def on_request(self, session: ClientSession, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`."""
        if route.unknown_version:
            session.reply(api_versions.unsupported_version_reply(correlation_id_of(frame)))
            return
        session.forward(frame, route.api, CollectedAnswer(partial(_on_reply, route.api)))


def _on_reply(api: Api, frame: bytes, _now_ms: int) -> bytes:
    return api_versions.intersect(frame, api)
