"""What a configuration comes to that can be read: one list in the code, and here at least one file for each entry."""

from collections.abc import Iterator

import pytest

import config
from config.findings import CHECKS, Severity, findings
from config.host_port import is_loopback

HEAD = '[upstream]\nbootstrap = ["127.0.0.1:9092"]\n'
LISTENER = '[[listeners]]\nname = "a"\nbind = "127.0.0.1:19092"\n'
OTHER = '[[listeners]]\nname = "b"\nbind = "127.0.0.1:29092"\n'
SASL = 'security_protocol = "SASL_PLAINTEXT"\n'
LOGIN = 'sasl = { mechanism = "PLAIN", username = "u", password_file = "p" }\n'
FILES = 'certificate = "c"\nkey = "k"\n'
SSL = f'security_protocol = "SSL"\n[listeners.tls]\n{FILES}'
SNI = '[listeners.sni]\nbootstrap_name = "k.test"\nbroker_name = "b{node}.k.test"\n'
PROXY = "[listeners.proxy_protocol]\ntrusted = [{}]\n"
STORE = '[quota_store]\nkind = "topic"\n'
FLEET = '[client_quota]\nscope = "fleet"\n'

UNKNOWN_USER = "no listener has SASL or client certificates, so all clients are ANONYMOUS and none has this name"


KEY = '[[admin.keys]]\nname = "k"\nroles = ["read"]\ntoken_file = "t"\n'
ADMIN_TLS = (
    '[admin.tls]\ncertificate = "c"\nkey = "k"\nclient_auth = "requested"\nclient_ca = "a"\n'
    '[admin]\nbind = "0.0.0.0:9644"\n'
)
ANYBODY = "[quota_admin]\nadmins = ['User:ANONYMOUS']\n"


def quota(keys: str, limit: str = "controller_mutation_rate = 1") -> str:
    return f"[[quotas]]\n{keys}\n{limit}\n"


ERRORS: list[tuple[str, str, list[str]]] = [
    ("_no_login", HEAD + SASL + LISTENER + SASL,
     ["upstream.sasl: missing, so the gateway cannot log in to these brokers and will never be ready; give "
      "[upstream.sasl] with mechanism, username and password_file, or with mechanism = "
      '"OAUTHBEARER" and what it needs']),
    ("_no_login", HEAD + LISTENER + SASL + 'upstream = "x"\n[[upstreams]]\nname = "x"\nbootstrap = ["k:1"]\n' + SASL,
     ["upstreams.x.sasl: missing, so the gateway cannot log in to these brokers and will never be ready; give "
      "[upstreams.sasl] with mechanism, username and password_file, or with mechanism = "
      '"OAUTHBEARER" and what it needs']),
    ("_fleet_without_shared_store", HEAD + LISTENER + FLEET,
     ['quota_store.kind: gateways with client_quota.scope = "fleet" share usage, but a changed quota would apply '
      'to only one of them; set quota_store.kind = "topic"']),
    ("_named_like_the_default", HEAD + LISTENER + quota("user = '<default>'") + quota("client_id = '<default>'"),
     ['quotas.0.user: "<default>" is read as a name, and no client has it; for the default, set default_user = true',
      'quotas.1.client_id: "<default>" is read as a name, and no client has it; for the default, set '
      "default_client_id = true"]),
]  # fmt: skip

