"""Each fault is one line that names key path, value, and what would be allowed."""

from __future__ import annotations

import pytest

import config
from config.faults import value_text

GOOD = {
    "upstream": 'bootstrap = ["127.0.0.1:9092"]',
    "[listeners]": 'name = "a"\nbind = "127.0.0.1:19092"',
}


def faults(**changed: str) -> list[str]:
    """The faults of a good file with sections added or replaced; ``array_of`` names stand for [[...]]."""
    sections = GOOD | {name.replace("array_of_", "[") + "]" * name.startswith("array_of_"): body
                       for name, body in changed.items()}  # fmt: skip
    text = "".join(f"[{name}]\n{body}\n" for name, body in sections.items())
    with pytest.raises(config.ConfigError) as caught:
        config.parse(text, name="sluice.toml")
    assert all(line.startswith("sluice.toml: ") and "\n" not in line for line in caught.value.lines)
    return [line.removeprefix("sluice.toml: ") for line in caught.value.lines]


@pytest.mark.parametrize(
    ("section", "body", "line"),
    [
        ("array_of_listeners", GOOD["[listeners]"] + "\nfirst_broker_port = 70000",
         "listeners.0.first_broker_port: 70000 is not in 1..65535"),
        ("limits", 'max_frame_bytes = "1"', 'limits.max_frame_bytes: "1" is not a whole number in 1024..2147483647'),
        ("limits", "idle_timeout_ms = true", "limits.idle_timeout_ms: true is not a whole number in 1..2147483647"),
        ("limits", "max_frame_byte = 1", "limits.max_frame_byte: unknown key; did you mean max_frame_bytes?"),
        ("drain", "qqq = 1", "drain.qqq: unknown key; known keys: timeout_ms"),
        ("drain", '"\\u001b[31m\\n" = 1', 'drain."\\u001b[31m\\n": unknown key; known keys: timeout_ms'),
        ("log", 'level = "trace"', 'log.level: "trace" is not one of "debug", "info", "warning", "error"'),
        ("mutation_quota", 'algorithm = "x"',
         'mutation_quota.algorithm: "x" is not one of "token_bucket", "rate", "spread_rate"'),
        ("upstream", "bootstrap = []", "upstream.bootstrap: an empty array is not an array with at least one item"),
        ("upstream", 'bootstrap = "k:1"', 'upstream.bootstrap: "k:1" is not an array with at least one item'),
        ("upstream", 'bootstrap = ["k"]',
         'upstream.bootstrap.0: "k" is not host:port with a port in 1..65535'),
        ("upstream", "", "upstream.bootstrap: required, but missing"),
        ("array_of_quotas", 'user = "a"\nconnection_creation_rate = 1\ncontroller_mutation_rate = 1',
         "quotas.0.connection_creation_rate: users and client ids have no such quota; give producer_byte_rate or "
         "consumer_byte_rate or request_percentage or controller_mutation_rate"),
        ("array_of_quotas", 'default_ip = true\nproducer_byte_rate = 1',
         "quotas.0.producer_byte_rate: addresses have no such quota; give connection_creation_rate"),
        ("array_of_quotas", "default_ip = true", "quotas.0: limits nothing; give connection_creation_rate"),
        ("array_of_quotas", 'ip = "1.2.3.4"\ndefault_ip = true\nconnection_creation_rate = 1',
         "quotas.0.ip: give ip or default_ip, not both"),
        ("array_of_quotas", 'ip = "1.2.3.4"\nuser = "a"\nconnection_creation_rate = 1',
         "quotas.0: an address can not be combined with a user or a client id"),
        ("array_of_quotas", 'ip = "10.0.0.1/8"\nconnection_creation_rate = 1',
         'quotas.0.ip: "10.0.0.1/8" is not a block such as 10.0.0.0/8, with nothing set behind its length'),
        ("array_of_quotas", 'ip = "::ffff:10.0.0.0/104"\nconnection_creation_rate = 1',
         'quotas.0.ip: "::ffff:10.0.0.0/104" would never match: IPv4 addresses are IPv4 here, also when mapped into '
         "IPv6"),
        ("array_of_quotas", 'ip = "localhost"\nconnection_creation_rate = 1',
         'quotas.0.ip: "localhost" is not an IP address or a block such as 10.0.0.0/8'),
        ("array_of_quotas", "default_ip = true\nconnection_creation_rate = 0.5",
         "quotas.0.connection_creation_rate: 0.5 is not a whole number in 1..2147483647"),
        ("connections", 'max_connections_per_ip_overrides = {"10.0.0" = 1}',
         'connections.max_connections_per_ip_overrides."10.0.0": "10.0.0" is not an IP address'),
        ("connections", 'max_connections_per_ip_overrides = {"10.0.0.1" = "a"}',
         'connections.max_connections_per_ip_overrides."10.0.0.1": "a" is not a whole number in 0..2147483647'),
        ("connections", "max_connections = 0", "connections.max_connections: 0 is not in 1..2147483647"),
        ("connections", 'after_hold = "open"', 'connections.after_hold: "open" is not one of "close", "recheck"'),
        ("array_of_quotas", 'user = "a"\nproducer_byte_rate = 1.5',
         "quotas.0.producer_byte_rate: 1.5 is not a whole number in 1..9223372036854775807"),
        ("array_of_quotas", 'user = "a"\nrequest_percentage = nan',
         "quotas.0.request_percentage: nan is not a finite number > 0"),
        ("enforcement", 'mode = "on"',
         'enforcement.mode: "on" is not one of "enforce", "observe", "off"'),
        ("client_quota", 'scope = "cluster"',
         'client_quota.scope: "cluster" is not one of "gateway", "broker"'),
        ("array_of_quotas", 'user = "a"\ncontroller_mutation_rate = -1',
         "quotas.0.controller_mutation_rate: -1 is not a finite number > 0"),
        ("array_of_quotas", 'user = ""\ncontroller_mutation_rate = 1',
         'quotas.0.user: "" is not a string of at least one character'),
        ("array_of_quotas", 'user = "a"\ndefault_user = true\ncontroller_mutation_rate = 1',
         "quotas.0.user: give user or default_user, not both"),
        ("array_of_quotas", 'default_user = "yes"\ncontroller_mutation_rate = 1',
         'quotas.0.default_user: "yes" is not true or false'),
        ("array_of_quotas", "controller_mutation_rate = 1",
         "quotas.0: names nobody; give user, default_user, client_id, default_client_id, ip or default_ip"),
        ("array_of_quotas", 'user = "a"',
         "quotas.0: limits nothing; give producer_byte_rate or consumer_byte_rate or request_percentage or "
         "controller_mutation_rate"),
        ("admn", "", "admn: unknown key; did you mean admin?"),
        ("array_of_admin", "", "admin: an array is not a table"),
    ],
)  # fmt: skip
def test_fault_is_one_line_with_key_value_and_what_is_allowed(section: str, body: str, line: str) -> None:
    assert faults(**{section: body}) == [line]


def test_all_faults_of_all_sections_are_told_at_once() -> None:
    assert faults(limits="idle_timeout_ms = 0\nframe_timeout_ms = 0", log='format = "xml"') == [
        "limits.frame_timeout_ms: 0 is not in 1..2147483647",
        "limits.idle_timeout_ms: 0 is not in 1..2147483647",
        'log.format: "xml" is not one of "logfmt", "json"',
    ]


def test_faulty_bind_does_not_blame_what_is_derived_from_it() -> None:
    assert faults(array_of_listeners='name = "a"\nbind = "here"') == [
        'listeners.0.bind: "here" is not host:port with a port in 0..65535'
    ]


def test_shown_value_is_escaped_and_short() -> None:
    assert value_text("a\x1b\n") == '"a\\u001b\\n"'
    assert len(value_text("x" * 10_000)) < 100
    assert value_text({"a": 1}) == "a table"
