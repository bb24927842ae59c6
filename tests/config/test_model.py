import re
from dataclasses import asdict

import pytest
from pydantic import ValidationError

import config
from config.host_port import HostPort
from config.model import Config
from config.sections.quota_admin import Authorize, LimitsBy
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Enforcement
from quotas.mutation_meters import MutationAlgorithm
from quotas.mutations import ValidateOnly

HEAD = '[upstream]\nbootstrap = ["127.0.0.1:9092"]\n'
LISTENER = '[[listeners]]\nname = "a"\nbind = "127.0.0.1:19092"\n'


def read(text: str) -> Config:
    return config.parse(text, name="f")


def faults(text: str) -> list[str]:
    with pytest.raises(config.ConfigError) as caught:
        read(text)
    return [re.sub(r"^f:(\d+:)? ", "", line) for line in caught.value.lines]


def quota(keys: str) -> str:
    return f"[[quotas]]\n{keys}\n"


def test_quotas_become_limits_and_their_settings_carry_every_key() -> None:
    limits = read(
        f"{HEAD}{LISTENER}[client_ids]\nempty = 'as_named'\n[enforcement]\nmode = 'off'\n"
        + quota("user = 'alice'\ndefault_client_id = true\nobserve = true\ncontroller_mutation_rate = 2.5")
        + quota("client_id = '<default>'\ncontroller_mutation_rate = 4")
    ).quota_limits()
    alice, literal = QuotaEntity(user="alice", client_id=DEFAULT), QuotaEntity(client_id="<default>")
    assert list(limits.items()) == [
        (alice, QuotaKey.CONTROLLER_MUTATION_RATE, 2.5),
        (literal, QuotaKey.CONTROLLER_MUTATION_RATE, 4.0),
    ]
    assert (limits.empty_client_id, limits.mode) == ("as_named", Enforcement.OFF)
    assert (limits.observes(alice), limits.observes(literal)) == (True, False)
    window = "window_num = 3\nwindow_size_seconds = 2\nmax_trackers = 5\nidle_expiry_ms = 7\n"
    mutation = f'[mutation_quota]\nalgorithm = "spread_rate"\nvalidate_only = "kraft"\n{window}'
    found = read(f"{HEAD}{LISTENER}[client_quota]\n{window}{mutation}")
    settings = {"window_num": 3, "window_ms": 2000, "max_trackers": 5, "idle_expiry_ms": 7}
    assert asdict(found.rate_settings()) == settings
    more = {"algorithm": MutationAlgorithm.SPREAD_RATE, "validate_only": ValidateOnly.KRAFT}
    assert asdict(found.mutation_settings()) == settings | more


def test_a_listener_whose_clients_name_brokers_claims_one_port() -> None:
    tls = 'security_protocol = "SSL"\n[listeners.tls]\ncertificate = "c"\nkey = "k"\n'
    certificates = '[[listeners.tls.certificates]]\ncertificate = "c2"\nkey = "k2"\nkey_password_file = "p2"\n'
    sni = '[listeners.sni]\nbootstrap_name = "k.test"\nbroker_name = "b{node}.k.test"\n'
    after = '[[listeners]]\nname = "b"\nbind = "127.0.0.1:19093"\n'
    found = read(HEAD + LISTENER + tls + certificates + sni + after)
    assert found.private_files() == [
        ("listeners.a.tls.key", "k"),
        ("listeners.a.tls.certificates.0.key", "k2"),
        ("listeners.a.tls.certificates.0.key_password_file", "p2"),
    ]
    assert faults(HEAD + LISTENER + after) == [
        "listeners.b.bind: 127.0.0.1:19093 overlaps listeners.a.first_broker_port 127.0.0.1:19093..19192",
        "listeners.b.first_broker_port: 127.0.0.1:19094..19193 overlaps listeners.a.first_broker_port "
        "127.0.0.1:19093..19192",
    ]


def test_entity_is_observed_in_all_its_entries_or_in_none() -> None:
    first = quota("user = 'a'\nobserve = true\nproducer_byte_rate = 1")
    second = quota("user = 'a'\nconsumer_byte_rate = 1")
    assert faults(HEAD + LISTENER + first + second) == [
        'quotas.1.observe (user="a"): user=a says otherwise in quotas.0'
    ]
    read(HEAD + LISTENER + first + second + "observe = true\n")


@pytest.mark.parametrize(("bind", "overlap"), [
    ("127.0.0.1:19092", True),  # the same bootstrap port
    ("127.0.0.1:19192", True),  # in the first one's broker range
    ("127.0.0.1:19193", False),
    ("127.0.0.1:18992", True),  # its broker range reaches the first one's bootstrap port
    ("127.0.0.1:18991", False),
    ("0.0.0.0:19092", True),
    ("[::]:19092", True),
    ("127.0.0.2:19092", False),
    ("127.0.0.1:9644", True),  # the admin port
    ("127.0.0.1:9600", True),
])  # fmt: skip
def test_ports_of_listeners_and_of_the_admin_port_do_not_overlap(bind: str, overlap: bool) -> None:
    second = f'[[listeners]]\nname = "b"\nbind = "{bind}"\nadvertised_host = "gw"\n'
    if overlap:
        assert any(" overlaps " in line for line in faults(HEAD + LISTENER + second))
    else:
        read(HEAD + LISTENER + second)


