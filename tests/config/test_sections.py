"""What the sections make of valid values. What they refuse is in test_faults.py, their defaults in full.toml."""

from typing import Any

import pytest
from pydantic import ValidationError

from config.host_port import HostPort
from config.sections.connections import ConnectionSettings
from config.sections.limits import LimitSettings
from config.sections.listeners import ListenerSettings, ProxyProtocolSettings
from config.sections.quotas import CLIENT_KEYS, USER_KEYS, QuotaRule
from config.sections.upstream import UpstreamSasl
from config.security_protocol import SecurityProtocol
from quotas.entities import DEFAULT, GUARANTEE_KEYS, QuotaEntity, QuotaKey
from quotas.limits import validate

BIND = HostPort("127.0.0.1", 19092)


@pytest.mark.parametrize(
    ("name", "sasl", "tls"),
    [("PLAINTEXT", False, False), ("SASL_PLAINTEXT", True, False), ("SSL", False, True), ("SASL_SSL", True, True)],
)  # fmt: skip
def test_each_security_protocol_says_whether_it_has_sasl_and_tls(name: str, sasl: bool, tls: bool) -> None:
    assert (SecurityProtocol(name).sasl, SecurityProtocol(name).tls) == (sasl, tls)


def test_listener_advertises_its_bind_host_and_the_ports_after_its_own() -> None:
    listener = ListenerSettings(name="a", bind=BIND)
    assert listener.advertised_host == "127.0.0.1"
    assert (listener.first_broker_port, listener.last_broker_port) == (19093, 19192)
    assert ListenerSettings(name="a", bind=BIND, first_broker_port=65436).last_broker_port == 65535
    assert ListenerSettings(name="a", bind=HostPort("::", 1), advertised_host="gw").advertised_host == "gw"
    assert ListenerSettings(name="a", bind=HostPort("::1", 0), first_broker_port=7).first_broker_port == 7


