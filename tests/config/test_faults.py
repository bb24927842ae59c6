"""Each fault is one line that names key path, value, and what would be allowed."""

import re
from collections.abc import Iterator
from typing import cast, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

import config
from config.faults import lines, value_text
from config.sections.quotas import CLIENT_KEYS, USER_KEYS
from config.security_protocol import SecurityProtocol, useless_faults
from config.value_hints import number_hint

GOOD = {"upstream": 'bootstrap = ["127.0.0.1:9092"]', "[listeners]": 'name = "a"\nbind = "127.0.0.1:19092"'}


def faults(**changed: str) -> list[str]:
    """The faults of a good file with sections added or replaced; ``array_of`` names stand for [[...]]."""
    sections = GOOD | {name.replace("array_of_", "[") + "]" * name.startswith("array_of_"): body
                       for name, body in changed.items()}  # fmt: skip
    text = "".join(f"[{name}]\n{body}\n" for name, body in sections.items())
    with pytest.raises(config.ConfigError) as caught:
        config.parse(text, name="sluice.toml")
    assert all(re.match(r"sluice\.toml:(\d+:)? .*\Z", line) for line in caught.value.lines)
    return [re.sub(r"sluice\.toml:(\d+:)? ", "", line, count=1) for line in caught.value.lines]


