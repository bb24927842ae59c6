"""JoinGroup and SyncGroup: their replies depend on other clients, so a drain does not wait for them (hazard L09).

The members of a group wait for each other, for minutes if need be. In a drain those that were answered have gone and
can't come back here, so the others would wait until its deadline. They lose nothing: each asks again elsewhere.
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
