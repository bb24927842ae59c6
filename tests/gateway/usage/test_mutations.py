"""Mutations: each topic of each request is an event, and the client's row has the sums."""

from gateway.usage.mutations import mutation_level, record_mutations
from gateway.usage.table import UsageTable
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
        return [dict(zip(Row, self.table.values(row, now_ms=now_ms), strict=True)) for row in listed]


def test_each_topic_is_an_event_with_its_own_verdict() -> None:
    mutating = Mutating()
    mutating.ask(8, 5, 4)
    events = list(mutating.table.take_events())
    assert [(event[Event.UNITS], event[Event.ADMITTED]) for event in events] == [(8, 1), (5, 1), (4, 0)]
    assert [event[Event.THROTTLE_MS] for event in events] == [0, 0, 3_000]
    assert {event[Event.CORRELATION_ID] for event in events} == {42}
    assert {(event[Event.USER], event[Event.CLIENT_ID]) for event in events} == {("alice", "")}


def test_the_row_has_sums_limit_and_tokens() -> None:
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


def test_a_client_without_a_limit_is_recorded_by_name() -> None:
    mutating = Mutating(limit=None)
    mutating.ask(8)
    (row,) = mutating.rows()
    assert (row[Row.USER], row[Row.CLIENT_ID], row[Row.QUOTA]) == ("alice", "app", None)


def test_topics_that_cost_nothing_are_no_mutations() -> None:
    mutating = Mutating()
    mutating.ask(0, 0)
    assert list(mutating.table.take_events()) == []
    assert mutating.rows() == []