@pytest.mark.parametrize(("section", "body", "line"), [
    ("array_of_listeners", GOOD["[listeners]"] + "\nfirst_broker_port = 70000",
     "listeners.a.first_broker_port: 70000 is not in 1..65535"),
    ("limits", 'max_frame_bytes = "1"',
     'limits.max_frame_bytes: "1" is not a whole number in 1024..2147483647; write 1, without quotes'),
    ("limits", "idle_timeout_ms = true", "limits.idle_timeout_ms: true is not a whole number in 1..2147483647"),
    ("limits", "max_frame_byte = 1", "limits.max_frame_byte: unknown key; did you mean max_frame_bytes?"),
    ("server", "workers = 0", 'server.workers: 0 is not a whole number in 1..64 or "auto"'),
    ("server", 'workers = "four"', 'server.workers: "four" is not a whole number in 1..64 or "auto"'),
    ("drain", "qqq = 1", "drain.qqq: unknown key; known keys: timeout_ms"),
    ("drain", '"\\u001b[31m\\n" = 1', 'drain."\\u001b[31m\\n": unknown key; known keys: timeout_ms'),
    ("log", 'level = "trace"', 'log.level: "trace" is not one of "debug", "info", "warning", "error"'),
    ("mutation_quota", 'algorithm = "x"',
     'mutation_quota.algorithm: "x" is not one of "token_bucket", "rate", "spread_rate"'),
    ("admin", 'allowed_hosts = ["a*b"]',
     'admin.allowed_hosts.0: "a*b" must be a host name, without a port; *. before it stands for all names below it'),
    ("admin", 'tls = { certificate = "c", key = "k", certificates = [{ certificate = "d", key = "l" }] }',
     "admin.tls.certificates: the admin port has one certificate, for all its names"),
    ("array_of_admin.keys", 'name = "k"\nroles = ["read"]',
     "admin.keys.0: needs one of token_file, token, certificate"),
    ("array_of_admin.keys", 'name = "k"\nroles = ["read"]\ntoken = "a secret"\ntoken_file = "f"',
     "admin.keys.0: needs one of token_file, token, certificate, and has token_file and token"),
    ("array_of_admin.keys", 'name = "k"\nroles = ["write"]\ntoken_file = "f"',
     'admin.keys.0.roles.0: the value is not one of "read", "operate", "quotas"'),
    ("array_of_admin.keys", 'name = "k"\nroles = []\ntoken_file = "f"',
     "admin.keys.0.roles: the value is not an array with at least one item"),
    ("array_of_admin.keys", 'name = "k"\nroles = "a secret"\ntoken_file = "f"',
     "admin.keys.0.roles: the value is not an array with at least one item"),
    ("admin", 'keys = "a secret"', "admin.keys: the value is not an array"),
    ("admin", 'keys = ["a secret"]', "admin.keys.0: the value is not a table"),
    ("array_of_admin.keys", 'name = "a\\nb"\nroles = ["read"]\ntoken_file = "f"',
     'admin.keys.0.name: the value is not a string that matches ^[A-Za-z0-9_.-]{1,64}$'),
    ("array_of_admin.keys", 'name = "k"\nroles = ["read"]\ntoken = 12345',
     "admin.keys.0.token: the value is not a string"),
    ("array_of_admin.keys", 'name = "k"\nroles = ["read"]\ncertificate = "CN=a"',
     'admin.keys.0.certificate: needs [admin.tls] with client_auth = "requested" or "required", and client_ca'),
    ("admin", 'tls = { certificate = "c", key = "k", client_ca = "a", client_auth = "required" }\n'
     'keys = [{ name = "a", roles = ["read"], certificate = "CN=a" },'
     ' { name = "b", roles = ["operate"], certificate = "CN=a" }]',
     "admin.keys.1.certificate: is the certificate of admin.keys.0 too"),
    ("array_of_admin.keys",
     'name = "k"\nroles = ["read"]\ntoken_file = "f"\n[[admin.keys]]\nname = "k"\nroles = ["read"]\ntoken_file = "g"',
     'admin.keys.1.name: "k" is the name of admin.keys.0 too'),
    ("upstream", "bootstrap = []", "upstream.bootstrap: an empty array is not an array with at least one item"),
    ("upstream", 'bootstrap = "k:1"', 'upstream.bootstrap: "k:1" is not an array with at least one item'),
    ("upstream", 'bootstrap = ["k"]',
     'upstream.bootstrap.0: "k" is not host:port with a port in 1..65535'),
    ("upstream", "", "upstream.bootstrap: required, but missing"),
    ("array_of_quotas", 'client_id = "a"\nconnection_creation_rate = 1\ncontroller_mutation_rate = 1',
     'quotas.0.connection_creation_rate (client_id="a"): client ids have no such quota; give '
     + " or ".join(CLIENT_KEYS)),
    ("array_of_quotas", 'default_ip = true\nproducer_byte_rate = 1',
     "quotas.0.producer_byte_rate (default_ip=true): addresses have no such quota; give connection_creation_rate"),
    ("array_of_quotas", "default_ip = true",
     "quotas.0 (default_ip=true): limits nothing; give connection_creation_rate"),
    ("array_of_quotas", 'ip = "1.2.3.4"\ndefault_ip = true\nconnection_creation_rate = 1',
     "quotas.0.ip (default_ip=true): give ip or default_ip, not both"),
    ("array_of_quotas", 'ip = "1.2.3.4"\nuser = "a"\nconnection_creation_rate = 1',
     'quotas.0 (user="a", ip="1.2.3.4"): an address cannot be combined with a user, a client id or a topic'),
    ("array_of_quotas", 'ip = "10.0.0.1/8"\nconnection_creation_rate = 1',
     'quotas.0.ip: "10.0.0.1/8" is not a block such as 10.0.0.0/8, with nothing set behind its length'),
    ("array_of_quotas", 'ip = "localhost"\nconnection_creation_rate = 1',
     'quotas.0.ip: "localhost" is not an IP address or a block such as 10.0.0.0/8'),
    ("array_of_quotas", "default_ip = true\nconnection_creation_rate = 0.5",
     "quotas.0.connection_creation_rate (default_ip=true): 0.5 is not a whole number in 1..2147483647"),
    ("connections", 'max_connections_per_ip_overrides = {"10.0.0." = 1}',
     'connections.max_connections_per_ip_overrides."10.0.0.": "10.0.0." is not an IP address'),
    ("connections", 'max_connections_per_ip_overrides = {"2001:db8::1" = 1, "2001:DB8:0::1" = 2, "10.1" = 3}',
     'connections.max_connections_per_ip_overrides."2001:DB8:0::1": is the same address as "2001:db8::1"'),
    ("array_of_quotas", 'ip = "2001:db8::1"\nconnection_creation_rate = 1\n[[quotas]]\nip = "[2001:DB8:0::1%1]"\n'
     "connection_creation_rate = 2",
     'quotas.1.connection_creation_rate (ip="[2001:DB8:0::1%1]"): ip=2001:db8::1 has this quota from quotas.0 '
     'already'),
    ("connections", 'max_connections_per_ip_overrides = {"10.0.0.1" = "a"}',
     'connections.max_connections_per_ip_overrides."10.0.0.1": "a" is not a whole number in 0..2147483647'),
    ("connections", "max_connections = 0", "connections.max_connections: 0 is not in 1..2147483647"),
    ("connections", 'after_hold = "open"', 'connections.after_hold: "open" is not one of "close", "recheck"'),
    ("array_of_quotas", 'user = "a"\nproducer_byte_rate = 1.5',
     'quotas.0.producer_byte_rate (user="a"): 1.5 is not a whole number in 1..9223372036854775807'),
    ("array_of_quotas", 'user = "a"\nrequest_percentage = nan',
     'quotas.0.request_percentage (user="a"): nan is not a finite number > 0'),
    ("enforcement", 'mode = "on"',
     'enforcement.mode: "on" is not one of "enforce", "observe", "off"'),
    ("client_quota", 'scope = "cluster"',
     'client_quota.scope: "cluster" is not one of "fleet", "gateway", "broker"'),
    ("array_of_quotas", 'user = "a"\ncontroller_mutation_rate = -1',
     'quotas.0.controller_mutation_rate (user="a"): -1 is not a finite number > 0; '
     "to set no quota, leave the key out"),
    ("array_of_quotas", 'user = ""\ncontroller_mutation_rate = 1',
     'quotas.0.user: "" is not a string of at least one character'),
    ("array_of_quotas", 'user = "a"\ndefault_user = true\ncontroller_mutation_rate = 1',
     "quotas.0.user (default_user=true): give user or default_user, not both"),
    ("array_of_quotas", 'default_user = "yes"\ncontroller_mutation_rate = 1',
     'quotas.0.default_user: "yes" is not true or false'),
    ("array_of_quotas", "controller_mutation_rate = 1",
     "quotas.0: names no entity; give user, default_user, client_id, default_client_id, ip, default_ip, "
     "topic, default_topic or group"),
    ("array_of_quotas", 'user = "a"',
     'quotas.0 (user="a"): limits nothing; give ' + " or ".join(USER_KEYS)),
    ("array_of_quotas", 'user = "a"\nconnection_count = 0',
     'quotas.0.connection_count (user="a"): 0 is not in 1..2147483647; to set no quota, leave the key out'),
    ("array_of_quotas", 'group = "a b"\nproducer_byte_rate = 1',
     'quotas.0.group: a b is not a valid name of a group: letters, digits, dot, _ and -, at most 100'),
    ("array_of_quotas", 'group = "g"\nuser = "a"\nproducer_byte_rate = 1',
     'quotas.0 (user="a", group="g"): a group cannot be combined with anything'),
    ("array_of_quotas", 'group = "g"\nconnection_creation_rate = 1',
     'quotas.0.connection_creation_rate (group="g"): groups have no such quota; give producer_byte_rate or '
     "consumer_byte_rate or request_percentage or controller_mutation_rate or producer_byte_burst_seconds or "
     "consumer_byte_burst_seconds"),
    ("array_of_quotas", 'group = "g"\nproducer_byte_rate = 1\nweight = 2',
     'quotas.0.weight (group="g"): groups have no such quota; give producer_byte_rate or consumer_byte_rate or '
     "request_percentage or controller_mutation_rate or producer_byte_burst_seconds or "
     "consumer_byte_burst_seconds"),
    ("array_of_groups", 'name = "g"', "groups.0: has no members; give users, client_ids or addresses"),
    ("array_of_groups", 'name = "g"\nusers = ["a", "*"]',
     "groups.0.users.1: would be all clients; give the beginning of a name before the star"),
    ("array_of_groups", 'name = "g"\naddresses = ["host"]',
     'groups.0.addresses.0: "host" is not an IP address or a block such as 10.0.0.0/8'),
    ("usage", 'kind = "files"', "usage.directory: required, since kind is files"),
    ("usage", 'kind = "topic"\nprivacy = "hashed"',
     "usage.salt_file: required, since names are hashed and there is no directory"),
    ("usage", "topic_partitions = 0",
     "usage.topic_partitions: 0 is no number of partitions; -1 is the brokers' default"),
    ("usage", "topic_replication_factor = 0",
     "usage.topic_replication_factor: 0 is no number of replicas; -1 is the default"),
    ("fleet", "heartbeat_ms = 100\ninterval_ms = 200", "fleet.heartbeat_ms: shorter than interval_ms"),
    ("fleet", "timeout_ms = 1000", "fleet.timeout_ms: shorter than two heartbeats"),
    ("fleet", 'previous_secret_file = "x"',
     "fleet.previous_secret_file: without effect, since there is no secret_file; remove it, or give secret_file"),
    ("quota_admin", 'admins = ["Group:ops"]',
     'quota_admin.admins.0: "Group:ops" must be a principal such as "User:alice"'),
    ("quota_admin", 'admins = ["User:"]',
     'quota_admin.admins.0: "User:" must be a principal such as "User:alice"'),
    ("traces", 'endpoint = "http:/collector"',
     'traces.endpoint: "http:/collector" is not a URL with http or https and a host'),
    ("metrics", 'endpoint = "http://me:s3/cr@t@x.example/v1"',
     'metrics.endpoint: "http://***@x.example/v1" is not a URL with http or https and a host'),
    ("metrics", 'endpoint = "http://me:secret@x.example/v1"',
     'metrics.endpoint: "http://***@x.example/v1" has a password in it, which would appear in logs; set '
     "OTEL_EXPORTER_OTLP_HEADERS"),
    ("admn", "", "admn: unknown key; did you mean admin?"),
    ("array_of_admin", "", "admin: an array is not a table"),
])  # fmt: skip
def test_fault_is_one_line_with_key_value_and_what_is_allowed(section: str, body: str, line: str) -> None:
    assert faults(**{section: body}) == [line]


