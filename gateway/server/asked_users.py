"""Connections of users in a worker: the supervisor counts them, so each is decided on in one place.

The methods are those of `UserConnections`. While no connections of users are limited, nothing is asked: this worker
notes its connections, and reports them once a limit is set. Questions and ends go by one socket, in order, so an end
never overtakes its beginning. Where the supervisor does not answer in time, a connection passes: it counts as soon as
the supervisor reads on, and its end is reported then.
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
            asking: leads to the supervisor.
            soon: calls something in the next turn of the loop.
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
            # The question may be read later, and its answer does not matter any more.
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
        """Report what is still to be reported."""
        with suppress(LinkLost):  # with the next tick
            self._report()

    def _report(self) -> None:
        there = self._unreported if self._limits.limits_user_connections else {}
        if self._ended or there:
            self._asking.tell("users_changed", self._ended, list(there.items()))
            self._ended = []
            self._reported.update(there)
            there.clear()
