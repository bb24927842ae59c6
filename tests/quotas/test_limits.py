import math

import pytest

from quotas.entities import DEFAULT, Family, QuotaEntity, QuotaKey
from quotas.limits import Enforcement, Limits, validate

PRODUCE = QuotaKey.PRODUCER_BYTE_RATE
MUTATION = QuotaKey.CONTROLLER_MUTATION_RATE
CONNECTION = QuotaKey.CONNECTION_CREATION_RATE
ALICE = QuotaEntity(user="alice")


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        (PRODUCE, 2.0**63, None),
        (PRODUCE, 2.0**64, "Proposed value for producer_byte_rate is too large for a LONG."),
        (PRODUCE, math.inf, "Quota producer_byte_rate must be a finite number"),
        (PRODUCE, 0.999999999, "producer_byte_rate cannot be a fractional value."),
        (PRODUCE, 1.0000001, None),
        (MUTATION, 5e-324, None),
        (MUTATION, 1.5, None),
        (MUTATION, math.nan, "Quota controller_mutation_rate must be a finite number"),
        (MUTATION, math.inf, "Quota controller_mutation_rate must be a finite number"),
        (MUTATION, -0.0, "Quota controller_mutation_rate must be greater than 0"),
        (MUTATION, -math.inf, "Quota controller_mutation_rate must be a finite number"),
    ],
)
def test_values_are_bounded_as_by_a_broker(key: QuotaKey, value: float, fault: str | None) -> None:
    assert validate(ALICE, key, value) == fault


@pytest.mark.parametrize(
    ("ip", "valid"),
    [
        ("1.2.3.4", True),
        ("::1", True),
        ("10.0.0.0/8", True),
        ("10.0.0.1/8", False),
        ("fe80::1%lo", True),
        ("0x7f.1", False),
        ("RFC2606.invalid", False),
        ("1.2.3.4:80", False),
        (" 1.2.3.4", False),
        ("256.1.1.1", False),
    ],
)
def test_an_address_entity_is_an_address_or_a_block(ip: str, valid: bool) -> None:
    fault = validate(QuotaEntity(ip=ip), CONNECTION, 1)
    assert fault == (None if valid else f"{ip} is not a valid IP or resolvable host.")


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST", "broker-1.example", "a", "127.0.0.1.nip"])
def test_a_host_name_is_refused_as_such(name: str) -> None:
    assert validate(QuotaEntity(ip=name), CONNECTION, 1) == (
        f"{name} is a host name, which is not looked up here; give its address."
    )


def test_names_are_bounded_by_what_can_be_sent() -> None:
    assert validate(QuotaEntity(user=""), PRODUCE, 1) == "Empty user not supported"
    assert validate(QuotaEntity(client_id=""), PRODUCE, 1) == "Empty client-id not supported"
    # JSON can hold one, and nothing that lists it could be sent.
    assert validate(QuotaEntity(client_id="a\udc80"), PRODUCE, 1.0) == "The client-id is no valid text"
    assert validate(QuotaEntity(user="\U0001f600\ue000é"), PRODUCE, 1.0) is None
    fault = "Proposed value for connection_creation_rate is too large for an INT."
    assert validate(QuotaEntity(ip=DEFAULT), CONNECTION, 2.0**31) == fault
    assert validate(QuotaEntity(ip=DEFAULT), CONNECTION, 2.0**31 - 1) is None


def test_version_grows_with_changes_and_only_with_changes() -> None:
    limits = Limits()
    seen = [limits.version]
    for change in (
        lambda: limits.set(ALICE, PRODUCE, 10),
        lambda: limits.set(ALICE, PRODUCE, 20),
        lambda: limits.remove(ALICE, PRODUCE),
    ):
        change()
        assert limits.version > seen[-1]
        seen.append(limits.version)
    assert limits.remove(ALICE, PRODUCE) is False
    limits.set(ALICE, MUTATION, 1)
    version = limits.version
    limits.set(ALICE, MUTATION, 1)
    assert limits.version == version