NOTES: list[tuple[str, str, list[str]]] = [
    ("_star_without_prefixes", HEAD + LISTENER + quota("client_id = 'team-*'"),
     ['quotas.0.client_id: the star in "team-*" is part of the name; to match all names with this prefix, set '
      "client_ids.prefixes = true"]),
    ("_groups_without_members", HEAD + LISTENER + quota('group = "g"', "producer_byte_rate = 1"),
     ['quotas.0.group: no [[groups]] entry has this name']),
    ("_groups_without_quotas",
     HEAD + LISTENER + '[[groups]]\nname = "g"\nusers = ["a"]\n[[groups]]\nname = "h"\nusers = ["a"]\n'
     + quota('group = "g"', "producer_byte_rate = 1"),
     ["groups.1.name: limits nothing: no [[quotas]] entry has this group; a quota may be in the quota store"]),
    ("_guarantees_without_capacity",
     HEAD + LISTENER + "[capacity]\nconsumer_byte_rate = 9\n" + quota(
         "client_id = 'a'",
         "producer_byte_rate = 2\nproducer_byte_guarantee = 1\nconsumer_byte_rate = 2\nconsumer_byte_guarantee = 1"),
     ['quotas.0.producer_byte_guarantee (client_id="a"): without effect: [capacity] has no producer_byte_rate']),
    ("_guarantees_without_capacity", HEAD + LISTENER + quota("client_id = 'a'", "producer_byte_rate = 2\nweight = 1"),
     ['quotas.0.weight (client_id="a"): without effect: there is no [capacity]']),
    ("_guarantees_above_capacity",
     HEAD + LISTENER + "[capacity]\nproducer_byte_rate = 3000000\nconsumer_byte_rate = 4\n" + "".join(
         quota(name, f"producer_byte_rate = 9000000\nproducer_byte_guarantee = {produce}\n"
                     "consumer_byte_rate = 9\nconsumer_byte_guarantee = 2")
         for name, produce in (("client_id = 'a'", 2000000), ("client_id = 'b'", 1000001),
                               ("default_client_id = true", 1))),
     ["capacity.producer_byte_rate: 3000000 B/s are less than all guarantees of producer_byte_rate together, "
      "3000001 B/s; when all are used, each is cut by the same factor"]),
    ("_attributes_without_rate",
     HEAD + LISTENER + "[capacity]\nproducer_byte_rate = 9\n" + quota("client_id = 'a'", "tier = 0\nweight = 2")
     + quota("client_id = 'b'", "tier = 0\nconsumer_byte_rate = 2"),
     [f'quotas.0.{key} (client_id="a"): has no effect: this entity has neither producer_byte_rate nor '
      "consumer_byte_rate here; one may be in the quota store" for key in ("weight", "tier")]),
    ("_bursts_without_rate",
     HEAD + LISTENER + quota("client_id = 'a'", "consumer_byte_rate = 2\nconsumer_byte_burst_seconds = 1\n"
                                                "producer_byte_burst_seconds = 1"),
     ['quotas.0.producer_byte_burst_seconds (client_id="a"): without effect: this entity has no producer_byte_rate '
      "here; one may be in the quota store"]),
    ("_users_without_a_login",
     HEAD + LISTENER + quota("user = 'alice'") + '[quota_admin]\nadmins = ["User:ANONYMOUS", "User:root"]\n',
     [f"quotas.0.user: {UNKNOWN_USER}", f"quota_admin.admins.1: {UNKNOWN_USER}"]),
    ("_users_without_a_login", HEAD + LISTENER + SSL + quota("user = 'a'"), [f"quotas.0.user: {UNKNOWN_USER}"]),
    ("_anonymous_behind_sasl", HEAD + SASL + LOGIN + LISTENER,
     ["listeners.a.security_protocol: clients can authenticate, but quotas see all of them as ANONYMOUS; give the "
     "listener "
      "SASL too"]),
    ("_connection_limits",
     f"{HEAD}{LISTENER}max_connections = 11\nmax_connection_creation_rate = 6\n[connections]\nmax_connections = 10\n"
     "max_connections_per_ip = 11\nmax_connections_per_ip_overrides = { '10.0.0.1' = 12, '10.0.0.2' = 10 }\n"
     "max_connection_creation_rate = 5\n" + quota("default_ip = true", "connection_creation_rate = 7"),
     ["connections.max_connections_per_ip: 11 is never reached, since connections.max_connections is 10",
      'connections.max_connections_per_ip_overrides."10.0.0.1": 12 is never reached, since '
      "connections.max_connections is 10",
      "listeners.a.max_connections: 11 is never reached, since connections.max_connections is 10",
      "listeners.a.max_connection_creation_rate: 6 is never reached, since "
      "connections.max_connection_creation_rate is 5",
      "quotas.0.connection_creation_rate (default_ip=true): 7 is never reached, since "
      "connections.max_connection_creation_rate is 5"]),
    ("_request_time", HEAD + LISTENER + quota("client_id = 'a'", "request_percentage = 200"),
     ["quotas.0.request_percentage (client_id=\"a\"): 200 is never reached, since server.workers is 1 and a process "
      "uses 100 at most"]),
    ("_advertised_elsewhere", HEAD + LISTENER.replace("127.0.0.1", "0.0.0.0") + 'advertised_host = "localhost"\n',
     ['listeners.a.advertised_host: "localhost" makes clients on other machines connect to themselves; give a name '
     'or '
      "address of this machine"]),
    ("_advertised_elsewhere", HEAD + LISTENER + 'advertised_host = "gw.example"\n',
     ['listeners.a.advertised_host: "gw.example" is not where the listener is: bind is 127.0.0.1:19092, which only '
      "this machine reaches"]),
    ("_upstream_is_advertised",
     '[upstream]\nbootstrap = ["k:1", "gw:19099"]\n' + LISTENER.replace("127.", "10.") + 'advertised_host = "gw"\n',
     ['upstream.bootstrap.1: "gw:19099" is an address that the gateway advertises for itself '
      "(listeners.a.advertised_host); unless it leads to brokers from here, the gateway will never be ready"]),
    ("_upstream_is_advertised",
     '[upstream]\nbootstrap = ["k.test:19092", "b3.k.test:1"]\n' + LISTENER + SSL + SNI,
     ['upstream.bootstrap.0: "k.test:19092" is an address that the gateway advertises for itself (listeners.a.sni); '
      "unless it leads to brokers from here, the gateway will never be ready"]),
    ("_upstream_is_advertised",
     '[upstream]\nbootstrap = ["k.test:19092", "b3.K.test:9093"]\n' + LISTENER + SSL + SNI
     + "advertised_port = 9093\n",
     ['upstream.bootstrap.1: "b3.K.test:9093" is an address that the gateway advertises for itself '
      "(listeners.a.sni); unless it leads to brokers from here, the gateway will never be ready"]),
    ("_unused_upstream", HEAD + LISTENER + '[[upstreams]]\nname = "x"\nbootstrap = ["k:1"]\n',
     ['upstreams.x.name: no listener uses "x", yet the gateway is not ready while it cannot be reached']),
    ("_trusted_twice", HEAD + LISTENER + PROXY.format('"10.1.0.0/16", "10.0.0.0/8", "::1", "10.0.0.0/8", "fd00::/8"'),
     ['listeners.a.proxy_protocol.trusted.0: "10.1.0.0/16" is within "10.0.0.0/8"; give one of them',
      'listeners.a.proxy_protocol.trusted.3: "10.0.0.0/8" is within "10.0.0.0/8"; give one of them']),
    ("_anyone_may_change_quotas", HEAD + LISTENER + "[quota_admin]\nauthorize = 'anyone'\n",
     ["quota_admin.authorize: every client may change quotas; for development only"]),
    ("_trusts_everybody", HEAD + LISTENER + PROXY.format('"0.0.0.0/0"'),
     ["listeners.a.proxy_protocol.trusted: trusts every peer, so any peer can claim any address"]),
    ("_open_admin_port", HEAD + LISTENER + '[admin]\nbind = "0.0.0.0:9644"\nremote_changes = true\n',
     ["admin.remote_changes: the admin port has no keys: each machine that reaches 0.0.0.0:9644 may change quotas; "
      "give [[admin.keys]]"]),
    ("_open_admin_port", HEAD + LISTENER + '[admin]\nbind = "0.0.0.0:9644"\n',
     ["admin.bind: the admin port has no keys: each machine that reaches 0.0.0.0:9644 may read all of it; "
      "give [[admin.keys]]"]),
    ("_open_admin_port", HEAD + LISTENER + '[admin]\nbind = "0.0.0.0:9644"\n' + KEY,
     ["admin.tls: missing, so tokens for 0.0.0.0:9644 cross the network unencrypted"]),
    ("_open_admin_port", HEAD + LISTENER + ADMIN_TLS.replace("requested", "required") + KEY,
     ['admin.tls.client_auth: "required": probes of /healthz and /readyz need a certificate too; "requested" lets '
      "them in without one"]),
    ("_anonymous_admins", HEAD + LISTENER.replace("127.0.0.1", "0.0.0.0") + 'advertised_host = "g"\n' + ANYBODY,
     ["quota_admin.admins.0: clients of listeners.a need no login, so each machine that reaches 0.0.0.0:19092 may "
      "change quotas"]),
    ("_unverified_brokers", HEAD + 'security_protocol = "SSL"\ntls = { verify = false }\n' + LISTENER,
     ["upstream.tls.verify: false: any host can pose as the cluster"]),
    ("_own_clients", HEAD + 'security_protocol = "SSL"\ntls = { server_name = "k" }\n' + LISTENER + STORE,
     ["upstream.tls.server_name: does not apply to the gateway's own topics (quota_store): there the brokers' "
      "certificates must name the host that the gateway connects to"]),
    ("_without_effect", HEAD + LISTENER + STORE + 'data_dir = "x"\n',
     ['quota_store.data_dir: without effect, since quota_store.kind is "topic"']),
    ("_without_effect", HEAD + LISTENER + '[quota_store]\ntopic = "x"\nreplication_factor = 3\nsecret_file = "s"\n',
     [f'quota_store.{key}: without effect, since quota_store.kind is "sqlite"'
      for key in ("topic", "replication_factor", "secret_file")]),
    ("_without_effect", HEAD + LISTENER + '[usage]\ndirectory = "x"\n',
     ['usage.directory: without effect, since usage.kind is "off"']),
    ("_without_effect", HEAD + LISTENER + '[usage]\nkind = "files"\ndirectory = "x"\ntopic = "t"\nsalt_file = "s"\n',
     ['usage.topic: without effect, since usage.kind is "files"',
      'usage.salt_file: without effect, since usage.privacy is "plain"']),
    ("_without_effect", HEAD + LISTENER + '[usage]\nkind = "topic"\nrotate_seconds = 1\nmax_topics = 3\n',
     ['usage.rotate_seconds: without effect, since usage.kind is "topic"',
      "usage.max_topics: without effect, since usage.topics is false"]),
    ("_without_effect", HEAD + LISTENER + '[fleet]\nmember = "x"\n',
     ['fleet.member: without effect, since client_quota.scope is "gateway"']),
    ("_without_effect", HEAD + LISTENER + "[traces]\nmax_spans_per_second = 1\n",
     ["traces.max_spans_per_second: without effect, since traces.endpoint is not given"]),
    ("_without_effect", HEAD + LISTENER + '[traces]\nendpoint = "http://127.0.0.1:1/"\nca = "x"\n',
     ["traces.ca: without effect, since traces.endpoint is not an https address"]),
    ("_without_effect", HEAD + LISTENER + "[metrics]\ninterval_ms = 1000\n",
     ["metrics.interval_ms: without effect, since metrics.endpoint is not given"]),
    ("_without_effect", HEAD + LISTENER + "[admin]\nremote_changes = true\n",
     ["admin.remote_changes: without effect, since admin.bind is 127.0.0.1:9644"]),
    ("_without_effect", HEAD + LISTENER + ADMIN_TLS + "remote_changes = true\n" + KEY,
     ["admin.remote_changes: without effect, since the roles of admin.keys decide"]),
    ("_without_effect", HEAD + LISTENER + "protected = true\n",
     ["listeners.a.protected: without effect, since there is no other listener"]),
    ("_without_effect", HEAD + LISTENER + "[connections]\nprotected_slots = 5\n",
     ["connections.protected_slots: without effect, since no listener is protected"]),
    ("_without_effect", HEAD + LISTENER + SSL + 'principal_mapping_rules = "RULE:^a$/b/"\n',
     ["listeners.a.tls.principal_mapping_rules: without effect, since security_protocol is SSL and client_auth is "
      '"none", so no client gets its name from a certificate']),
    ("_without_effect", HEAD + LISTENER + SSL + 'minimum_version = "TLSv1.3"\nciphers = "AES"\n',
     ["listeners.a.tls.ciphers: without effect, since they are those of TLS 1.2 and minimum_version is "
     '"TLSv1.3"']),
    ("_without_effect",
     f'{HEAD}security_protocol = "SSL"\ntls = {{ minimum_version = "TLSv1.3", ciphers = "AES" }}\n{LISTENER}',
     ["upstream.tls.ciphers: without effect, since they are those of TLS 1.2 and minimum_version is "
     '"TLSv1.3"']),
]  # fmt: skip


