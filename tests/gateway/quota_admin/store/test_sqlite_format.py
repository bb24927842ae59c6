"""The layout of the store's file."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.quota_admin.store.sqlite_format import SUM_MODULUS, entity_from, number_of
from quotas.entities import DEFAULT, QuotaEntity, parse_entity

_NAMES = st.one_of(
    st.none(),
    st.just(DEFAULT),
    st.sampled_from(["<default>", "", "a,b", "user=x", '"', "a=b", " a", "é", "\n", "x\0y"]),
    st.text(max_size=12),
)


@given(st.builds(QuotaEntity, user=_NAMES, client_id=_NAMES, ip=_NAMES).filter(lambda each: any(each.components())))
def test_quick_reading_of_an_entity_is_the_careful_one(entity: QuotaEntity) -> None:
    assert entity_from(str(entity)) == parse_entity(str(entity)) == entity


@given(st.text(), st.text(), st.floats(allow_nan=False))
def test_number_of_a_quota_depends_on_all_of_it(entity: str, key: str, value: float) -> None:
    number = number_of(entity, key, value)
    assert 0 <= number < SUM_MODULUS
    assert number != number_of(entity + "x", key, value)
    assert number != number_of(entity, key + "x", value)
    assert value + 1 == value or number != number_of(entity, key, value + 1)
