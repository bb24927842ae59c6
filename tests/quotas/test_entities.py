import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entities import (
    ALL_CLIENTS,
    DEFAULT,
    MAX_NAME_CHARS,
    Family,
    QuotaEntity,
    client_name,
    counted,
    counter_name,
    parse_entity,
)

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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (client_name("alice", "app"), "user=alice,client-id=app"),
        (client_name("alice", ""), 'user=alice,client-id=""'),
        (client_name("a,b", "\u202egnp.exe\x1b[31m"), 'user="a,b",client-id="\\u202egnp.exe\\u001b[31m"'),
        (client_name("<default>", "all clients"), 'user="<default>",client-id=all clients'),
        (client_name(ip="10.1.2.3"), "ip=10.1.2.3"),
        (counter_name("alice", ""), "user=alice"),
        (counter_name("", "app"), "client-id=app"),
        (counter_name("", ""), "all clients"),
    ],
)
def test_a_client_has_one_name_which_quotas_take_and_no_client_can_take_from_all(name: str, text: str) -> None:
    assert name == text
    if name != ALL_CLIENTS and '""' not in name:
        assert str(parse_entity(name)) == name


def test_a_name_of_32000_characters_is_cut_as_that_of_an_entity() -> None:
    assert len(client_name("u" * 32_000, "\x1b" * 32_000)) < 8 * MAX_NAME_CHARS


def test_one_thing_is_counted_in_the_singular() -> None:
    assert [counted(1, "client"), counted(0, "client"), counted(2, "batch")] == ["1 client", "0 clients", "2 batches"]


def test_text_names_types_as_kafka_spells_them() -> None:
    assert str(QuotaEntity(user="alice", client_id=DEFAULT)) == "user=alice,client-id=<default>"
    assert parse_entity(" user = alice , client-id = <default> ") == QuotaEntity("alice", DEFAULT)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("foo=bar", "unknown entity type 'foo'; types are client-id, user, ip, topic, group"),
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
