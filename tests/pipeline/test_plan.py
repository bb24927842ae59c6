"""A plan survives its way through text, and a text that is none is refused with the place of the fault."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.plan import Action, Basis, CapacityCheck, Plan, PlanEntry, PlanError
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey

BASIS = Basis("2026-11-14", "2026-11-20", 7, 0.9998, 0.01, 1.15, "deferral")


def entry(entity: QuotaEntity, value: float = 1_048_576.0) -> PlanEntry:
    return PlanEntry(
        entity=entity,
        key=QuotaKey.PRODUCER_BYTE_RATE,
        action=Action.SET,
        value=value,
        old=None,
        lower=900_000.0,
        upper=1_400_000.0,
        expected_throttled=0.004,
        days=7,
        censored=0.0,
        reason="needs 1 MB/s",
    )


def plan(*entries: PlanEntry) -> Plan:
    check = CapacityCheck(QuotaKey.PRODUCER_BYTE_RATE, None, 9e8, 1.6e8, 5.6, True, "")
    return Plan("2026-11-21T21:00:00Z", BASIS, (check,), entries)


names = st.one_of(st.just(DEFAULT), st.text(min_size=1, max_size=20))
entities = st.builds(QuotaEntity, user=names, client_id=st.one_of(st.none(), names))


@given(st.lists(entities, max_size=5), st.floats(1, 2**53).map(round))
def test_a_plan_comes_back_as_it_was_written(listed: list[QuotaEntity], value: int) -> None:
    written = plan(*(entry(each, float(value)) for each in listed))
    assert Plan.from_json(written.to_json()) == written


def test_a_user_called_default_is_not_the_default_user() -> None:
    written = plan(entry(QuotaEntity(user="<default>")), entry(QuotaEntity(user=DEFAULT)))
    texts = [each["entity"] for each in json.loads(written.to_json())["entries"]]
    assert texts == [{"user": "<default>"}, {"user": None}]
    assert Plan.from_json(written.to_json()) == written


def test_each_entry_has_a_line_of_its_own() -> None:
    text = plan(entry(QuotaEntity(user="a")), entry(QuotaEntity(user="b"))).to_json()
    assert sum('"entity"' in line for line in text.splitlines()) == 2
    assert all(line.count('"entity"') <= 1 for line in text.splitlines())


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"format": "other"}, "format"),
        ({"version": 2}, "version"),
        ({"entries": None}, "entries"),
        ({"made_at": 5}, "made_at"),
        ({"basis": {}}, "basis: first_day is missing"),
    ],
)
def test_what_is_no_plan_is_refused(change: dict[str, object], fault: str) -> None:
    data = json.loads(plan().to_json()) | change
    with pytest.raises(PlanError, match=fault):
        Plan.from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"key": "bytes"}, r"entries\[0\]: key 'bytes'"),
        ({"value": -1}, r"entries\[0\]"),
        ({"value": "many"}, r"entries\[0\]: value"),
        ({"entity": {"users": "a"}}, "'users' is not one of"),
        ({"entity": {"user": 7}}, "text or null"),
        ({"action": "drop"}, "action 'drop'"),
        ({"value": float("inf")}, "value is a finite number"),
    ],
)
def test_an_entry_with_a_fault_is_named(change: dict[str, object], fault: str) -> None:
    data = json.loads(plan(entry(QuotaEntity(user="a"))).to_json())
    data["entries"][0] |= change
    with pytest.raises(PlanError, match=fault):
        Plan.from_json(json.dumps(data))


def test_a_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(PlanError, match="JSON"):
        Plan.from_json("key: value")