@pytest.mark.parametrize(("section", "text"), [
    (section, text)
    for section, texts in {
        "connections": ["max_connections = -1", "max_connections = 1.0", "max_connection_creation_rate = 0",
                        "max_connection_creation_rate = 2147483648", "max_connection_creation_rate = true"],
        "quota_admin": ['authorize = "all"', 'broker_limits = "both"'],
        "quota_store": ['kind = "etcd"', 'data_dir = ""', 'topic = "a topic"', "replication_factor = 0",
                        "max_quotas = 0", "max_history = 0", "write_timeout_ms = 0"],
        "upstream.sasl": ['mechanism = "GSSAPI"', 'mechanism = "plain"', 'password = "x"'],
        "usage": ['gateway_id = "a/b"', 'gateway_id = ""', f'gateway_id = "{"x" * 65}"', 'topic = "no topic"',
                  'kind = "kafka"', "rotate_seconds = 0", "keep_bytes = 1", "max_rows = 0",
                  "max_queued_bytes = 0", 'directory = ""'],
    }.items()
    for text in texts
])  # fmt: skip
def test_value_out_of_range_is_named_by_its_key(section: str, text: str) -> None:
    assert any(line.startswith(f"{section}.{text.partition(' ')[0]}: ") for line in faults(**{section: text}))