@pytest.mark.parametrize(("bind", "keys"), [
    (BIND, {"first_broker_port": 65437}),
    (HostPort("127.0.0.1", 0), {}),
    (HostPort("127.0.0.1", 65535), {}),
    *(
        (HostPort(wild, 1), keys)
        for wild in ("0.0.0.0", "::")
        for keys in ({}, {"advertised_host": wild})
    ),
    *((BIND, {"advertised_host": host}) for host in ("", "a b", "gw:9092", "[::1]", "300.1.1.1")),
])  # fmt: skip
def test_listener_that_clients_could_not_reach_is_refused(bind: HostPort, keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ListenerSettings(name="a", bind=bind, **keys)


SNI = {"bootstrap_name": "kafka.test", "broker_name": "b{node}.kafka.test"}
TLS = {"security_protocol": "SSL", "tls": {"certificate": "c", "key": "k"}}


def named(bind: str = "0.0.0.0:9093", sni: dict[str, Any] | None = None, **keys: Any) -> ListenerSettings:
    return ListenerSettings.model_validate({"name": "a", "bind": bind, **TLS, "sni": SNI | (sni or {}), **keys})


def test_a_listener_whose_clients_name_brokers_has_one_port_and_needs_no_advertised_host() -> None:
    assert list(named().ports_of_brokers) == []
    assert list(named("0.0.0.0:65535").ports_of_brokers) == []
    assert list(ListenerSettings(name="a", bind=BIND, broker_ports=2).ports_of_brokers) == [19093, 19094]


@pytest.mark.parametrize(("bind", "sni", "keys", "path", "text"), [
    ("0.0.0.0:9093", {}, {"advertised_host": "gw"}, ("advertised_host",), "remove one of them"),
    ("0.0.0.0:9093", {}, {"broker_ports": 3}, ("broker_ports",), "remove one of them"),
    ("0.0.0.0:9093", {}, {"first_broker_port": 3}, ("first_broker_port",), "remove one of them"),
    ("0.0.0.0:9093", {}, {"lowest_broker_id": 1}, ("lowest_broker_id",), "remove one of them"),
    ("0.0.0.0:0", {}, {}, ("sni", "advertised_port"), "required, since bind leaves its port open"),
    ("0.0.0.0:9093", {}, {"security_protocol": "SASL_PLAINTEXT", "tls": None}, ("sni",), "set it to SASL_SSL"),
])  # fmt: skip
def test_names_of_brokers_have_no_second_meaning(
    bind: str, sni: dict[str, Any], keys: dict[str, Any], path: tuple[str, ...], text: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        named(bind, sni, **keys)
    ((found, why),) = caught.value.errors()[0]["ctx"]["faults"]
    assert found == path
    assert text in why


def test_the_bootstrap_name_is_no_brokers_name() -> None:
    with pytest.raises(ValidationError, match="contradictory"):
        named(sni={"bootstrap_name": "B7.kafka.test"})
    named(sni={"bootstrap_name": "b07.kafka.test"})


def test_trusted_load_balancers_have_one_name_and_trust_in_every_address_is_noticed() -> None:
    trusted = ["10.0.0.0/8", "::ffff:192.0.2.1", "2001:DB8::/32"]
    found = ProxyProtocolSettings.model_validate({"trusted": trusted}).trusted
    assert found == ("10.0.0.0/8", "192.0.2.1", "2001:db8::/32")
    for block, everything in {"0.0.0.0/0": True, "::/0": True, "0.0.0.0/1": False, "10.0.0.1": False}.items():
        assert ProxyProtocolSettings(trusted=("10.0.0.2", block)).trusts_all is everything


def test_overrides_are_by_the_one_name_of_each_address_and_0_lets_only_these_in() -> None:
    given = {
        "max_connections_per_ip": 0,
        "max_connections_per_ip_overrides": {"::ffff:10.0.0.1": 3, "2001:DB8::1": 0},
    }
    found = ConnectionSettings.model_validate(given)
    assert found.max_connections_per_ip == 0
    assert found.max_connections_per_ip_overrides == {"10.0.0.1": 3, "2001:db8::1": 0}


@pytest.mark.parametrize(("keys", "entity"), [
    ({"user": "a"}, QuotaEntity(user="a")), ({"default_user": True}, QuotaEntity(user=DEFAULT)),
    ({"user": "<default>"}, QuotaEntity(user="<default>")),
    ({"client_id": "c"}, QuotaEntity(client_id="c")),
    ({"default_client_id": True}, QuotaEntity(client_id=DEFAULT)),
    ({"user": "a", "client_id": "c"}, QuotaEntity(user="a", client_id="c")),
    ({"user": "a", "default_client_id": True}, QuotaEntity(user="a", client_id=DEFAULT)),
    ({"default_user": True, "client_id": "c"}, QuotaEntity(user=DEFAULT, client_id="c")),
    ({"default_user": True, "default_client_id": True}, QuotaEntity(user=DEFAULT, client_id=DEFAULT)),
    ({"ip": "10.0.0.1"}, QuotaEntity(ip="10.0.0.1")),
    ({"ip": "::ffff:10.0.0.1"}, QuotaEntity(ip="10.0.0.1")),
    ({"ip": "10.0.0.0/8"}, QuotaEntity(ip="10.0.0.0/8")),
    ({"ip": "2001:DB8::/32"}, QuotaEntity(ip="2001:db8::/32")),
    ({"default_ip": True}, QuotaEntity(ip=DEFAULT)),
])  # fmt: skip
def test_quota_is_of_each_level_a_literal_default_or_an_address(keys: dict[str, object], entity: QuotaEntity) -> None:
    key = QuotaKey.CONTROLLER_MUTATION_RATE if entity.ip is None else QuotaKey.CONNECTION_CREATION_RATE
    rule = QuotaRule.model_validate({**keys, key.value: 5})
    assert (rule.entity, rule.values()) == (entity, {key: 5.0})
    assert validate(entity, key, 5.0) is None


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf"), 10**400, "5", True])
def test_rate_is_a_finite_positive_number(rate: object) -> None:
    with pytest.raises(ValidationError):
        QuotaRule.model_validate({"user": "a", "controller_mutation_rate": rate})


@pytest.mark.parametrize("key", [key for key in CLIENT_KEYS if key.endswith("byte_rate")])
def test_byte_rates_are_the_whole_numbers_that_kafka_stores(key: QuotaKey) -> None:
    for good in (1, 2**63 - 1):
        rule = QuotaRule.model_validate({"user": "a", key.value: good})
        assert validate(QuotaEntity(user="a"), key, rule.values()[key]) is None
    for bad in (0, -1, 1.5, 2**63, True, "1", float("inf")):
        with pytest.raises(ValidationError):
            QuotaRule.model_validate({"user": "a", key.value: bad})


def test_quota_of_all_keys_keeps_each_value() -> None:
    given: dict[str, float] = {key.value: at for at, key in enumerate(USER_KEYS, start=1)}
    given |= {guarantee.value: given[rate.value] for rate, guarantee in GUARANTEE_KEYS.items()} | {"tier": 3}
    assert QuotaRule.model_validate({"user": "a", **given}).values() == given


def test_amounts_may_have_units_and_a_client_id_kafkas_spelling() -> None:
    rule = QuotaRule.model_validate(
        {"client-id": "app", "producer_byte_rate": "1.5MiB", "request_percentage": "250%",
         "controller_mutation_rate": "0.5/s", "consumer_byte_rate": 7}
    )  # fmt: skip
    assert rule.entity == QuotaEntity(client_id="app")
    assert rule.values() == {
        QuotaKey.PRODUCER_BYTE_RATE: 1_572_864.0, QuotaKey.REQUEST_PERCENTAGE: 250.0,
        QuotaKey.CONTROLLER_MUTATION_RATE: 0.5, QuotaKey.CONSUMER_BYTE_RATE: 7.0,
    }  # fmt: skip
    assert QuotaRule.model_validate(
        {"default-client-id": True, "user": "a", "producer_byte_rate": 1}
    ).entity == QuotaEntity(user="a", client_id=DEFAULT)
    limits = LimitSettings.model_validate({"max_frame_bytes": "10MB", "min_frame_bytes_per_s": "32KiB/s"})
    assert (limits.max_frame_bytes, limits.min_frame_bytes_per_s) == (10_000_000, 32_768)
    with pytest.raises(ValidationError, match="contradictory settings"):
        QuotaRule.model_validate({"client-id": "a", "client_id": "a", "producer_byte_rate": 1})


TOKENS = {
    "mechanism": "OAUTHBEARER",
    "token_endpoint": "https://login.example/token",
    "client_id": "gw",
    "client_secret_file": "/s",
}
PASSWORD = {"mechanism": "PLAIN", "username": "gw", "password_file": "/p"}


@pytest.mark.parametrize(
    ("sasl", "faults"),
    [
        (TOKENS, {}),
        (TOKENS | {"scope": "kafka", "token_endpoint_ca": "/ca"}, {}),
        ({"mechanism": "OAUTHBEARER", "token_file": "/t"}, {}),
        (PASSWORD, {}),
        ({"mechanism": "PLAIN"}, {"username": "required", "password_file": "required"}),
        (PASSWORD | {"token_file": "/t", "scope": "x"}, {"token_file": "without", "scope": "without"}),
        (
            TOKENS | {"token_file": "/t"},
            dict.fromkeys(("token_endpoint", "client_id", "client_secret_file"), "without"),
        ),
        (
            {"mechanism": "OAUTHBEARER", "client_id": "gw"},
            dict.fromkeys(("token_endpoint", "client_secret_file"), "req"),
        ),
        (TOKENS | {"username": "gw"}, {"username": "without"}),
    ],
)
def test_each_way_to_log_in_has_its_own_keys(sasl: dict[str, str], faults: dict[str, str]) -> None:
    if not faults:
        assert set(UpstreamSasl.model_validate(sasl).secret_files.values()) <= {"/s", "/t", "/p"}
        return
    with pytest.raises(ValidationError) as caught:
        UpstreamSasl.model_validate(sasl)
    (error,) = caught.value.errors()
    found = {key[0]: text for key, text in error["ctx"]["faults"]}
    assert found.keys() == faults.keys()
    assert all(found[key].startswith(text) for key, text in faults.items())


@pytest.mark.parametrize(
    "url",
    [
        "http://login.example/token",
        "https://",
        "https://gw:secret@login.example/token",
        "https://login.example/a b",
        "https://login.example/\r\nX: y",
        "https://login.example/#x",
        "https://login.example:99999/",
        "https://l\u00f6gin.example/",
        "file:///etc/passwd",
    ],
)
def test_token_endpoint_that_is_no_https_url_or_has_a_password_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="token_endpoint"):
        UpstreamSasl.model_validate(TOKENS | {"token_endpoint": url})
