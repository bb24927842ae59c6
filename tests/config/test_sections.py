from __future__ import annotations

import pytest
from pydantic import ValidationError

from config.address import HostPort
from config.sections import (
    CLIENT_KEYS,
    ENFORCED_KEYS,
    LimitSettings,
    ListenerSettings,
    MutationQuotaSettings,
    QuotaRule,
    UpstreamSettings,
)
from gateway.session.settings import SessionSettings
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import validate


def test_limits_make_session_settings() -> None:
    limits = LimitSettings(max_frame_bytes=2048).model_dump()
    assert SessionSettings(**limits, failed_authentication_delay_ms=0).max_frame_bytes == 2048


def test_listener_advertises_its_bind_host_and_the_ports_after_its_own() -> None:
    listener = ListenerSettings(name="a", bind=HostPort("127.0.0.1", 19092))
    assert listener.advertised_host == "127.0.0.1"
    assert (listener.first_broker_port, listener.last_broker_port) == (19093, 19192)


def test_broker_range_may_end_at_the_last_port_and_not_after_it() -> None:
    bind = HostPort("127.0.0.1", 19092)
    assert ListenerSettings(name="a", bind=bind, first_broker_port=65436).last_broker_port == 65535
    with pytest.raises(ValidationError):
        ListenerSettings(name="a", bind=bind, first_broker_port=65437)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_wildcard_bind_needs_an_advertised_host(host: str) -> None:
    bind = HostPort(host, 19092)
    assert ListenerSettings(name="a", bind=bind, advertised_host="gw").advertised_host == "gw"
    for advertised in ({}, {"advertised_host": "0.0.0.0"}, {"advertised_host": "::"}):
        with pytest.raises(ValidationError):
            ListenerSettings(name="a", bind=bind, **advertised)


@pytest.mark.parametrize("host", ["", "a b", "gw:9092", "[::1]", "300.1.1.1"])
def test_advertised_host_is_a_bare_host(host: str) -> None:
    with pytest.raises(ValidationError):
        ListenerSettings(name="a", bind=HostPort("127.0.0.1", 1), advertised_host=host)


def test_free_bootstrap_port_needs_a_first_broker_port() -> None:
    bind = HostPort("127.0.0.1", 0)
    assert ListenerSettings(name="a", bind=bind, first_broker_port=7000).first_broker_port == 7000
    with pytest.raises(ValidationError):
        ListenerSettings(name="a", bind=bind)


def test_toml_types_are_not_converted() -> None:
    bootstrap = (HostPort("k", 1),)
    for wrong in ("5000", True, 5000.0):
        with pytest.raises(ValidationError):
            UpstreamSettings.model_validate({"bootstrap": bootstrap, "connect_timeout_ms": wrong})


def test_sections_never_change() -> None:
    with pytest.raises(ValidationError):
        MutationQuotaSettings().window_num = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("keys", "entity"),
    [
        ({"user": "a"}, QuotaEntity(user="a")),
        ({"default_user": True}, QuotaEntity(user=DEFAULT)),
        ({"user": "<default>"}, QuotaEntity(user="<default>")),
        ({"client_id": "c"}, QuotaEntity(client_id="c")),
        ({"default_client_id": True}, QuotaEntity(client_id=DEFAULT)),
        ({"user": "a", "client_id": "c"}, QuotaEntity(user="a", client_id="c")),
        ({"user": "a", "default_client_id": True}, QuotaEntity(user="a", client_id=DEFAULT)),
        ({"default_user": True, "client_id": "c"}, QuotaEntity(user=DEFAULT, client_id="c")),
        ({"default_user": True, "default_client_id": True}, QuotaEntity(user=DEFAULT, client_id=DEFAULT)),
    ],
)
def test_quota_names_each_of_the_eight_levels_and_a_literal_default(
    keys: dict[str, object], entity: QuotaEntity
) -> None:
    rule = QuotaRule.model_validate({**keys, "controller_mutation_rate": 5})
    assert rule.entity == entity
    assert rule.values() == {QuotaKey.CONTROLLER_MUTATION_RATE: 5.0}


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf"), 10**400, "5", True])
def test_rate_is_a_finite_positive_number(rate: object) -> None:
    with pytest.raises(ValidationError):
        QuotaRule.model_validate({"user": "a", "controller_mutation_rate": rate})


def test_every_key_of_kafka_is_enforced() -> None:
    assert set(ENFORCED_KEYS) == set(QuotaKey)
    assert set(QuotaKey) - set(CLIENT_KEYS) == {QuotaKey.CONNECTION_CREATION_RATE}


@pytest.mark.parametrize(
    ("keys", "entity"),
    [
        ({"ip": "10.0.0.1"}, QuotaEntity(ip="10.0.0.1")),
        ({"ip": "::ffff:10.0.0.1"}, QuotaEntity(ip="10.0.0.1")),
        ({"ip": "10.0.0.0/8"}, QuotaEntity(ip="10.0.0.0/8")),
        ({"ip": "2001:DB8::/32"}, QuotaEntity(ip="2001:db8::/32")),
        ({"default_ip": True}, QuotaEntity(ip=DEFAULT)),
    ],
)
def test_addresses_have_a_connection_rate(keys: dict[str, object], entity: QuotaEntity) -> None:
    rule = QuotaRule.model_validate({**keys, "connection_creation_rate": 5})
    assert rule.entity == entity
    assert rule.values() == {QuotaKey.CONNECTION_CREATION_RATE: 5.0}
    assert validate(entity, QuotaKey.CONNECTION_CREATION_RATE, 5.0) is None


@pytest.mark.parametrize("key", [key for key in CLIENT_KEYS if key.endswith("byte_rate")])
def test_byte_rates_are_the_whole_numbers_that_kafka_stores(key: QuotaKey) -> None:
    entity = QuotaEntity(user="a")
    for good in (1, 2**63 - 1):
        rule = QuotaRule.model_validate({"user": "a", key.value: good})
        assert validate(entity, key, rule.values()[key]) is None
    for bad in (0, -1, 1.5, 2**63, True, "1", float("inf")):
        with pytest.raises(ValidationError):
            QuotaRule.model_validate({"user": "a", key.value: bad})


def test_quota_of_all_keys_keeps_each_value() -> None:
    given: dict[str, float] = {key.value: at for at, key in enumerate(CLIENT_KEYS, start=1)}
    rule = QuotaRule.model_validate({"user": "a", **given})
    assert rule.values() == given
    assert not rule.observe
