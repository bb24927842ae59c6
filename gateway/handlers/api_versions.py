"""Answers ApiVersions: the broker's response, cut to the versions that the gateway supports (KIP-511).

From version 5 on a client names the cluster and the node to which it wants to connect (KIP-1242). At the port of
another node the gateway answers REBOOTSTRAP_REQUIRED. The bootstrap port has no node, so every node id is wrong
there. At the right port the broker compares both names. If the broker does not, because it is older than version 5
or the client has not authenticated, the gateway compares the cluster id. Meanwhile the client is not read. After a
wrong name the gateway answers and closes the connection.

The gateway answers unknown versions with error 35, whatever their header looks like. Kafka instead closes the
connection unless the header is flexible (hazards A15, A16).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from gateway.quota_admin.rights import QuotaAdmin
from gateway.session.mute import MuteReason
from gateway.session.response_queue import CollectedAnswer
from gateway.session.routes import Route, Session
from gateway.upstream.topology import ClusterMap
from protocol import api_versions
from protocol.api_keys import Api, ApiKey
from protocol.error_codes import ErrorCode
from protocol.errors import Misrouted
from protocol.headers import correlation_id_of
from protocol.primitives import read_int32

_QUOTA_APIS: Final = frozenset({ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS})


class ApiVersionsHandler:
    """Forwards known versions. Answers unknown versions, and clients at the wrong port or cluster."""

    max_request_bytes = 128 * 1024

    def __init__(self, cluster: ClusterMap, admin: QuotaAdmin | None) -> None:
        """Args: cluster: the listener's cluster. admin: answers the API for client quotas; None: the broker does."""
        self._cluster = cluster
        self._admin = admin

    def on_request(self, session: Session, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`."""
        if route.unknown_version:
            session.answer(api_versions.unsupported_version_reply(correlation_id_of(frame)), now_ms=now_ms)
            return
        api = route.api
        named = api_versions.named_node(frame, api)
        if named is None:
            session.forward(frame, api, CollectedAnswer(partial(self._on_reply, api)))
            return
        cluster_id, node_id = named
        if node_id != session.broker_id:
            session.answer(api_versions.misrouted_reply(correlation_id_of(frame)), now_ms=now_ms)
            session.refuse(Misrouted(f"node {node_id} instead of {session.broker_id}"))
            return
        session.mute(MuteReason.AWAITING_REPLY)
        session.forward(
            frame, api, CollectedAnswer(partial(self._on_reply_to_named, session, api, cluster_id))
        )

    def _on_reply_to_named(
        self, session: Session, api: Api, cluster_id: bytes, frame: bytes, now_ms: int
    ) -> bytes:
        error_code = api_versions.error_code_of(frame)
        if not self._is_checked(session, error_code) and not self._is_here(cluster_id):
            frame = api_versions.misrouted_reply(read_int32(frame, 4)[0])
            error_code = ErrorCode.REBOOTSTRAP_REQUIRED
        if error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            session.refuse(Misrouted("the broker is not the one that the client named"))
        else:
            session.release(MuteReason.AWAITING_REPLY)
        return self._on_reply(api, frame, now_ms)

    def _is_checked(self, session: Session, error_code: int) -> bool:
        """Whether the broker, given its error code, has compared the names. It never does before a login."""
        authentication = session.authentication
        if authentication is not None and authentication.principal is None:
            return False
        return error_code != ErrorCode.UNSUPPORTED_VERSION

    def _is_here(self, cluster_id: bytes) -> bool:
        """Whether this is the cluster's id, or the cluster's id is not known."""
        ours = self._cluster.answered_cluster_id
        return ours is None or ours.encode() == cluster_id

    def _on_reply(self, api: Api, frame: bytes, _now_ms: int) -> bytes:
        admin = self._admin
        # If the cluster decides about permissions, the broker has to support the API as well.
        own = _QUOTA_APIS if admin is not None and not admin.asks_cluster else frozenset()
        return api_versions.intersect(frame, api, own)
