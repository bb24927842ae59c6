import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entities import DEFAULT, Family, QuotaEntity, counted, parse_entity

_names = st.one_of(st.none(), st.just(DEFAULT), st.text(min_size=1), st.sampled_from(["<default>", '"', "a,b"]))


@given(st.builds(QuotaEntity, user=_names, client_id=_names, ip=_names))
def test_any_entity_is_read_back_from_its_text(entity: QuotaEntity) -> None:
    assert parse_entity(str(entity)) == entity


def test_a_user_called_like_the_default_is_another_entity() -> None:
    literal, default = QuotaEntity(user="<default>"), QuotaEntity(user=DEFAULT)
    assert literal != default
    assert str(default) == "user=<default>"
    assert str(literal) == 'user="<default>"'
    assert parse_entity('user="<default>"') == literal


def test_one_thing_is_counted_in_the_singular() -> None:
    assert [counted(1, "client"), counted(0, "client"), counted(2, "batch")] == ["1 client", "0 clients", "2 batches"]


def test_text_names_types_as_kafka_spells_them() -> None:
    assert str(QuotaEntity(user="alice", client_id=DEFAULT)) == "user=alice,client-id=<default>"
    assert parse_entity(" user = alice , client-id = <default> ") == QuotaEntity("alice", DEFAULT)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("foo=bar", "unknown entity type 'foo'; types are client-id, user, ip, topic"),
        ("alice", "expected type=name"),
        ("user=a,user=b", "given twice"),
        ('user="a', "does not end"),
        ('user="a"b', "expected a comma"),
    ],
)
def test_bad_text_is_refused_with_its_reason(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        parse_entity(text)


@pytest.mark.parametrize(
    ("entity", "family"),
    [
        (QuotaEntity(user="u"), Family.USER),
        (QuotaEntity(user=DEFAULT, client_id="c"), Family.USER_CLIENT),
        (QuotaEntity(client_id=DEFAULT), Family.CLIENT),
        (QuotaEntity(ip="::1"), Family.IP),
        (QuotaEntity(user="u", ip="::1"), None),
        (QuotaEntity(), None),
    ],
)
def test_family_is_the_shape_of_the_entity(entity: QuotaEntity, family: Family | None) -> None:
    assert entity.family is family
