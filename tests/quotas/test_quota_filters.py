"""Describe filters: what they select, and which are refused."""

from typing import Any

import pytest

from quotas.entities import DEFAULT, Name, QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.quota_filters import FilterError, UnsupportedEntityType, make_filter
from testkit.scenarios import entities, scenarios


def limits_of(rows: list[Any]) -> Limits:
    """A set that holds the named entities of the scenarios."""
    limits = Limits()
    for names, value in rows:
        given: dict[str, Name] = {kind: DEFAULT if name is None else name for kind, name in names.items()}
        entity = QuotaEntity(user=given.get("user"), client_id=given.get("client-id"), ip=given.get("ip"))
        key = QuotaKey.CONNECTION_CREATION_RATE if "ip" in names else QuotaKey.REQUEST_PERCENTAGE
        limits.set(entity, key, value)
    return limits


@pytest.mark.parametrize("row", scenarios("describe"))
def test_scenario_describe(row: dict[str, Any]) -> None:
    limits = limits_of(entities(row["entities"]))
    for components, strict, count in row["rows"]:
        selected = list(make_filter(map(tuple, components), strict=strict).select(limits))
        assert len(selected) == count, (components, strict)


@pytest.mark.parametrize("row", scenarios("describe_err"))
def test_scenario_describe_err(row: dict[str, Any]) -> None:
    for components, error in row["rows"]:
        expected = UnsupportedEntityType if error == "UNSUPPORTED_VERSION" else FilterError
        with pytest.raises(expected):
            make_filter(map(tuple, components), strict=False)


def test_the_first_fault_is_told_when_there_are_several() -> None:
    with pytest.raises(FilterError, match="Invalid empty entity type"):
        make_filter([("user", 2, None), ("", 9, None), ("other", 0, None)], strict=False)
    with pytest.raises(FilterError, match="cannot appear more than once"):
        make_filter([("user", 2, None), ("user", 9, None)], strict=False)


def test_entities_come_with_all_values_and_a_user_called_default_is_not_the_default() -> None:
    limits = Limits()
    alice = QuotaEntity(user="alice")
    limits.set(alice, QuotaKey.PRODUCER_BYTE_RATE, 5)
    limits.set(alice, QuotaKey.REQUEST_PERCENTAGE, 7)
    expected = [(alice, {QuotaKey.PRODUCER_BYTE_RATE: 5.0, QuotaKey.REQUEST_PERCENTAGE: 7.0})]
    for strict in (False, True):
        assert list(make_filter([("user", 0, "alice")], strict=strict).select(limits)) == expected
        assert list(make_filter([("user", 2, None)], strict=strict).select(limits)) == expected
    limits = Limits()
    limits.set(QuotaEntity(user="<default>"), QuotaKey.PRODUCER_BYTE_RATE, 5)
    assert not list(make_filter([("user", 1, None)], strict=True).select(limits))
    assert len(list(make_filter([("user", 0, "<default>")], strict=True).select(limits))) == 1


def test_one_entity_named_in_full_is_looked_up_and_not_searched_for() -> None:
    class Unwalkable:
        """Not inherited from: the compiled class could not be (docs/decisions/0024-compiled-core.md)."""

        def __getattr__(self, name: str) -> Any:
            assert name != "entities", "walked"
            return getattr(limits, name)

    limits = Limits()
    limits.set(QuotaEntity(user="u", client_id=DEFAULT), QuotaKey.PRODUCER_BYTE_RATE, 5)
    wanted = make_filter([("client-id", 1, None), ("user", 0, "u")], strict=True)
    assert [entity for entity, _ in wanted.select(Unwalkable())] == [QuotaEntity(user="u", client_id=DEFAULT)]
