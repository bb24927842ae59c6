"""JoinGroup and SyncGroup: their replies depend on other clients, so a drain does not wait for them (hazard L09).

The members of a group wait for each other, possibly for minutes. In a drain the members that were answered have left
and cannot reconnect here, so the others would wait until the drain's deadline. Closing their connections loses
nothing: each member sends its request again elsewhere.
"""

from __future__ import annotations

from gateway.session.response_queue import WAITS_FOR_CLIENTS, Pending
from gateway.session.routes import RequestHead, Route, Session


class GroupWaitsHandler:
    """Relays requests and marks their replies."""

    def on_head(
        self,
        _session: Session,
        _route: Route,
        head: RequestHead,
        _data: bytes,
        _at: int,
        *,
        now_ms: int,
    ) -> Pending:
        """See `HeadHandler`."""
        return Pending(head.correlation_id, WAITS_FOR_CLIENTS)
