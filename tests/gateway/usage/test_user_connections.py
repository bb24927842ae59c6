"""Connections of users in usage records: each is offered once, and then admitted, refused or still waiting."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.usage.connections import record_user_connection
from gateway.usage.row import RowValues
from gateway.usage.table import UsageTable
from quotas.connections import Admission, AdmissionDecision
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Enforcement, Limits
from quotas.rate_quotas import RateSettings
from quotas.usage_record import Limit, Row, RowFlags
from quotas.user_connections import REFUSED_HOLD_MS, UserConnections

COUNT, RATE = QuotaKey.CONNECTION_COUNT, QuotaKey.CONNECTION_CREATION_RATE
ALICE = QuotaEntity(user="alice")


class Recorded:
    """Users with limits, and their usage records."""

    def __init__(self, entity: QuotaEntity = ALICE, *, prefixes: bool = False, **quotas: float) -> None:
        self.limits = Limits(prefixes=prefixes)
        for key, value in quotas.items():
            self.limits.set(entity, QuotaKey(key), value)
        self.users = UserConnections(self.limits, RateSettings(), lambda: 1_000)
        self.table = UsageTable()
        self.users.on_decided = partial(record_user_connection, self.table)
        self.now_ms = 1_000_000

    def enter(self, connection: object, user: str = "alice") -> Admission:
        return self.users.enter(user, connection, now_ms=self.now_ms)

    def rows(self) -> list[RowValues]:
        listed = self.table.take_listed(now_ms=self.now_ms)
        return [self.table.values(row, begin_ms=self.now_ms - 1_000, now_ms=self.now_ms) for row in listed]

    def row(self) -> RowValues:
        (row,) = self.rows()
        return row


def counts(row: RowValues) -> tuple[object, ...]:
    return tuple(row[at] for at in (Row.OFFERED, Row.ADMITTED, Row.REJECTED, Row.DELAYED, Row.THROTTLE_MS))


def test_over_the_count_they_are_refused_and_the_record_says_which_limit_did_it() -> None:
    recorded = Recorded(connection_count=2)
    for each in "abcd":
        recorded.enter(each)
    row = recorded.row()
    assert row[: Row.NODE] == ("", "alice", "", "user_connect")
    assert counts(row) == (4, 2, 2, 2, 2 * REFUSED_HOLD_MS)
    assert row[Row.BESIDE] == [[Limit.CONNECTION_COUNT.value, "", 2, 2 * REFUSED_HOLD_MS]]
    assert (row[Row.CONNECTIONS], row[Row.QUOTA]) == (2, None)


def test_over_the_rate_they_wait_and_are_admitted_in_a_later_line() -> None:
    recorded = Recorded(connection_creation_rate=1)
    decisions = [recorded.enter(each) for each in "abcd"]
    assert [each.decision for each in decisions] == [AdmissionDecision.ADMIT] * 3 + [AdmissionDecision.HOLD]
    row = recorded.row()
    assert counts(row) == (4, 3, 0, 1, decisions[-1].wait_ms)
    assert (row[Row.QUOTA], row[Row.BESIDE], row[Row.CONNECTIONS]) == (1.0, None, 4)
    recorded.now_ms += decisions[-1].wait_ms
    assert recorded.enter("d").decision is AdmissionDecision.ADMIT
    assert counts(recorded.row()) == (0, 1, 0, 0, 0)
    recorded.enter("d")  # a second login
    assert recorded.rows() == []


@pytest.mark.parametrize("end", ["leaves", "is admitted elsewhere"])
def test_one_that_waits_no_more_is_decided_on(end: str) -> None:
    recorded = Recorded(connection_creation_rate=1)
    for each in "abcd":
        recorded.enter(each)
    recorded.rows()
    if end == "leaves":
        recorded.users.leave("d")
        assert counts(recorded.row()) == (0, 0, 1, 0, 0)
    else:
        recorded.users.there("alice", "d")
        assert counts(recorded.row()) == (0, 1, 0, 0, 0)
    recorded.users.leave("d")
    assert recorded.rows() == []


def test_users_of_one_prefix_are_one_row_and_an_observed_quota_is_marked() -> None:
    team = QuotaEntity(user="team-*")
    recorded = Recorded(team, prefixes=True, connection_creation_rate=1)
    recorded.limits.set_observed([team])
    for user in ("team-a", "team-b", "team-c"):
        recorded.enter(user, user)
    row = recorded.row()
    assert (row[Row.USER], counts(row)) == ("team-*", (3, 3, 0, 0, 0))
    assert row[Row.FLAGS] == RowFlags.OBSERVED


def test_without_a_limit_of_any_user_there_are_no_rows() -> None:
    recorded = Recorded()
    recorded.enter("a")
    assert recorded.rows() == []
    recorded.limits.set(QuotaEntity(user="bob"), COUNT, 1)
    recorded.enter("b")
    assert counts(recorded.row()) == (1, 1, 0, 0, 0)
    recorded.limits.set_mode(Enforcement.OFF)
    recorded.enter("c")
    assert recorded.rows() == []


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "leave", "there", "off"]), st.integers(0, 9), st.integers(0, 1_500), st.booleans()
    ),
    max_size=60,
)


@given(_STEPS)
def test_offered_is_admitted_and_rejected_and_what_waits(steps: list[tuple[str, int, int, bool]]) -> None:
    """Whatever they do: the sum over all lines; and admitted less ended ones is what is open and does not wait."""
    recorded = Recorded(QuotaEntity(user=DEFAULT), connection_count=4, connection_creation_rate=1)
    offered = admitted = rejected = 0.0
    for what, connection, later_ms, takes in steps:
        recorded.now_ms += later_ms
        user = "ab"[connection % 2]
        if what == "enter":
            recorded.enter(connection, user)
        elif what == "leave":
            recorded.users.leave(connection)
        elif what == "there" and connection in recorded.users._connections:
            recorded.users.there(user, connection)
        elif what == "off":
            recorded.limits.set_mode(Enforcement.OFF if takes else Enforcement.ENFORCE)
        for row in recorded.rows() if takes else ():
            offered, admitted = offered + row[Row.OFFERED], admitted + row[Row.ADMITTED]  # type: ignore[operator]
            rejected += row[Row.REJECTED]  # type: ignore[operator]
    for row in recorded.rows():
        offered, admitted = offered + row[Row.OFFERED], admitted + row[Row.ADMITTED]  # type: ignore[operator]
        rejected += row[Row.REJECTED]  # type: ignore[operator]
    waiting = sum(each.waits_for is not None for each in recorded.users._connections.values())
    assert offered == admitted + rejected + waiting