PROXY = 'trusted = ["10.0.0.1"]'


@pytest.mark.parametrize(("more", "line"), [
    ('client_auth = "required"', 'client_ca: required, since client_auth is "required"'),
    ('client_auth = "always"', 'client_auth: "always" is not one of "none", "requested", "required"'),
    ('client_ca = "ca.pem"',
     'client_ca: without effect, since client_auth is "none"; remove it, or set client_auth = "required"'),
    ('client_crl = "ca.crl"',
     'client_crl: without effect, since client_auth is "none"; remove it, or set client_auth = "required"'),
    ('minimum_version = "TLSv1.1"', 'minimum_version: "TLSv1.1" is not one of "TLSv1.2", "TLSv1.3"'),
    ("handshake_timeout_ms = 0", "handshake_timeout_ms: 0 is not in 1..2147483647"),
    ('principal_mapping_rules = "RULE:^a"',
     'principal_mapping_rules: "RULE:^a" has "RULE:^a", which is neither DEFAULT nor '
     "RULE:pattern/replacement/[L|U]"),
    ('certificate_texts = "latin1"', 'certificate_texts: "latin1" is not one of "by_kind", "utf8"'),
])  # fmt: skip
def test_fault_in_the_tls_of_a_listener(more: str, line: str) -> None:
    tls = f'security_protocol = "SSL"\n[listeners.tls]\ncertificate = "a.crt"\nkey = "a.key"\n{more}'
    assert faults(array_of_listeners=f"{GOOD['[listeners]']}\n{tls}") == [f"listeners.a.tls.{line}"]


