"""Connections: offered = admitted + rejected + held, address by address."""

from gateway.usage.connections import ConnectionUsage, connection_level
from gateway.usage.table import UsageTable
from quotas.connections import (
    Admission,
    AdmissionCause,
    AdmissionDecision,
    ConnectionLimits,
    ConnectionQuotas,
    ListenerLimits,
)
from quotas.entities import QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.usage_record import Row, UsageApi

ADMIT = Admission(AdmissionDecision.ADMIT)
WAIT = Admission(AdmissionDecision.WAIT, AdmissionCause.LISTENER_RATE, 70)
HOLD = Admission(AdmissionDecision.HOLD, AdmissionCause.IP_RATE, 500, 600)
REFUSE = Admission(AdmissionDecision.REFUSE, AdmissionCause.IP_RATE)


class Connecting:
    def __init__(self) -> None:
        self.table = UsageTable()
        self.usage = ConnectionUsage(self.table)

    def socket(self, *admissions: Admission, counted: bool = False, ip: str = "192.0.2.1") -> bool:
        for admission in admissions:
            counted = self.usage.decided("in", ip, admission, counted=counted)
        return counted

    def row(self) -> dict[Row, object]:
        (row,) = self.table.take_listed(now_ms=1_000)
        return dict(zip(Row, self.table.values(row, now_ms=1_000), strict=True))


def counts(row: dict[Row, object]) -> tuple[object, ...]:
    return tuple(
        row[name] for name in (Row.OFFERED, Row.ADMITTED, Row.REJECTED, Row.DELAYED, Row.THROTTLE_MS)
    )


def test_connections_are_counted_by_what_became_of_them() -> None:
    connecting = Connecting()
    connecting.socket(ADMIT)
    connecting.socket(WAIT, ADMIT)
    connecting.socket(HOLD, REFUSE)
    connecting.socket(REFUSE)
    row = connecting.row()
    assert (row[Row.API], row[Row.CLIENT_ID], row[Row.USER]) == ("connect", "192.0.2.1", "")
    assert row[Row.REQUESTS] == 4
    assert counts(row) == (4, 2, 2, 2, 570)


def test_a_held_connection_is_decided_on_in_a_later_line() -> None:
    connecting = Connecting()
    counted = connecting.socket(HOLD)
    assert counts(connecting.row()) == (1, 0, 0, 1, 500)
    connecting.socket(ADMIT, counted=counted)
    assert counts(connecting.row()) == (0, 1, 0, 0, 0)


def test_a_connection_that_waits_is_not_offered_yet() -> None:
    connecting = Connecting()
    assert connecting.socket(WAIT) is False
    assert counts(connecting.row()) == (0, 0, 0, 1, 70)


def test_the_limit_of_the_address_is_told() -> None:
    limits = Limits()
    limits.set(QuotaEntity(ip="192.0.2.1"), QuotaKey.CONNECTION_CREATION_RATE, 5)
    quotas = ConnectionQuotas(limits, ConnectionLimits({"in": ListenerLimits()}), now_ms=0)
    connecting = Connecting()
    connecting.table.watch(UsageApi.CONNECT, connection_level(quotas))
    connecting.socket(ADMIT)
    assert connecting.row()[Row.QUOTA] == 5
    connecting.socket(ADMIT, ip="192.0.2.2")
    assert connecting.row()[Row.QUOTA] is None
