"""Connections of users in a worker: the supervisor counts them, so each is decided on in one place.

The methods are those of `UserConnections`. While connections of users have no limit, nothing is sent: this worker
keeps a list of its connections, and reports them once a limit is set. Questions and ends of connections use one
socket, in order, so an end never overtakes its beginning. If the supervisor does not answer in time, the connection
is admitted. It counts as soon as the supervisor reads the question, and its end is reported later.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from gateway.observability.logging_setup import flooded
from gateway.server.link import BlockingLink, LinkLost
from quotas.connections import ADMIT, Admission
from quotas.limits import Limits

_ADMITTED: Final = Admission(ADMIT)

_log = structlog.get_logger("gateway.connections")


class AskedUsers:
    """See the module."""

    def __init__(
        self, limits: Limits, asking: BlockingLink, soon: Callable[[Callable[[], None]], None]
    ) -> None:
        """There is no connection.

        Args:
            limits: of this process.
            asking: the link to the supervisor.
            soon: calls a function in the next turn of the loop.
        """
        self._soon = soon
        self._limits = limits
        self._asking = asking
        self._unreported: dict[int, str] = {}
        self._reported: set[int] = set()
        self._ended: list[int] = []

    def enter(self, user: str, connection: int, *, now_ms: int) -> Admission:
        """See `UserConnections.enter`; the supervisor has its own clock."""
        if connection not in self._reported and not self._limits.limits_user_connections:
            self._unreported[connection] = user
            return _ADMITTED
        try:
            self._report()
            self._reported.add(connection)
            admission = self._asking.ask("user_enters", user, connection)
        except LinkLost as exc:
            if not flooded("supervisor_silent"):
                _log.warning("supervisor_silent", question="user_enters", error=str(exc))
            # The supervisor may still read the question; its answer no longer matters.
            self._unreported[connection] = user
            return _ADMITTED
        assert isinstance(admission, Admission)
        return admission

    def leave(self, connection: int) -> None:
        """See `UserConnections.leave`."""
        self._unreported.pop(connection, None)
        if connection in self._reported:
            self._reported.discard(connection)
            if not self._ended:
                self._soon(self.tick)
            self._ended.append(connection)

    def tick(self) -> None:
        """Report what was not reported yet: ends, and connections under a new limit."""
        with suppress(LinkLost):  # the next tick reports it
            self._report()

    def _report(self) -> None:
        there = self._unreported if self._limits.limits_user_connections else {}
        if self._ended or there:
            self._asking.tell("users_changed", self._ended, list(there.items()))
            self._ended = []
            self._reported.update(there)
            there.clear()