@pytest.mark.parametrize(("keys", "line"), [
    ('certificate = "a.crt"', "key: required, since certificate is given"),
    ('key = "a.key"', "certificate: required, since key is given"),
    ('key_password_file = "p"', "key_password_file: without effect, since there is no key; remove it, or give key"),
    ('verify = false\nca = "ca.pem"', "ca: without effect, since verify is false; remove it, or set verify = true"),
    ('verify = false\nserver_name = "kafka"',
     "server_name: without effect, since verify is false; remove it, or set verify = true"),
])  # fmt: skip
def test_fault_in_the_tls_towards_brokers(keys: str, line: str) -> None:
    upstream = f'{GOOD["upstream"]}\nsecurity_protocol = "SSL"\n[upstream.tls]\n{keys}'
    assert faults(upstream=upstream) == [f"upstream.tls.{line}"]


@pytest.mark.parametrize(("section", "body", "line"), [
    ("array_of_listeners", 'security_protocol = "SSL"',
     "listeners.a.tls: required, since security_protocol is SSL"),
    ("array_of_listeners", 'tls = {certificate = "a", key = "b"}',
     "listeners.a.tls: without effect, since security_protocol is PLAINTEXT; remove it, or set it to SSL"),
    ("array_of_listeners", "sasl = {}",
     "listeners.a.sasl: without effect, since security_protocol is PLAINTEXT; remove it, or set it to "
     "SASL_PLAINTEXT"),
    ("upstream", "tls = {}",
     "upstream.tls: without effect, since security_protocol is PLAINTEXT; remove it, or set it to SSL"),
    ("upstream", 'sasl = {mechanism = "PLAIN", username = "u", password_file = "p"}',
     "upstream.sasl: without effect, since security_protocol is PLAINTEXT; remove it, or set it to SASL_PLAINTEXT"),
])  # fmt: skip
def test_tls_and_sasl_go_with_the_protocols_that_have_them(section: str, body: str, line: str) -> None:
    good = GOOD["upstream" if section == "upstream" else "[listeners]"]
    assert faults(**{section: f"{good}\n{body}"}) == [line]


