import random
import sys
from types import FrameType
from typing import Any

import pytest

from quotas.entities import DEFAULT
from quotas.ip_table import IpTable, one_spelling


def _table(*names: str) -> IpTable:
    table = IpTable()
    for name in names:
        table.add(name)
    return table


def _calls_of_a_look_up(table: IpTable, address: str) -> int:
    """How many functions, of Python and of C, it takes."""
    calls = 0

    def count(_frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        table.find(address)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:DB8:0:0::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("10.0.0.0/255.0.0.0", "10.0.0.0/8"),
        ("10.0.0.0/08", "10.0.0.0/8"),
        ("2001:DB8::/32", "2001:db8::/32"),
        ("fe80::%1/64", "fe80::/64"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::/0", "::/0"),
    ],
)
def test_addresses_and_blocks_have_one_spelling(name: str, spelled: str) -> None:
    assert one_spelling(name) == one_spelling(spelled) == spelled


@pytest.mark.parametrize("name", ["", "localhost", "10.0.0.1/8", "10.0.0.0/33", "010.0.0.1", "/8", "::1/x"])
def test_what_is_neither_has_none(name: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        one_spelling(name)


def test_a_look_up_takes_as_long_with_thousands_of_blocks_as_with_a_few() -> None:
    blocks = [f"10.{at >> 8}.{at & 255}.0/24" for at in range(10_000)]
    few = _calls_of_a_look_up(_table(*blocks[:2], "12.0.0.0/8", "11.0.0.0/8"), "192.0.2.1")
    assert _calls_of_a_look_up(_table(*blocks, "12.0.0.0/8", "11.0.0.0/8"), "192.0.2.1") == few
    # One more for each prefix length in use, whichever was set first.
    assert _calls_of_a_look_up(_table(*blocks, "12.0.0.0/8"), "192.0.2.1") == few
    assert _calls_of_a_look_up(_table(*blocks), "192.0.2.1") == few - 1


def test_prefix_lengths_that_are_not_in_use_any_more_are_not_asked_for() -> None:
    table = _table("10.0.0.0/8")
    before = _calls_of_a_look_up(table, "192.0.2.1")
    lengths = [f"10.0.0.0/{length}" for length in range(9, 33)]
    for name in lengths:
        table.add(name)
    assert _calls_of_a_look_up(table, "192.0.2.1") == before + len(lengths)
    random.Random(7).shuffle(lengths)
    for name in lengths:
        table.discard(name)
    assert _calls_of_a_look_up(table, "192.0.2.1") == before
    table.discard("10.0.0.0/8")
    assert table.find("10.0.0.1") is None


def test_blocks_of_ipv6_do_not_hold_up_ipv4() -> None:
    table = _table("10.0.0.0/8")
    before = _calls_of_a_look_up(table, "192.0.2.1")
    table.add("2001:db8::/32")
    assert _calls_of_a_look_up(table, "192.0.2.1") == before
    assert table.find("2001:db8::1") == ("2001:db8::/32", "2001:db8::/32")


@pytest.mark.parametrize(("address", "block"), [("1.2.3.4", "0.0.0.0/0"), ("::1", "::/0"), ("::102:304", "::/0")])
def test_a_block_can_be_everybody_of_one_ip_version(address: str, block: str) -> None:
    assert _table("0.0.0.0/0", "::/0").find(address) == (block, block)


@pytest.mark.parametrize(
    ("names", "address", "found"),
    [
        (["::ffff:10.0.0.1", "10.0.0.1"], "10.0.0.1", ("10.0.0.1", "10.0.0.1")),
        (["2001:DB8::1", "2001:db8:0::1"], "2001:db8::1", ("2001:DB8::1", "2001:db8::1")),
        (["fe80::%1/64", "fe80::/64"], "fe80::7", ("fe80::/64", "fe80::/64")),
        (["fe80::%1/64", "fe80::%0/64"], "fe80::7", ("fe80::%0/64", "fe80::/64")),
    ],
)
def test_which_name_of_an_address_decides_does_not_depend_on_their_order(
    names: list[str], address: str, found: tuple[str, str]
) -> None:
    table = _table(*names)
    assert table.find(address) == _table(*reversed(names)).find(address) == found
    table.discard(found[0])
    (other,) = set(names) - {found[0]}
    assert table.find(address) == (other, found[1])
    table.discard(other)
    assert table.find(address) is None


@pytest.mark.parametrize("name", ["::ffff:10.0.0.0/104", "here", "10.0.0.1/8", ":::", DEFAULT, None])
def test_what_matches_no_address_may_be_set_and_limits_nobody(name: Any) -> None:
    table = IpTable()
    table.add(name)
    assert table.find("10.0.0.1") is None
    table.discard(name)
    table.add("10.0.0.0/8")
    assert table.find("10.0.0.1") is not None
