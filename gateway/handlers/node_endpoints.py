"""Rewrites the brokers' addresses at the end of responses that are otherwise relayed (KIP-951, KIP-932)."""

from __future__ import annotations

from gateway.session.response_queue import Pending, TailAnswer
from gateway.session.routes import RequestHead, Route, Session
from gateway.upstream.topology import Topology
from protocol.api_keys import ApiKey, describe, newest_version
from protocol.node_endpoints import NodeEndpoints


def relayed_answers(topology: Topology, key: ApiKey, first_version: int) -> dict[int, TailAnswer]:
    """By version from `first_version` on, the answer object of all requests of an API."""
    return {
        version: TailAnswer(
            NodeEndpoints(describe(key, version), topology.advertise, topology.address_growth_bytes)
        )
        for version in range(first_version, newest_version(key) + 1)
    }


class NodeEndpointsHandler:
    """Relays requests whose replies end with brokers' addresses."""

    def __init__(self, topology: Topology, key: ApiKey) -> None:
        self._relayed = relayed_answers(topology, key, 0)

    def on_head(
        self,
        session: Session,
        route: Route,
        head: RequestHead,
        data: bytes,
        at: int,
        *,
        now_ms: int,
    ) -> Pending:
        """See `HeadHandler`."""
        return Pending(head.correlation_id, self._relayed[route.api.version])