@pytest.mark.parametrize(("bind", "upstream", "key"), [
    ("127.0.0.1:19092", "127.0.0.1:19092", "bind"),
    ("127.0.0.1:19092", "127.0.0.1:19100", "first_broker_port"),
    ("127.0.0.1:19092", "localhost:19092", "bind"), ("127.0.0.1:19092", "127.0.0.1:9092", None),
    ("127.0.0.1:19092", "kafka:19092", None), ("0.0.0.0:9092", "127.0.0.1:9092", "bind"),
    ("0.0.0.0:9092", "kafka:9092", None),
])  # fmt: skip
def test_gateway_is_not_its_own_upstream(bind: str, upstream: str, key: str | None) -> None:
    listener = f'[[listeners]]\nname = "a"\nbind = "{bind}"\nadvertised_host = "gw"\n'
    text = f'[upstream]\nbootstrap = ["{upstream}"]\n{listener}'
    if key is None:
        read(text)
    else:
        assert faults(text) == [f'upstream.bootstrap.0: "{upstream}" is the gateway itself (listeners.a.{key})']


def test_other_upstream_changes_nothing_else_and_is_checked() -> None:
    before = read(HEAD + LISTENER + "[drain]\ntimeout_ms = 5\n")
    after = before.with_upstream((HostPort("k", 1),))
    assert after.upstream.bootstrap == (HostPort("k", 1),)
    assert after.with_upstream(before.upstream.bootstrap) == before
    with pytest.raises(ValidationError):
        before.with_upstream((HostPort("127.0.0.1", 19092),))


@pytest.mark.parametrize(("more", "line"), [
    ('[[listeners]]\nname = "a"\nbind = "127.0.0.2:19092"',
     'listeners.1.name: "a" is the name of listeners.0 too'),
    ("first_broker_port = 19000",
     "listeners.a.first_broker_port: 127.0.0.1:19000..19099 overlaps listeners.a.bind 127.0.0.1:19092"),
    (quota("user = 'a'\ncontroller_mutation_rate = 1") * 2,
     'quotas.1.controller_mutation_rate (user="a"): user=a has this quota from quotas.0 already'),
    (quota("ip = '10.0.0.1'\nconnection_creation_rate = 1")
     + quota("ip = '::ffff:10.0.0.1'\nconnection_creation_rate = 1"),
     'quotas.1.connection_creation_rate (ip="::ffff:10.0.0.1"): ip=10.0.0.1 has this quota from quotas.0 already'),
    ('protected = true\n[[listeners]]\nname = "b"\nbind = "127.0.0.1:29092"\nprotected = true',
     "listeners.b.protected: listeners.a is; only one can be"),
    ('upstream = "inner"', 'listeners.a.upstream: "inner" is not in [[upstreams]], which has none'),
    ('[[upstreams]]\nname = "x"\nbootstrap = ["k:1"]\n' * 2,
     'upstreams.1.name: "x" is the name of upstreams.0 too'),
    ('[[upstreams]]\nname = "upstream"\nbootstrap = ["k:1"]',
     'upstreams.upstream.name: "upstream" is the name of upstream too'),
    ('[quota_store]\nkind = "topic"\ntopic = "t"\n[usage]\nkind = "topic"\ntopic = "t"',
     'usage.topic: "t" is that of quota_store too'),
    ('[[upstreams]]\nname = "x"\nbootstrap = ["127.0.0.1:19092"]',
     'upstreams.x.bootstrap.0: "127.0.0.1:19092" is the gateway itself (listeners.a.bind)'),
    ('[overload]\nmode = "observe"',
     'overload.mode: needs [capacity]: it is a part of that which slow brokers can take'),
])  # fmt: skip
def test_contradiction_between_sections_is_one_line(more: str, line: str) -> None:
    assert faults(HEAD + LISTENER + more) == [line]


@pytest.mark.parametrize("section", ["quota_store", "usage"])
def test_own_topics_can_not_be_behind_a_proxy_that_wants_headers(section: str) -> None:
    text = f'{HEAD}send_proxy_protocol = "v2"\n{LISTENER}[{section}]\nkind = "topic"\n'
    assert faults(text) == [
        f'upstream.send_proxy_protocol: {section}.kind = "topic" needs a client that sends no headers; '
        "give another kind"
    ]


def test_listeners_may_lead_to_another_upstream_and_free_ports_never_overlap() -> None:
    found = read(f'{HEAD}{LISTENER}upstream = "x"\n[[upstreams]]\nname = "x"\nbootstrap = ["k:1"]\n')
    assert found.upstream_of(found.listeners[0]) is found.upstreams[0]
    listeners = "".join(
        f'[[listeners]]\nname = "{name}"\nbind = "127.0.0.1:0"\nfirst_broker_port = {port}\n'
        for name, port in (("a", 20000), ("b", 20100))
    )
    read(HEAD + listeners + '[admin]\nbind = "127.0.0.1:0"\n')


@pytest.mark.parametrize("version", ["none", "v1", "v2"])
def test_headers_are_sent_to_brokers_only_when_asked_for(version: str) -> None:
    assert read(f'{HEAD}send_proxy_protocol = "{version}"\n{LISTENER}').upstream.send_proxy_protocol == version
    assert read(HEAD + LISTENER).upstream.send_proxy_protocol == "none"


def test_g14_no_client_may_change_quotas_by_default_and_admins_are_named_by_principals() -> None:
    found = read(HEAD + LISTENER).quota_admin
    assert (found.authorize, found.admins, found.broker_limits) == (Authorize.DENY, (), LimitsBy.GATEWAY)
    named = read(f'{HEAD}{LISTENER}[quota_admin]\nadmins = ["User:alice", "User:CN=x,O=y"]\n').quota_admin
    assert named.admin_names() == {"alice", "CN=x,O=y"}
