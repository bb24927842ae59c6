"""UserPlaces: a session's interface to the counters of users' connections. Pure.

`quotas.user_connections` has the counters. In a worker, `gateway.server.asked_users` asks the supervisor.
"""

from __future__ import annotations

from typing import Final, Protocol

from gateway.observability.events import CloseCause
from protocol.errors import ProtocolError
from quotas.connections import Admission, AdmissionCause

CAUSES: Final = {
    AdmissionCause.USER_COUNT: (CloseCause.USER_CONNECTION_COUNT, "connection_count"),
    AdmissionCause.USER_RATE: (CloseCause.USER_CONNECTION_RATE, "connection_creation_rate"),
}
"""By cause of a refusal: how it is counted, and the quota that it is for."""


class UserPlaces(Protocol):
    """See `quotas.user_connections.UserConnections`."""

    def enter(self, user: str, connection: int, *, now_ms: int) -> Admission:
        """Count a connection whose user is known, or whose turn has come."""

    def leave(self, connection: int) -> None:
        """Stop counting a connection that has ended."""


class UserLimit(ProtocolError):
    """A user's connections are at their limit. The client's bytes are valid; it is logged as other refusals."""

    def __init__(self, user: str, cause: AdmissionCause) -> None:
        close_cause, quota = CAUSES[cause]
        self.cause = close_cause.value
        super().__init__(f"the connections of user {user} are at their limit ({quota})")
