from typing import Any

import pytest

from quotas.addresses import UNLIMITED, IpLimit, IpLimits, normalise
from quotas.entities import DEFAULT, Name, QuotaEntity, QuotaKey
from quotas.limits import Limits
from tests.support.scenarios import scenarios

KEY = QuotaKey.CONNECTION_CREATION_RATE
_ADDRESSES = {"a": "10.0.0.1", "b": "10.0.0.2"}


def _limits(rates: dict[Name, float]) -> Limits:
    limits = Limits()
    for ip, rate in rates.items():
        limits.set(QuotaEntity(ip=ip), KEY, rate)
    return limits


@pytest.mark.parametrize("row", [p for p in scenarios("conn") if "ipq" in p.values[0]])
def test_scenario_ip_quota(row: dict[str, Any]) -> None:
    limits = Limits()
    ip_limits = IpLimits(limits)
    for who, rate, expected in row["ipq"]:
        entity = QuotaEntity(ip=DEFAULT if who == "default" else _ADDRESSES[who])
        if rate is None:
            limits.remove(entity, KEY)
        else:
            limits.set(entity, KEY, rate)
        assert {who: ip_limits.limit(ip).rate_per_s for who, ip in _ADDRESSES.items()} == expected


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("::FFFF:0102:0304", "1.2.3.4"),
        ("fe80::1%eth0", "fe80::1"),
        ("2001:DB8:0:0::1", "2001:db8::1"),
    ],
)
def test_hazard_b19_an_address_has_one_name(text: str, name: str) -> None:
    assert normalise(text) == name


def test_hazard_b19_a_whole_ipv6_network_can_be_one_client() -> None:
    assert normalise("2001:db8::1", 64) == normalise("2001:db8::ffff:2", 64) == "2001:db8::/64"
    assert normalise("2001:db8:0:1::1", 64) != normalise("2001:db8::1", 64)
    assert normalise("::ffff:1.2.3.4", 64) == "1.2.3.4"


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ValueError, match=r"256\.1\.1\.1"):
        normalise("256.1.1.1")


def test_exact_beats_block_and_longer_beats_shorter_and_default_is_last() -> None:
    ip_limits = IpLimits(_limits({DEFAULT: 1, "10.0.0.0/8": 2, "10.1.0.0/16": 3, "10.1.1.1": 4}))
    assert ip_limits.limit("10.1.1.1") == IpLimit(4, "10.1.1.1")
    assert ip_limits.limit("10.1.1.2") == IpLimit(3, "10.1.0.0/16")
    assert ip_limits.limit("::ffff:10.2.0.1") == IpLimit(2, "10.0.0.0/8")
    assert ip_limits.limit("11.0.0.1") == IpLimit(1, "11.0.0.1")


def test_without_a_limit_an_address_is_unlimited() -> None:
    assert IpLimits(Limits()).limit("1.2.3.4").rate_per_s == UNLIMITED


def test_a_mapped_address_in_the_configuration_is_its_ipv4_address() -> None:
    assert IpLimits(_limits({"::ffff:1.2.3.4": 7})).limit("1.2.3.4").rate_per_s == 7


def test_rates_are_whole_numbers_cut_not_rounded() -> None:
    assert IpLimits(_limits({DEFAULT: 1e-7})).limit("1.2.3.4").rate_per_s == 0
