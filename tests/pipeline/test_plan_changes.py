from __future__ import annotations

import json

import pytest

from pipeline.plan import Action, Basis, Plan, PlanEntry, PlanError
from pipeline.plan_changes import (
    Change,
    Difference,
    Revert,
    State,
    differences,
    last_changes,
    reverting,
    to_do,
)
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey

ALICE = QuotaEntity(user="alice")
APP = QuotaEntity(client_id="app")
RATE = QuotaKey.PRODUCER_BYTE_RATE


def plan_of(*entries: tuple[QuotaEntity, Action, float, float | None]) -> Plan:
    basis = Basis("2026-11-14", "2026-11-20", 7, 1.0, 0.01, 1.15, "deferral")
    return Plan(
        "2026-11-21T00:00:00Z",
        basis,
        (),
        tuple(
            PlanEntry(entity, RATE, action, value, old, value, value, 0.0, 7, 0.0, "because")
            for entity, action, value, old in entries
        ),
    )


@pytest.mark.parametrize(
    ("now", "old", "state"),
    [
        (None, None, State.SET),
        (None, 500.0, State.SET),  # the records saw a default's value
        (500.0, 500.0, State.CHANGE),
        (1000.0, 500.0, State.SAME),
        (700.0, 500.0, State.DRIFT),
        (700.0, None, State.DRIFT),
    ],
)
def test_a_value_that_neither_the_records_nor_the_plan_know_is_a_drift(
    now: float | None, old: float | None, state: State
) -> None:
    in_force = {} if now is None else {(ALICE, RATE): now}
    found = differences(plan_of((ALICE, Action.SET, 1000.0, old)), in_force)
    assert found == [Difference(ALICE, RATE, now, 1000.0, state)]


@pytest.mark.parametrize(
    ("now", "state"),
    [
        (300.0, State.CHANGE),  # as the earlier plan left it
        (200.0, State.CHANGE),  # as it found it: the plan was taken back, or broke off
        (500.0, State.DRIFT),  # the records saw it: somebody else has set it since
        (1000.0, State.SAME),
        (None, State.SET),
    ],
)
def test_of_a_quota_that_an_earlier_plan_has_set_anything_else_is_a_drift(
    now: float | None, state: State
) -> None:
    in_force = {} if now is None else {(ALICE, RATE): now}
    last = last_changes([Revert("2026-11-21T00:00:00Z", "", (Change(ALICE, RATE, 200.0, 300.0),))])
    (found,) = differences(plan_of((ALICE, Action.SET, 1000.0, 500.0)), in_force, last=last)
    assert found.state is state


def test_of_several_earlier_plans_the_latest_counts_quota_by_quota() -> None:
    first = Revert("2026-11-14T00:00:00Z", "", (Change(ALICE, RATE, None, 1.0), Change(APP, RATE, None, 2.0)))
    second = Revert("2026-11-21T00:00:00Z", "", (Change(ALICE, RATE, 1.0, 3.0),))
    assert last_changes([second, first]) == {
        (ALICE, RATE): Change(ALICE, RATE, 1.0, 3.0),
        (APP, RATE): Change(APP, RATE, None, 2.0),
    }


def test_what_a_plan_keeps_is_not_touched() -> None:
    plan = plan_of((ALICE, Action.KEEP, 1000.0, 1000.0), (APP, Action.SET, 5.0, None))
    assert [each.entity for each in differences(plan, {})] == [APP]
    assert [each.entity for each in differences(plan, {}, keep_too=True)] == [ALICE, APP]


def test_a_drift_is_altered_only_by_force() -> None:
    found = [
        Difference(ALICE, RATE, 1.0, 1.0, State.SAME),
        Difference(ALICE, RATE, 1.0, 2.0, State.DRIFT),
        Difference(APP, RATE, None, 2.0, State.SET),
    ]
    assert to_do(found, force=False) == found[2:]
    assert to_do(found, force=True) == found[1:]


def test_a_revert_file_says_what_it_was_told() -> None:
    revert = Revert(
        "2026-11-21T00:00:00Z",
        "127.0.0.1:9092",
        (
            Change(ALICE, RATE, None, 10.0),
            Change(QuotaEntity(user='o"d,d\n', client_id=DEFAULT), QuotaKey.REQUEST_PERCENTAGE, 0.5, 200.0),
        ),
    )
    text = revert.to_json()
    json.loads(text)
    assert Revert.from_json(text) == revert
    assert Revert.from_json(Revert("", "", ()).to_json()).changes == ()


def test_reverting_goes_backwards_and_sees_what_was_changed_again() -> None:
    bob = QuotaEntity(user="bob")
    changes = (
        Change(ALICE, RATE, 1.0, 2.0),
        Change(APP, RATE, None, 3.0),
        Change(bob, RATE, 4.0, 5.0),
    )
    in_force = {(ALICE, RATE): 2.0, (bob, RATE): 6.0}
    assert reverting(Revert("", "", changes), in_force) == [
        Difference(bob, RATE, 6.0, 4.0, State.DRIFT),
        Difference(APP, RATE, None, None, State.SAME),
        Difference(ALICE, RATE, 2.0, 1.0, State.CHANGE),
    ]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[", "JSON"),
        ("{}", "sluice-revert"),
        ('{"format": "sluice-revert", "version": 2}', "version"),
        ('{"format": "sluice-revert", "version": 1}', "changes"),
        ('{"format": "sluice-revert", "version": 1, "changes": [{}]}', r"changes\[0\]"),
        (
            '{"format": "sluice-revert", "version": 1, "changes": [{"entity": {"user": "a"}, "key": "x"}]}',
            "'x' is not one of",
        ),
        (
            '{"format": "sluice-revert", "version": 1, "changes": [{"entity": {"user": "a"}, '
            '"key": "request_percentage", "before": "1"}]}',
            "before",
        ),
    ],
)
def test_another_file_is_refused_with_what_is_wrong(text: str, named: str) -> None:
    with pytest.raises(PlanError, match=named):
        Revert.from_json(text)
