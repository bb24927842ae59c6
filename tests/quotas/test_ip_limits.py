import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entities import DEFAULT, Name, QuotaEntity, QuotaKey
from quotas.ip_limits import UNLIMITED, IpLimit, IpLimits, network_of, normalise
from quotas.limits import Enforcement, Limits
from testkit.scenarios import scenarios

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
    assert normalise("::1", 32) == "::/32"


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ValueError, match=r"256\.1\.1\.1"):
        normalise("256.1.1.1")


def test_exact_beats_block_and_longer_beats_shorter_and_default_is_last() -> None:
    ip_limits = IpLimits(_limits({DEFAULT: 1, "10.0.0.0/8": 2, "10.1.0.0/16": 3, "10.1.1.1": 4}))
    assert ip_limits.limit("10.1.1.1") == IpLimit(4, "10.1.1.1")
    assert ip_limits.limit("10.1.1.2") == IpLimit(3, "10.1.0.0/16")
    assert ip_limits.limit("::ffff:10.2.0.1") == IpLimit(2, "10.0.0.0/8")
    assert ip_limits.limit("11.0.0.1") == IpLimit(1, "11.0.0.1")
    assert IpLimits(Limits()).limit("1.2.3.4").rate_per_s == UNLIMITED
    assert IpLimits(_limits({DEFAULT: 1e-7})).limit("1.2.3.4").rate_per_s == 0


def test_two_spellings_of_an_address_are_one_entity_and_the_later_one_counts() -> None:
    mapped, plain = QuotaEntity(ip="::ffff:1.2.3.4"), QuotaEntity(ip="1.2.3.4")
    limits = Limits()
    limits.set(plain, KEY, 50)
    limits.set(mapped, KEY, 7)
    assert limits.count == 1
    assert IpLimits(limits).limit("1.2.3.4") == IpLimit(7, "1.2.3.4")
    assert limits.remove(plain, KEY)
    assert IpLimits(limits).limit("1.2.3.4").rate_per_s == UNLIMITED


def test_alterations_of_other_quotas_leave_what_was_found_alone() -> None:
    limits = _limits({"10.0.0.0/8": 2})
    ip_limits = IpLimits(limits)
    before = ip_limits.limit("10.0.0.1")
    alice = QuotaEntity(user="alice")
    limits.set(alice, QuotaKey.PRODUCER_BYTE_RATE, 5)
    limits.set(alice, QuotaKey.PRODUCER_BYTE_RATE, 6)
    limits.remove(alice, QuotaKey.PRODUCER_BYTE_RATE)
    assert ip_limits.limit("10.0.0.1") is before
    limits.set(QuotaEntity(ip="10.0.0.1"), KEY, 3)
    assert ip_limits.limit("10.0.0.1") == IpLimit(3, "10.0.0.1")


def test_one_more_quota_is_looked_at_alone_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = _limits({f"2001:db8::{at:x}": 2 for at in range(1, 500)} | {f"10.{at}.0.0/16": 2 for at in range(200)})
    ip_limits = IpLimits(limits)
    ip_limits.limit("192.0.2.1")
    parsed = []
    for name in ("ip_address", "ip_network"):
        true = getattr(ipaddress, name)

        def counted(*args: Any, true: Any = true, **keys: Any) -> Any:
            parsed.append(args)
            return true(*args, **keys)

        monkeypatch.setattr(ipaddress, name, counted)
    limits.set(QuotaEntity(ip="192.0.2.0/24"), KEY, 3)
    assert ip_limits.limit("192.0.2.1").rate_per_s == 3
    assert len(parsed) < 10


_NAMES = st.sampled_from(
    [
        DEFAULT,
        *(
            "10.0.0.1",
            "::ffff:10.0.0.1",
            "10.0.0.0/8",
            "10.0.0.0/255.0.0.0",
            "10.0.0.0/31",
            "0.0.0.0/0",
            "10.0.0.1/32",
        ),
        *(
            "2001:db8::1",
            "2001:DB8::1",
            "2001:db8::/32",
            "2001:DB8::/32",
            "2001:db8::/64",
            "::/0",
            "::ffff:10.0.0.0/104",
        ),
    ]
)
_CLIENTS = ("10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2", "11.0.0.1", "2001:db8::1", "2001:DB8:0:0:1::1", "::1")
_STEPS = st.one_of(
    st.tuples(st.just("put"), _NAMES, st.integers(1, 5)),
    st.tuples(st.just("remove"), _NAMES),
    st.tuples(st.just("observe"), st.frozensets(_NAMES, max_size=3)),
    st.tuples(st.just("mode"), st.sampled_from(Enforcement)),
    st.tuples(st.just("all"), st.dictionaries(st.just(DEFAULT) | st.just("10.0.0.0/8"), st.integers(1, 5))),
)


def _literally(limits: Limits, address: str, ipv6_prefix_bits: int) -> IpLimit:
    """What the first lines of `quotas.ip_limits` say, by a walk through everything that is set."""
    own = ipaddress.ip_address(normalise(address))
    best: tuple[tuple[int, bool, str], IpLimit] | None = None
    for entity, value in limits.entities(KEY) if limits.mode is not Enforcement.OFF else ():
        if entity.ip is DEFAULT:
            rank, right, name, counted_by = -1, True, "", normalise(address, ipv6_prefix_bits)
        elif "/" in str(entity.ip):
            block = ipaddress.ip_network(str(entity.ip))
            if own not in block:
                continue
            rank, name, counted_by = block.prefixlen, str(entity.ip), str(block)
            right = name == counted_by
        else:
            if normalise(str(entity.ip)) != str(own):
                continue
            rank, name, counted_by = 1_000, str(entity.ip), str(own)
            right = name == counted_by
        key = (-rank, not right, name)
        if best is None or key < best[0]:
            best = key, IpLimit(int(value), counted_by, limits.observes(entity))
    return IpLimit(UNLIMITED, normalise(address, ipv6_prefix_bits)) if best is None else best[1]


@given(st.lists(_STEPS, max_size=12), st.sampled_from([32, 64, 128]))
def test_an_address_has_what_a_walk_through_all_quotas_finds(steps: list[Any], ipv6_prefix_bits: int) -> None:
    limits = Limits()
    ip_limits = IpLimits(limits, ipv6_prefix_bits=ipv6_prefix_bits)
    for verb, *of in steps:
        match verb:
            case "put":
                limits.put(QuotaEntity(ip=of[0]), KEY, float(of[1]))
            case "remove":
                limits.remove(QuotaEntity(ip=of[0]), KEY)
            case "observe":
                limits.set_observed(QuotaEntity(ip=name) for name in of[0])
            case "mode":
                limits.set_mode(of[0])
            case _:
                limits.replace_all((QuotaEntity(ip=name), KEY, float(rate)) for name, rate in of[0].items())
        for client in _CLIENTS:
            assert ip_limits.limit(client) == _literally(limits, client, ipv6_prefix_bits)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("10.1.2.3", "10.1.2.250", True),
        ("10.1.2.3", "10.1.3.3", False),
        ("2001:db8:1:2::3", "2001:db8:1:ffff::", True),
        ("2001:db8:1::", "2001:db8:2::", False),
    ],
)
def test_addresses_of_one_network_are_of_one_kind(one: str, other: str, alike: bool) -> None:
    assert (network_of(one) == network_of(other)) is alike
