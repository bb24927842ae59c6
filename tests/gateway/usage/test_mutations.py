"""Mutations and connections: each topic is an event, each socket is counted by what became of it."""

from gateway.usage.connections import ConnectionUsage, connection_level
from gateway.usage.mutations import mutation_level, record_mutations
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
from quotas.mutations import MutationQuotas, MutationSettings
from quotas.usage_record import Event, Row, UsageApi


class Mutating:
    def __init__(self, limit: float | None = 1.0) -> None:
        self.limits = Limits()
        self.limits.set(QuotaEntity(user="somebody"), QuotaKey.CONTROLLER_MUTATION_RATE, 1.0)
        if limit is not None:
            self.limits.set(QuotaEntity(user="alice"), QuotaKey.CONTROLLER_MUTATION_RATE, limit)
        self.mutations = MutationQuotas(self.limits, MutationSettings(window_num=10))
        self.table = UsageTable()
        self.table.watch(UsageApi.MUTATION, mutation_level(self.mutations))

    def ask(self, *permits: float, strict: bool = True, now_ms: int = 0) -> None:
        decision = self.mutations.charge_request("alice", "app", permits, strict=strict, now_ms=now_ms)
        record_mutations(
            self.table,
            "in",
            "alice",
            "app",
            "create_topics",
            enumerate(decision.topics),
            strict=strict,
            correlation_id=42,
            now_ms=now_ms,
        )

    def rows(self, now_ms: int = 1_000) -> list[dict[Row, object]]:
        listed = self.table.take_listed(now_ms=now_ms)
        return [dict(zip(Row, self.table.values(row, begin_ms=0, now_ms=now_ms), strict=True)) for row in listed]


def test_each_topic_is_an_event_and_the_row_has_sums_limit_and_tokens() -> None:
    mutating = Mutating()
    mutating.ask(8, 5, 4)
    events = list(mutating.table.take_events())
    assert [(event[Event.UNITS], event[Event.ADMITTED]) for event in events] == [(8, 1), (5, 1), (4, 0)]
    assert [event[Event.THROTTLE_MS] for event in events] == [0, 0, 3_000]
    assert {event[Event.CORRELATION_ID] for event in events} == {42}
    assert {(event[Event.USER], event[Event.CLIENT_ID]) for event in events} == {("alice", "")}
    mutating = Mutating()
    mutating.ask(8, 5, 4)
    (row,) = mutating.rows(now_ms=1_000)
    assert (row[Row.REQUESTS], row[Row.OFFERED], row[Row.ADMITTED], row[Row.MAX_UNITS]) == (1, 17, 13, 17)
    assert (row[Row.REJECTED], row[Row.REJECTED_UNITS]) == (1, 4)
    assert (row[Row.QUOTA], row[Row.LEVEL_END]) == (1.0, -2.0)


def test_a_permissive_request_tells_its_wait_with_the_topic_that_caused_it() -> None:
    mutating = Mutating()
    mutating.ask(8, 5, strict=False)
    events = list(mutating.table.take_events())
    assert [(event[Event.STRICT], event[Event.THROTTLE_MS]) for event in events] == [(0, 0), (0, 3_000)]


def test_a_client_without_a_limit_is_recorded_by_name_and_what_costs_nothing_not_at_all() -> None:
    mutating = Mutating(limit=None)
    mutating.ask(8)
    (row,) = mutating.rows()
    assert (row[Row.USER], row[Row.CLIENT_ID], row[Row.QUOTA]) == ("alice", "app", None)
    mutating = Mutating()
    mutating.ask(0, 0)
    assert list(mutating.table.take_events()) == []
    assert mutating.rows() == []


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
        return dict(zip(Row, self.table.values(row, begin_ms=0, now_ms=1_000), strict=True))


def counts(row: dict[Row, object]) -> tuple[object, ...]:
    return tuple(row[name] for name in (Row.OFFERED, Row.ADMITTED, Row.REJECTED, Row.DELAYED, Row.THROTTLE_MS))


def test_connections_are_counted_by_what_became_of_them_beside_their_limit() -> None:
    connecting = Connecting()
    connecting.socket(ADMIT)
    connecting.socket(WAIT, ADMIT)
    connecting.socket(HOLD, REFUSE)
    connecting.socket(REFUSE)
    row = connecting.row()
    assert (row[Row.API], row[Row.CLIENT_ID], row[Row.USER]) == ("connect", "192.0.2.1", "")
    assert row[Row.REQUESTS] == 4
    assert counts(row) == (4, 2, 2, 2, 570)
    limits = Limits()
    limits.set(QuotaEntity(ip="192.0.2.1"), QuotaKey.CONNECTION_CREATION_RATE, 5)
    quotas = ConnectionQuotas(limits, ConnectionLimits({"in": ListenerLimits()}), now_ms=0)
    connecting = Connecting()
    connecting.table.watch(UsageApi.CONNECT, connection_level(quotas))
    connecting.socket(ADMIT)
    assert connecting.row()[Row.QUOTA] == 5
    connecting.socket(ADMIT, ip="192.0.2.2")
    assert connecting.row()[Row.QUOTA] is None


def test_a_held_connection_is_decided_on_in_a_later_line_and_a_waiting_one_is_not_offered_yet() -> None:
    connecting = Connecting()
    counted = connecting.socket(HOLD)
    assert counts(connecting.row()) == (1, 0, 0, 1, 500)
    connecting.socket(ADMIT, counted=counted)
    assert counts(connecting.row()) == (0, 1, 0, 0, 0)
    connecting = Connecting()
    assert connecting.socket(WAIT) is False
    assert counts(connecting.row()) == (0, 0, 0, 1, 70)
