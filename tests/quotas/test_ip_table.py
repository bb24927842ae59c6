import random
import sys
from types import FrameType
from typing import Any

import pytest

from quotas.ip_table import IpTable


def _table(*names: str) -> IpTable:
    table = IpTable()
    for name in names:
        table.add(name)
    return table


PER_LENGTH = 2


def _lines_of_a_look_up(table: IpTable, address: str) -> int:
    """How many lines of it are run, `PER_LENGTH` of them for each prefix length."""
    source = IpTable.find.__code__.co_filename
    lines = 0

    def count(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal lines
        # A collection of garbage may begin meanwhile, and others have callbacks in it.
        if frame.f_code.co_filename != source:
            return None
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        table.find(address)
    finally:
        sys.settrace(before)
    return lines


def test_a_look_up_takes_as_long_with_thousands_of_blocks_as_with_a_few() -> None:
    blocks = [f"10.{at >> 8}.{at & 255}.0/24" for at in range(10_000)]
    few = _lines_of_a_look_up(_table(*blocks[:2], "12.0.0.0/8", "11.0.0.0/8"), "192.0.2.1")
    assert _lines_of_a_look_up(_table(*blocks, "12.0.0.0/8", "11.0.0.0/8"), "192.0.2.1") == few
    # One more for each prefix length in use, whichever was set first.
    assert _lines_of_a_look_up(_table(*blocks, "12.0.0.0/8"), "192.0.2.1") == few
    assert _lines_of_a_look_up(_table(*blocks), "192.0.2.1") == few - PER_LENGTH


def test_prefix_lengths_that_are_not_in_use_any_more_are_not_asked_for() -> None:
    table = _table("10.0.0.0/8")
    before = _lines_of_a_look_up(table, "192.0.2.1")
    lengths = [f"10.0.0.0/{length}" for length in range(9, 32)]
    for name in lengths:
        table.add(name)
    assert _lines_of_a_look_up(table, "192.0.2.1") == before + PER_LENGTH * len(lengths)
    random.Random(7).shuffle(lengths)
    for name in lengths:
        table.discard(name)
    assert _lines_of_a_look_up(table, "192.0.2.1") == before
    table.discard("10.0.0.0/8")
    assert table.find("10.0.0.1") is None


def test_blocks_of_ipv6_do_not_hold_up_ipv4() -> None:
    table = _table("10.0.0.0/8")
    before = _lines_of_a_look_up(table, "192.0.2.1")
    table.add("2001:db8::/32")
    assert _lines_of_a_look_up(table, "192.0.2.1") == before
    assert table.find("2001:db8::1") == "2001:db8::/32"


@pytest.mark.parametrize(("address", "block"), [("1.2.3.4", "0.0.0.0/0"), ("::1", "::/0"), ("::102:304", "::/0")])
def test_a_block_can_be_everybody_of_one_ip_version(address: str, block: str) -> None:
    assert _table("0.0.0.0/0", "::/0").find(address) == block
