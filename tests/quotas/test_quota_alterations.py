"""What an alteration comes to: Kafka's checks in Kafka's order, and the changes that are left."""

import math
from typing import Any

import pytest

from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.layered_quotas import LayeredQuotas, Owner, QuotaChange
from quotas.limits import Limits
from quotas.quota_alterations import EntityPlan, entity_of, names_of, plan_alterations
from testkit.scenarios import scenarios

RATE = QuotaKey.PRODUCER_BYTE_RATE
USER = {"user": "u"}


def plan(
    entity: dict[str, str | None], *ops: tuple[str, float | None], quotas: LayeredQuotas | None = None
) -> EntityPlan:
    (planned,) = plan_alterations([(entity, operations(ops))], quotas or LayeredQuotas(Limits()))
    return planned


def operations(ops: Any) -> list[tuple[str, float, bool]]:
    return [(key, 0.0 if value is None else value, value is None) for key, value in ops]


@pytest.mark.parametrize("row", scenarios("alter"))
def test_scenario_alter(row: dict[str, Any]) -> None:
    planned = plan(row["entity"], *row["ops"].items())
    if row["error"] == "NONE":
        assert planned.fault is None
    else:
        assert planned.fault is not None
        assert row["msg"] in planned.fault
        assert planned.changes == ()


GUARANTEE = QuotaKey.PRODUCER_BYTE_GUARANTEE


def test_a_guarantee_needs_a_rate_that_is_not_below_it() -> None:
    """In the words of the configuration file, which may have the rate; what it says stays when an override goes."""
    quotas = LayeredQuotas(Limits())
    needs = "producer_byte_guarantee needs producer_byte_rate, the most that this entity gets"
    assert plan(USER, (GUARANTEE, 5), quotas=quotas).fault == needs
    assert plan(USER, (GUARANTEE, 5), (RATE, 5), quotas=quotas).fault is None
    more = "producer_byte_guarantee is more than producer_byte_rate, the most that this entity gets"
    assert plan(USER, (GUARANTEE, 6), (RATE, 5), quotas=quotas).fault == more
    quotas.replace_base([(QuotaEntity(user="u"), RATE, 5)])
    assert plan(USER, (GUARANTEE, 6), quotas=quotas).fault == more
    quotas.apply(plan(USER, (GUARANTEE, 5), quotas=quotas).changes)
    assert plan(USER, (RATE, 4), quotas=quotas).fault == more
    quotas.apply(plan(USER, (RATE, 9), quotas=quotas).changes)
    quotas.apply(plan(USER, (GUARANTEE, 9), quotas=quotas).changes)
    assert plan(USER, (RATE, None), quotas=quotas).fault == more
    assert plan(USER, (RATE, None), (GUARANTEE, None), quotas=quotas).fault is None
    assert plan(USER, (QuotaKey.WEIGHT, 2), quotas=quotas).fault is None


def test_a_file_that_contradicts_a_guarantee_of_the_store_prevents_no_change_of_other_quotas() -> None:
    quotas = LayeredQuotas(Limits())
    quotas.replace_base([(QuotaEntity(user="u"), RATE, 20)])
    quotas.apply(plan(USER, (GUARANTEE, 10), quotas=quotas).changes)
    assert list(quotas.contradictions()) == []
    quotas.replace_base([(QuotaEntity(user="u"), RATE, 5)])
    more = "producer_byte_guarantee is more than producer_byte_rate, the most that this entity gets"
    assert list(quotas.contradictions()) == [f"user=u: {more}"]
    assert plan(USER, (QuotaKey.CONSUMER_BYTE_RATE, 1), quotas=quotas).fault is None
    assert plan(USER, (RATE, 6), quotas=quotas).fault == more
    needs = "consumer_byte_guarantee needs consumer_byte_rate, the most that this entity gets"
    assert plan(USER, (QuotaKey.CONSUMER_BYTE_GUARANTEE, 1), quotas=quotas).fault == needs
    assert plan(USER, (RATE, 10), quotas=quotas).fault is None
    assert plan(USER, (GUARANTEE, None), quotas=quotas).fault is None


@pytest.mark.parametrize("row", scenarios("alterseq"))
def test_scenario_alterseq(row: dict[str, Any]) -> None:
    quotas = LayeredQuotas(Limits())
    for ops, expected in row["steps"]:
        planned = plan(row["entity"], *ops.items(), quotas=quotas)
        assert planned.fault is None
        quotas.apply(planned.changes)
        assert {key: value for _, key, value in quotas.limits.items()} == expected


@pytest.mark.parametrize("row", scenarios("alterdup"))
def test_scenario_alterdup(row: dict[str, Any]) -> None:
    quotas = LayeredQuotas(Limits())
    (planned,) = plan_alterations([(names, operations(ops.items())) for names, ops in row["entries"]], quotas)
    assert planned.fault == "Ignoring duplicate entity ClientQuotaEntity(entries={user=user-1})"
    quotas.apply(planned.changes)
    assert {key: value for _, key, value in quotas.limits.items()} == row["stored"]


