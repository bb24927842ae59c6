"""Where connections of users are counted, as far as a session is concerned. Pure.

See `quotas.user_connections`; in a worker, `gateway.server.asked_users` asks the supervisor.
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
"""How a refusal is counted, and the quota that it is for."""


class UserPlaces(Protocol):
    """See `quotas.user_connections.UserConnections`."""

    def enter(self, user: str, connection: int, *, now_ms: int) -> Admission:
        """The user of a connection is known, or its turn has come."""

    def leave(self, connection: int) -> None:
        """A connection has ended."""


class UserLimit(ProtocolError):
    """The connections of a user are at their limit. Its bytes are in order; the line in the log is that of others."""

    def __init__(self, user: str, cause: AdmissionCause) -> None:
        close_cause, quota = CAUSES[cause]
        self.cause = close_cause.value
        super().__init__(f"the connections of user {user} are at their limit ({quota})")
