from __future__ import annotations

import pytest

from config.ip_address import check_address, check_address_or_block


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:DB8::0001", "2001:db8::1"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("2001:DB8:0::/32", "2001:db8::/32"),
        ("0.0.0.0/0", "0.0.0.0/0"),
    ],
)
def test_each_address_and_block_has_one_name(written: str, name: str) -> None:
    assert check_address_or_block(written) == name
    if "/" not in written:
        assert check_address(written) == name


@pytest.mark.parametrize("text", ["", "localhost", "10.0.0", "fe80::1%eth0", "10.0.0.1 ", "010.0.0.1"])
def test_names_zones_and_half_addresses_are_refused(text: str) -> None:
    for check in (check_address, check_address_or_block):
        with pytest.raises(ValueError, match=r"^is not an IP address"):
            check(text)


@pytest.mark.parametrize(
    "text", ["10.0.0.1/8", "10.0.0.0/33", "/8", "10.0.0.0/", "::ffff:10.0.0.0/104", "fe80::%1/64"]
)
def test_blocks_that_could_not_match_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        check_address_or_block(text)
