"""Produce: relayed as it comes; acks decide whether a reply is owed, KIP-951's endpoints are rewritten.

Records are never looked at. From v10 on a reply may name brokers' addresses, so it is collected (it is small);
older replies are relayed.
"""

from __future__ import annotations

from functools import partial

from gateway.handlers.context import HandlerContext
from gateway.in_flight import CollectedAnswer, Pending
from gateway.routes import Route
from gateway.session import ClientSession
from protocol.addresses import rewrite_produce
from protocol.api_keys import Api, ApiKey, describe, newest_version
from protocol.headers import correlation_id_at
from protocol.produce import read_acks

_FIRST_VERSION_WITH_ENDPOINTS = 10


class ProduceHandler:
    """Notes what reply is to be expected."""

    def __init__(self, context: HandlerContext) -> None:
        self._context = context
        # One answer object per version serves all requests: it holds nothing of a single one.
        self._rewriting = {
            version: CollectedAnswer(partial(self._on_reply, describe(ApiKey.PRODUCE, version)))
            for version in range(_FIRST_VERSION_WITH_ENDPOINTS, newest_version(ApiKey.PRODUCE) + 1)
        }

    def on_head(
        self,
        session: ClientSession,
        route: Route,
        data: bytes,
        at: int,
        client_id_length: int,
        *,
        now_ms: int,
    ) -> bool:
        """See `HeadHandler`."""
        acks = read_acks(data, at, len(data), client_id_length, route.api)
        if acks is None:
            return False
        if acks == 0:
            return True
        answer = self._rewriting.get(route.api.version)
        session.in_flight.pending.append(Pending(correlation_id_at(data, at), answer))
        return True

    def _on_reply(self, api: Api, frame: bytes, _now_ms: int) -> bytes:
        return rewrite_produce(frame, api, self._context.topology.advertise)