def test_families_come_and_go_with_their_quotas_and_keys_are_independent() -> None:
    limits = Limits()
    pair = QuotaEntity(user="alice", client_id="c")
    limits.set(ALICE, PRODUCE, 10)
    limits.set(ALICE, PRODUCE, 20)
    limits.set(pair, PRODUCE, 30)
    assert limits.families(PRODUCE) == {Family.USER, Family.USER_CLIENT}
    assert limits.remove(ALICE, PRODUCE)
    assert not limits.remove(ALICE, PRODUCE)
    assert limits.sole_family(PRODUCE) is Family.USER_CLIENT
    limits.remove(pair, PRODUCE)
    assert not limits.enabled(PRODUCE)
    assert limits.sole_family(PRODUCE) is None
    limits = Limits()
    limits.set(ALICE, PRODUCE, 10)
    assert limits.get(ALICE, MUTATION) is None
    assert not limits.enabled(MUTATION)


def test_reload_replaces_the_whole_set_at_once_or_with_a_fault_nothing() -> None:
    limits = Limits()
    limits.set(ALICE, PRODUCE, 10)
    version = limits.version
    assert limits.replace_all([(QuotaEntity(client_id="c"), MUTATION, 2.0)])
    assert list(limits.items()) == [(QuotaEntity(client_id="c"), MUTATION, 2.0)]
    assert limits.families(PRODUCE) == frozenset()
    assert limits.families(MUTATION) == {Family.CLIENT}
    assert limits.version > version
    limits = Limits()
    limits.set(ALICE, PRODUCE, 10)
    version = limits.version
    assert not limits.replace_all(list(limits.items()))
    assert limits.version == version
    limits = Limits()
    limits.set(ALICE, PRODUCE, 10)
    version = limits.version
    with pytest.raises(ValueError, match="user=bob: Quota producer_byte_rate must be greater than 0"):
        limits.replace_all([(ALICE, PRODUCE, 20.0), (QuotaEntity(user="bob"), PRODUCE, 0.0)])
    assert limits.get(ALICE, PRODUCE) == 10
    assert limits.version == version
    limits = Limits()
    with pytest.raises(ValueError, match="fractional"):
        limits.set(ALICE, PRODUCE, 1.5)
    assert not limits.enabled(PRODUCE)


def test_what_is_only_watched_is_part_of_the_version() -> None:
    limits = Limits()
    version = limits.version
    limits.set_observed([ALICE])
    assert limits.version > version
    assert limits.observes(ALICE)
    assert not limits.observes(None)
    version = limits.version
    limits.set_observed([ALICE])
    assert limits.version == version
    limits.set_mode(Enforcement.OBSERVE)
    assert limits.version > version
    assert limits.observes(None)
    assert limits.observes(QuotaEntity(user="bob"))


def test_a_snapshot_stays_and_switched_off_quotas_are_still_listed() -> None:
    limits = Limits()
    limits.set(ALICE, PRODUCE, 5)
    version = limits.version
    limits.set_mode(Enforcement.OFF)
    assert limits.version > version
    assert not limits.enabled(PRODUCE)
    assert list(limits.items()) == [(ALICE, PRODUCE, 5)]
    limits.set(ALICE, PRODUCE, 7)
    limits.set_mode(Enforcement.ENFORCE)
    assert limits.enabled(PRODUCE)
    assert limits.get(ALICE, PRODUCE) == 7
    limits = Limits()
    limits.set(QuotaEntity(user="a"), PRODUCE, 5)
    snapshot = limits.snapshot()
    assert limits.count == 1
    limits.set(QuotaEntity(user="b"), PRODUCE, 6)
    assert snapshot[PRODUCE] == {QuotaEntity(user="a"): 5}
    assert limits.count == 2