@pytest.mark.parametrize(("keys", "key"), [
    ("", "trusted"), ("trusted = []", "trusted"), ('trusted = ["lb.example"]', "trusted.0"),
    ('trusted = ["10.0.0.1/8"]', "trusted.0"), ('trusted = ["fe80::1%eth0"]', "trusted.0"),
    ("trusted = [7]", "trusted.0"),
    (f"{PROXY}\ntimeout_ms = 0", "timeout_ms"), (f"{PROXY}\ntimeout_ms = 60001", "timeout_ms"),
    (f"{PROXY}\nmax_waiting = 0", "max_waiting"), (f"{PROXY}\nmax_waiting = 100001", "max_waiting"),
])  # fmt: skip
def test_h24_trusted_load_balancers_must_be_named_and_their_waiting_is_bounded(keys: str, key: str) -> None:
    (line,) = faults(array_of_listeners=f"{GOOD['[listeners]']}\n[listeners.proxy_protocol]\n{keys}")
    assert line.startswith(f"listeners.a.proxy_protocol.{key}: ")


def test_all_faults_of_all_sections_are_told_at_once_short_and_without_their_consequences() -> None:
    assert faults(limits="idle_timeout_ms = 0\nframe_timeout_ms = 0", log='format = "xml"') == [
        "limits.frame_timeout_ms: 0 is not in 1..2147483647",
        "limits.idle_timeout_ms: 0 is not in 1..2147483647",
        'log.format: "xml" is not one of "logfmt", "json"',
    ]
    assert faults(array_of_listeners='name = "a"\nbind = "here"') == [
        'listeners.a.bind: "here" is not host:port with a port in 0..65535'
    ]
    assert value_text("a\x1b\n") == '"a\\u001b\\n"'
    assert len(value_text("x" * 10_000)) < 100
    assert value_text({"a": 1}) == "a table"


