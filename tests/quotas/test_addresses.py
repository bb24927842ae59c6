"""Spellings of addresses: which Kafka takes, and the one that is kept. Kafka is asked too (tests/integration)."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.addresses import address_spelling, is_host_name, one_spelling
from quotas.entities import QuotaEntity, parse_entity
from testkit.addresses import NO_ADDRESSES, SPELLINGS


@pytest.mark.parametrize(("text", "spelled"), SPELLINGS.items())
def test_each_spelling_that_kafka_takes_is_kept_in_one(text: str, spelled: str) -> None:
    assert address_spelling(text) == spelled
    assert address_spelling(spelled) == spelled
    assert QuotaEntity(ip=text) == QuotaEntity(ip=spelled)
    assert str(parse_entity(f'ip="{text}"')) == f"ip={spelled}"


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_what_kafka_takes_for_no_address_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        one_spelling(text)
    assert QuotaEntity(ip=text).ip == text


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("10.0.0.0/255.0.0.0", "10.0.0.0/8"),
        ("10.0.0.0/08", "10.0.0.0/8"),
        ("10/8", None),
        ("010.0.0.0/8", "10.0.0.0/8"),
        ("2001:DB8::/32", "2001:db8::/32"),
        ("[2001:DB8::]/32", "2001:db8::/32"),
        ("fe80::%1/64", "fe80::/64"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::/0", "::/0"),
        ("10.0.0.1/32", "10.0.0.1"),
        ("2001:db8::1/128", "2001:db8::1"),
        ("::ffff:10.0.0.1/128", "10.0.0.1"),
        ("10.0.0.1/8", None),
        ("10.0.0.0/33", None),
        ("/8", None),
        ("::1/x", None),
    ],
)
def test_blocks_have_one_spelling(text: str, spelled: str | None) -> None:
    if spelled is None:
        with pytest.raises(ValueError, match=r"."):
            one_spelling(text)
    else:
        assert one_spelling(text) == one_spelling(spelled) == spelled


@pytest.mark.parametrize(("text", "host"), [
    ("localhost", True), ("a.b-c.example", True), ("nothing.invalid", False), ("1.2.3.4", False), ("0x7f.1", False),
    ("", False), ("a b", False), ("é", False), ("1.2.3.4.5", False), ("::1", False), ("<default>", False),
])  # fmt: skip
def test_host_names_are_told_from_what_is_no_name_either(text: str, host: bool) -> None:
    assert is_host_name(text) is host


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6))
def test_every_address_is_spelled_as_rfc_5952_has_it(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    assert address_spelling(address.exploded.upper()) == str(mapped or address)


@given(st.text(alphabet="0123456789abcdefF.:%[]/x ", max_size=24))
def test_a_spelling_is_its_own_and_never_fails_but_with_a_value_error(text: str) -> None:
    try:
        spelled = one_spelling(text)
    except ValueError:
        return
    assert one_spelling(spelled) == spelled
    assert QuotaEntity(ip=text) == QuotaEntity(ip=spelled)
