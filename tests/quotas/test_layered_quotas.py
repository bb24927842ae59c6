"""The file is the base, the store wins key by key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.layered_quotas import LayeredQuotas, Owner, QuotaChange
from quotas.limits import Limits

ALICE = QuotaEntity(user="alice")
ANYBODY = QuotaEntity(user=DEFAULT)
PRODUCE = QuotaKey.PRODUCER_BYTE_RATE
FETCH = QuotaKey.CONSUMER_BYTE_RATE


def layered(*base: tuple[QuotaEntity, QuotaKey, float]) -> LayeredQuotas:
    limits = Limits()
    limits.replace_all(base)
    return LayeredQuotas(limits)


def in_force(of: LayeredQuotas) -> dict[tuple[QuotaEntity, QuotaKey], float]:
    return {(entity, key): value for entity, key, value in of.limits.items()}


def test_overrides_win_key_by_key_and_removed_ones_bring_the_floor_back() -> None:
    mine = layered((ALICE, PRODUCE, 100), (ALICE, FETCH, 200))
    mine.apply([QuotaChange(ALICE, PRODUCE, 5)])
    assert in_force(mine) == {(ALICE, PRODUCE): 5, (ALICE, FETCH): 200}
    assert (mine.source(ALICE, PRODUCE), mine.source(ALICE, FETCH)) == ("store", "file")
    assert (mine.override(ALICE, PRODUCE), mine.base(ALICE, PRODUCE)) == (5, 100)
    assert mine.source(ANYBODY, PRODUCE) is None
    mine = layered((ALICE, PRODUCE, 100))
    mine.apply([QuotaChange(ALICE, PRODUCE, 5), QuotaChange(ANYBODY, PRODUCE, 7)])
    mine.apply([QuotaChange(ALICE, PRODUCE, None), QuotaChange(ANYBODY, PRODUCE, None)])
    assert in_force(mine) == {(ALICE, PRODUCE): 100}
    assert list(mine.overrides()) == []
    mine = layered((ALICE, PRODUCE, 100))
    version = mine.limits.version
    mine.apply([QuotaChange(ALICE, PRODUCE, None)])
    assert (in_force(mine), mine.limits.version) == ({(ALICE, PRODUCE): 100}, version)


def test_reload_changes_only_what_the_store_does_not_say_and_is_a_version_only_then() -> None:
    mine = layered((ALICE, PRODUCE, 100), (ALICE, FETCH, 200))
    mine.apply([QuotaChange(ALICE, PRODUCE, 5)])
    assert mine.replace_base([(ALICE, PRODUCE, 1), (ANYBODY, FETCH, 3)])
    assert in_force(mine) == {(ALICE, PRODUCE): 5, (ANYBODY, FETCH): 3}
    mine.apply([QuotaChange(ALICE, PRODUCE, None)])
    assert in_force(mine) == {(ALICE, PRODUCE): 1, (ANYBODY, FETCH): 3}
    mine = layered((ALICE, PRODUCE, 100))
    mine.apply([QuotaChange(ALICE, PRODUCE, 5)])
    version = mine.limits.version
    assert not mine.replace_base([(ALICE, PRODUCE, 99)])
    assert mine.limits.version == version
    assert mine.base(ALICE, PRODUCE) == 99


def test_one_fault_changes_nothing() -> None:
    mine = layered((ALICE, PRODUCE, 100))
    with pytest.raises(ValueError, match="user=<default>: Quota producer_byte_rate must be greater than 0"):
        mine.apply([QuotaChange(ALICE, PRODUCE, 5), QuotaChange(ANYBODY, PRODUCE, -1)])
    with pytest.raises(ValueError, match="client-id=app: Invalid configuration key connection_creation_rate"):
        mine.replace_base([(ALICE, FETCH, 5), (QuotaEntity(client_id="app"), QuotaKey.CONNECTION_CREATION_RATE, 1)])
    assert in_force(mine) == {(ALICE, PRODUCE): 100}


_ENTITIES = [ALICE, ANYBODY, QuotaEntity(client_id="app"), QuotaEntity(user="alice", client_id=DEFAULT)]
_TRIPLES = st.tuples(st.sampled_from(_ENTITIES), st.sampled_from([PRODUCE, FETCH]), st.integers(1, 4))
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("base"), st.lists(_TRIPLES, max_size=5)),
        st.tuples(st.just("set"), st.lists(_TRIPLES, max_size=3)),
        st.tuples(st.just("remove"), st.lists(_TRIPLES, max_size=3)),
    ),
    max_size=12,
)


@given(_STEPS)
def test_any_order_of_reloads_and_alterations_ends_as_overrides_on_top_of_the_floor(
    steps: list[tuple[str, list[tuple[QuotaEntity, QuotaKey, int]]]],
) -> None:
    mine = layered()
    base: dict[tuple[QuotaEntity, QuotaKey], float] = {}
    overrides: dict[tuple[QuotaEntity, QuotaKey], float] = {}
    for what, triples in steps:
        if what == "base":
            base = {(entity, key): value for entity, key, value in triples}
            mine.replace_base(triples)
        elif what == "set":
            overrides |= {(entity, key): value for entity, key, value in triples}
            mine.apply(QuotaChange(*triple) for triple in triples)
        else:
            for entity, key, _ in triples:
                overrides.pop((entity, key), None)
            mine.apply(QuotaChange(entity, key, None) for entity, key, _ in triples)
        assert in_force(mine) == base | overrides
        assert {(entity, key): value for entity, key, value in mine.overrides()} == overrides
        # The families decide what use is counted by, so they must follow too.
        fresh = Limits()
        fresh.replace_all((entity, key, value) for (entity, key), value in (base | overrides).items())
        assert all(fresh.families(key) == mine.limits.families(key) for key in QuotaKey)


def test_an_override_has_the_owner_who_set_it_last_until_it_goes() -> None:
    mine = layered((ALICE, PRODUCE, 100))
    for owner in (Owner.APPLY, Owner.SET, Owner.UNKNOWN):
        mine.apply([QuotaChange(ALICE, PRODUCE, 5, owner)])
        assert mine.owner(ALICE, PRODUCE) is owner
    mine.apply([QuotaChange(ALICE, PRODUCE, 5, Owner.SET)])
    mine.apply([QuotaChange(ALICE, PRODUCE, None, Owner.APPLY)])
    assert mine.owner(ALICE, PRODUCE) is Owner.UNKNOWN