@pytest.mark.parametrize(
    ("entity", "ops", "fault"),
    [
        ({"user": "", "foo": "x"}, [("bad", 1.0)], "Empty user not supported"),
        ({"foo": "x", "user": ""}, [("bad", 1.0)], "Unhandled client quota entity type: foo"),
        ({"ip": "1.2.3.4", "client-id": ""}, [("bad", 1.0)], "Empty client-id not supported"),
        ({"ip": "no.host", "client-id": "c"}, [("bad", 1.0)], "Invalid quota entity combination, IP entity "),
        ({"ip": "no.host"}, [("bad", 1.0)], "no.host is a host name, which is not looked up here; give its address."),
        ({"ip": "256.1.1.1"}, [("bad", 1.0)], "256.1.1.1 is not a valid IP or resolvable host."),
        ({}, [("bad", 1.0), ("bad", 2.0)], "Ignoring duplicate entity ClientQuotaEntity(entries={})"),
        (
            {"user": None, "client-id": "c"},
            [(RATE, 1.0), (RATE, None)],
            "Ignoring duplicate entity ClientQuotaEntity(entries={client-id=c, user=null})",
        ),
        (
            {"user": "u"},
            [(RATE, 1.0), ("consumer_byte_rate", -1.0)],
            "Quota consumer_byte_rate must be greater than 0",
        ),
    ],
)
def test_the_first_fault_in_kafkas_order_is_the_answer(entity: Any, ops: Any, fault: str) -> None:
    planned = plan(entity, *ops)
    assert planned.fault is not None
    assert planned.fault.startswith(fault)
    assert planned.changes == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (key.value, value)
        for key in QuotaKey
        for value in (math.nan, math.inf, -math.inf, -0.0, 0.0, -1.0)
        if key is not QuotaKey.TIER or value != 0  # the tier that loses last
    ],
)
def test_g09_values_that_limit_nobody_or_everybody_are_refused_for_every_key(key: str, value: float) -> None:
    entity = {"ip": "10.0.0.1"} if key == QuotaKey.CONNECTION_CREATION_RATE else USER
    assert plan(entity, (key, value)).fault is not None


def test_an_entity_with_a_bad_value_is_left_and_what_is_set_already_is_no_change() -> None:
    quotas = LayeredQuotas(Limits())
    entries = [({"user": "a"}, operations([(RATE, 1.0), ("bad", 1.0)])), ({"user": "b"}, operations([(RATE, 2.0)]))]
    bad, good = plan_alterations(entries, quotas)
    assert (bad.fault, bad.changes) == ("Invalid configuration key bad", ())
    assert (good.fault, good.changes) == (None, (QuotaChange(QuotaEntity(user="b"), RATE, 2.0, Owner.API),))
    quotas = LayeredQuotas(Limits())
    quotas.apply([QuotaChange(QuotaEntity(user="u"), RATE, 5.0)])
    planned = plan(USER, (RATE, 5.0), ("consumer_byte_rate", None), ("no-such-key", None), quotas=quotas)
    assert (planned.fault, planned.changes) == (None, ())


def test_with_others_who_set_quotas_what_seems_to_change_nothing_is_a_change() -> None:
    quotas = LayeredQuotas(Limits())
    entity = QuotaEntity(user="u")
    quotas.apply([QuotaChange(entity, RATE, 5.0)])
    ops = [(RATE, 5.0, False), ("consumer_byte_rate", 0.0, True), ("no-such-key", 0.0, True)]
    (planned,) = plan_alterations([(USER, ops)], quotas, shared=True)
    removed = QuotaChange(entity, QuotaKey.CONSUMER_BYTE_RATE, None)
    assert (planned.fault, planned.changes) == (None, (QuotaChange(entity, RATE, 5.0, Owner.API), removed))


def test_what_the_file_says_can_be_overridden_and_then_removed_but_not_removed_itself() -> None:
    quotas = LayeredQuotas(Limits())
    entity = QuotaEntity(user="u")
    quotas.replace_base([(entity, RATE, 5.0)])
    fault = plan(USER, (RATE, None), quotas=quotas).fault
    assert (
        fault
        == "producer_byte_rate of user=u is set in the gateway's configuration file and can only be removed there"
    )
    same = plan(USER, (RATE, 5.0), quotas=quotas)
    assert same.changes == (QuotaChange(entity, RATE, 5.0, Owner.API),), "kept when the file changes"
    quotas.apply(same.changes)
    assert plan(USER, (RATE, None), quotas=quotas).changes == (QuotaChange(entity, RATE, None),)


def test_names_and_entities_are_each_others_other_side() -> None:
    names = {"user": "<default>", "client-id": None}
    assert entity_of(names) == QuotaEntity(user="<default>", client_id=DEFAULT)
    assert names_of(entity_of(names)) == names
    assert names_of(QuotaEntity(ip=DEFAULT)) == {"ip": None}
