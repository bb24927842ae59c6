"""Connections in usage records: a row per address, and one per user while any user has a limit of them. Pure.

In each line, offered = admitted + rejected + waiting. Waiting connections are admitted or rejected in a later line. A
connection that waits for the rate of its listener counts as offered when it is decided on. A user's connection that
ends while it waits counts as rejected.
"""

from __future__ import annotations

from gateway.usage.row import Level, RowKey
from gateway.usage.table import LevelOf, UsageTable
from quotas.connections import Admission, AdmissionCause, AdmissionDecision, ConnectionQuotas
from quotas.ip_limits import UNLIMITED
from quotas.usage_record import Limit, UsageApi
from quotas.user_connections import Decision


class ConnectionUsage:
    """Counts decisions on connections, for the acceptors."""

    def __init__(self, usage: UsageTable) -> None:
        """Count in this table."""
        self._usage = usage

    def decided(self, listener: str, ip: str, admission: Admission, *, counted: bool) -> bool:
        """Count a decision on a socket.

        Args:
            listener: that accepted it.
            ip: its address.
            admission: the decision.
            counted: the result of the last call for this socket; False before the first call.

        Returns:
            Whether it counts as offered now.
        """
        row = self._usage.row(listener, "", ip, UsageApi.CONNECT)
        decision = admission.decision
        if decision is AdmissionDecision.WAIT:
            row.delay(admission.wait_ms)
            return counted
        if not counted:
            row.count(1)
            row.withhold(1)
        if decision is AdmissionDecision.ADMIT:
            row.withhold(-1)
        elif decision is AdmissionDecision.HOLD:
            row.delay(admission.wait_ms)
        else:
            row.reject(1, withheld=True)
        return True


def record_user_connection(usage: UsageTable, decision: Decision) -> None:
    """Count a decision on a connection whose user is known. Users' quotas apply to all listeners together.

    Args:
        usage: the table.
        decision: see `Decision`.
    """
    row = usage.row("", decision.user, "", UsageApi.USER_CONNECT, None, decision.tracker)
    admission = decision.admission
    if decision.first:
        row.count(1)
        row.withhold(1)
    row.opened(decision.connections)
    of_count = admission.cause is AdmissionCause.USER_COUNT
    if of_count or admission.wait_ms:
        row.delay(
            admission.wait_ms,
            beside=(Limit.CONNECTION_COUNT, "") if of_count else None,
            again=decision.again,
        )
    if admission.decision is AdmissionDecision.ADMIT:
        row.withhold(-1)
    elif admission.decision is AdmissionDecision.REFUSE:
        row.reject(1, withheld=True)


def connection_level(connections: ConnectionQuotas) -> LevelOf:
    """A function that gives the limits of addresses."""

    def level_of(key: RowKey, _now_ms: int) -> Level:
        limit = connections.ip_limit(key.client_id)
        return Level(None if limit.rate_per_s >= UNLIMITED else limit.rate_per_s, None, limit.observe)

    return level_of
