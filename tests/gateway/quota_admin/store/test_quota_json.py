"""Quotas in JSON, there and back."""

from typing import Any

import pytest

from gateway.quota_admin.store.interface import HistoryEntry
from gateway.quota_admin.store.quota_json import change_json, entity_json, entity_of, history_json, quotas_of
from quotas.entities import DEFAULT, QuotaEntity
from quotas.layered_quotas import QuotaChange
from testkit.quota_stores import ALICE, ANYBODY, APP, PRODUCE

PAIR = QuotaEntity(user="alice", client_id=DEFAULT)
NETWORK = QuotaEntity(ip="10.0.0.0/8")


@pytest.mark.parametrize("entity", [ALICE, ANYBODY, APP, PAIR, NETWORK], ids=str)
def test_an_entity_comes_back_as_it_was(entity: QuotaEntity) -> None:
    assert entity_of(entity_json(entity)) == entity


@pytest.mark.parametrize("value", [
    None, "alice", [{"type": "user"}], [{"type": "cluster", "name": "a"}], [{"type": "user", "name": 1}],
    [{"type": "user", "name": "a"}, {"type": "user", "name": "b"}],
])  # fmt: skip
def test_what_is_no_entity_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"entity|name|not a valid"):
        entity_of(value)


def test_changes_history_and_lists_of_quotas_in_json() -> None:
    alice = [{"type": "user", "name": "alice"}]
    told = change_json(QuotaChange(ALICE, PRODUCE, 2), None)
    assert told == {"entity": alice, "quota": "producer_byte_rate", "old": None, "new": 2.0}
    assert isinstance(told["new"], float)
    entry = history_json(HistoryEntry(3, 4, "User:admin", "tests", ALICE, PRODUCE, 1.0, None))
    assert entry == {
        "version": 3, "at_ms": 4, "by": "User:admin", "via": "tests", "entity": alice,
        "quota": "producer_byte_rate", "old": 1.0, "new": None,
    }  # fmt: skip

    def quota(limit: Any, *, name: str = "alice", key: str = "producer_byte_rate") -> dict[str, Any]:
        return {"entity": [{"type": "user", "name": name}], "quota": key, "limit": limit}

    assert quotas_of({}) == ({}, ["quotas has to be a list"])
    found, faults = quotas_of(
        [quota(5), quota(6), quota(True, name="b"), quota(-1, name="c"), quota(1, key="speed"), {}, 10**400]
    )
    assert found == {(ALICE, PRODUCE): 5.0}
    assert [fault.partition(":")[0] for fault in faults] == [f"quotas.{at}" for at in range(1, 7)]
    assert "alice has producer_byte_rate twice" in faults[0]