def _keys(kind: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all keys of the tables of a configuration; "[]" is the first of an array of tables."""
    for name, field in cast("type[BaseModel]", kind).model_fields.items():
        yield (*path, name)
        for part in (field.annotation, *get_args(field.annotation)):
            table = get_origin(part) is tuple
            inner = get_args(part)[0] if table else part
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from _keys(inner, (*path, name, "[]") if table else (*path, name))


@pytest.mark.parametrize("value", [-1, 0, 2.5, 1e300, True, "", "\x00", [], [[]], [{}], {}, {"": {"": 1}}])
def test_a_wrong_value_of_any_key_is_told_and_nothing_else_happens(value: object) -> None:
    keys = list(_keys(config.Config))
    assert ("server", "workers") in keys
    assert ("listeners", "[]", "tls", "certificate") in keys
    for key in keys:
        wrong = value
        for part in reversed(key):
            wrong = [wrong] if part == "[]" else {part: wrong}
        data = {"upstream": {"bootstrap": ["127.0.0.1:9092"]}} | cast("dict[str, object]", wrong)
        if (error := _error_of(data)) is not None:
            told = lines(error, config.Config, data)
            assert told
            assert "\n" not in "".join(told)


def _error_of(data: dict[str, object]) -> ValidationError | None:
    try:
        config.Config.model_validate(data)
    except ValidationError as exc:
        return exc
    return None


@pytest.mark.parametrize(("names", "paths"), [
    (("inside", "a.b"), ("listeners.inside", 'listeners."a.b"')),
    (("x", "x"), ("listeners.0", "listeners.1")),
    (("é", ""), ('listeners."\\u00e9"', "listeners.1")),
])  # fmt: skip
def test_listeners_are_shown_by_their_names_if_these_tell_them_apart(
    names: tuple[str, str], paths: tuple[str, str]
) -> None:
    listeners = "\n[[listeners]]\n".join(f'name = "{name}"\nbind = "here"' for name in names)
    found = faults(array_of_listeners=listeners)
    assert [line.partition(":")[0] for line in found if ".bind:" in line] == [f"{path}.bind" for path in paths]


@pytest.mark.parametrize(("value", "hint"), [
    ("1MB", "; give a number without a unit"), ("1.5 MiB/s", "; give a number without a unit"),
    ("5s", "; give a number without a unit"), ("20%", "; give a number without a unit"),
    ("1048576", "; write 1048576, without quotes"), ("1e6", "; write 1e6, without quotes"), ("fast", ""), ("", ""),
])  # fmt: skip
def test_a_number_with_a_unit_or_in_quotes_is_shown_as_it_has_to_be_written(value: str, hint: str) -> None:
    assert number_hint(value) == hint
    (line,) = faults(drain=f'timeout_ms = "{value}"')
    assert line == f'drain.timeout_ms: "{value}" is not a whole number in 0..2147483647{hint}'


@pytest.mark.parametrize(("key", "value", "hint"), [
    ("producer_byte_rate", "10mb", "; it has the unknown unit mb (did you mean 10MB?); give a number of bytes per "),
    ("producer_byte_rate", "5%", "; it has the unknown unit %; give a number of bytes per second, alone or with B, "),
    ("producer_byte_rate", "0.5kB/", "; it has the unknown unit kB/; give a number of bytes per second"),
    ("producer_byte_rate", "1.5B", "; it is 1.5, which is no whole number; give a number of bytes per second"),
    ("producer_byte_rate", "1048576", "; write 1048576, without quotes"),
    ("request_percentage", "5/s", "; it has the unknown unit /s; give a number of percent of one core"),
    ("controller_mutation_rate", "5MB", "; it has the unknown unit MB; give a number per second, alone or with /s"),
])  # fmt: skip
def test_a_wrong_unit_is_named_with_those_that_the_key_takes(key: str, value: str, hint: str) -> None:
    (line,) = faults(array_of_quotas=f'user = "a"\n{key} = "{value}"')
    assert line.startswith(f'quotas.0.{key} (user="a"): "{value}" is not ')
    assert line[line.index(";") :].startswith(hint)


@pytest.mark.parametrize(("body", "hint"), [
    ("connect_timeout_ms = 5s", "; give a number without a unit"),
    ("connect_timeout_ms = 5s # soon", "; give a number without a unit"),
    ("x = 1\r\nrate = 1MB\r\n", "; give a number without a unit"),
    ("producer_byte_rate = 1MB", '; put it in quotes: "1MB"'),
    ("limits.max_frame_bytes = 1 MiB", '; put it in quotes: "1 MiB"'),
    ("max_connection_creation_rate = 5s",
     "; it has the unknown unit s; give a whole number per second, alone or with /s"),
    ("security_protocol = SASL_SSL", "; put a text in quotes"), ("bind = 127.0.0.1:19092", "; put a text in quotes"),
    ("a.'b.c'.d = x", ""), ('"10.0.0.1" = True', "; write true"), ("verify = FALSE", "; write false"),
    ("a = ", ""), ("a = [1, x", ""), ("[a", ""), ("a = two words", ""), ("a = 1 2", ""),
])  # fmt: skip
def test_a_value_that_is_not_toml_is_shown_as_it_has_to_be_written(body: str, hint: str) -> None:
    with pytest.raises(config.ConfigError) as caught:
        config.parse(body, name="f")
    (line,) = caught.value.lines
    assert line.startswith("f: not TOML: ")
    assert line.partition(" (at ")[2].partition(")")[2] == hint


@pytest.mark.parametrize(("protocol", "key", "wanted"), [
    ("PLAINTEXT", "tls", "SSL"), ("SASL_PLAINTEXT", "tls", "SASL_SSL"), ("PLAINTEXT", "sasl", "SASL_PLAINTEXT"),
    ("SSL", "sasl", "SASL_SSL"),
])  # fmt: skip
def test_a_table_without_effect_comes_with_the_protocol_that_it_would_need(
    protocol: str, key: str, wanted: str
) -> None:
    given = {"SSL": {"tls"}, "PLAINTEXT": set[str](), "SASL_PLAINTEXT": {"sasl"}}[protocol] | {key}
    text = f"without effect, since security_protocol is {protocol}; remove it, or set it to {wanted}"
    assert useless_faults(SecurityProtocol(protocol), given) == [((key,), text)]