def found(text: str) -> Iterator[tuple[Severity, str]]:
    for each in findings(config.parse(text, name="f")):
        yield each.severity, str(each)


@pytest.mark.parametrize(("check", "text", "lines"), ERRORS)
def test_what_is_never_ready_or_not_what_is_written_is_an_error(check: str, text: str, lines: list[str]) -> None:
    assert list(found(text)) == [(Severity.ERROR, line) for line in lines]
    assert only(check, text) == lines


@pytest.mark.parametrize(("check", "text", "lines"), NOTES)
def test_what_can_hardly_be_meant_is_a_note(check: str, text: str, lines: list[str]) -> None:
    if check == "_without_effect":
        lines = [f"{line}; remove it, or change that" for line in lines]
    assert list(found(text)) == [(Severity.NOTE, line) for line in lines]
    assert only(check, text) == lines


def only(check: str, text: str) -> list[str]:
    (named,) = (each for each in CHECKS if each.__name__ == check)
    return [str(each) for each in named(config.parse(text, name="f"))]


def test_each_entry_of_the_list_has_a_file_here() -> None:
    assert {each.__name__ for each in CHECKS} == {check for check, _, _ in ERRORS + NOTES}


@pytest.mark.parametrize("text", [
    HEAD + LISTENER,
    HEAD + LISTENER + "protected = true\nmax_connections = 20\n" + OTHER + "[connections]\nmax_connections = 10\n",
    HEAD + LISTENER + PROXY.format('"10.0.0.0/8", "::1", "10.1.0.0/16"').replace("10.1.", "11.1."),
    HEAD + LISTENER + "[quota_admin]\nauthorize = 'ask_cluster'\nadmins = ['User:ANONYMOUS']\n",
    HEAD + LISTENER + ADMIN_TLS + KEY,
    HEAD + LISTENER + KEY,
    HEAD + SASL + LOGIN + LISTENER.replace("127.0.0.1", "0.0.0.0") + 'advertised_host = "g"\n' + SASL + ANYBODY,
    HEAD + LISTENER + quota("client_id = 'team-*'") + "[client_ids]\nprefixes = true\n",
    HEAD + LISTENER + quota("user = 'ANONYMOUS'") + quota("default_user = true"),
    HEAD + LISTENER + "[server]\nworkers = 2\n" + quota("client_id = 'a'", "request_percentage = 200"),
    HEAD + LISTENER + '[client_quota]\nrequest_time = "upstream"\n'
    + quota("client_id = 'a'", "request_percentage = 200"),
    HEAD + SASL + LOGIN + LISTENER + SASL + quota("user = 'a'"),
    HEAD + LISTENER + SSL + 'client_auth = "required"\nclient_ca = "c"\nprincipal_mapping_rules = "RULE:^a$/b/"\n'
    + quota("user = 'a'"),
    HEAD + LISTENER + FLEET + STORE + '[fleet]\nmember = "x"\n',
    HEAD + LISTENER.replace("127.0.0.1", "0.0.0.0") + 'advertised_host = "gw.example"\n',
    HEAD + LISTENER.replace("127.0.0.1", "[::1]") + 'advertised_host = "localhost"\n',
])  # fmt: skip
def test_what_is_as_it_should_be_is_not_found(text: str) -> None:
    assert list(found(text)) == []


def test_i09_the_admin_port_is_on_loopback_by_default_and_one_that_others_reach_is_noticed() -> None:
    assert is_loopback(config.parse(HEAD + LISTENER, name="f").admin.bind.host)
    for bind in ("0.0.0.0:9644", "[::]:9644", "192.0.2.1:9644"):
        ((severity, text),) = found(f'{HEAD}{LISTENER}[admin]\nbind = "{bind}"\n')
        assert severity is Severity.NOTE
        assert f"each machine that reaches {bind} may" in text


def test_errors_come_first() -> None:
    text = HEAD + LISTENER + quota("user = 'team-*'") + quota("user = '<default>'")
    severities = [severity for severity, _ in found(text)]
    assert severities == [Severity.ERROR, Severity.NOTE, Severity.NOTE]
