"""What can be said about TLS, and what contradicts itself."""

from __future__ import annotations

from typing import Any

import pytest

from config import Config, ConfigError, parse

BASE = """
[upstream]
bootstrap = ["127.0.0.1:9092"]
{upstream}
[[listeners]]
name = "a"
bind = "127.0.0.1:19092"
{listener}
"""
FILES = 'tls = { certificate = "a.crt", key = "a.key"'


def config(*, listener: str = "", upstream: str = "") -> Config:
    return parse(BASE.format(listener=listener, upstream=upstream), name="f")


def fault(**texts: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        config(**texts)
    assert len(caught.value.lines) == 1
    return caught.value.lines[0]


def test_a_listener_with_tls_has_files_and_clients_without_certificates_by_default() -> None:
    section = config(listener=f'security_protocol = "SSL"\n{FILES} }}').listeners[0].tls
    assert section is not None
    assert (section.client_auth, section.minimum_version, section.handshake_timeout_ms) == (
        "none",
        "TLSv1.2",
        10_000,
    )


def test_tls_and_its_section_go_together() -> None:
    assert fault(listener='security_protocol = "SSL"').startswith("f: listeners.0.tls: required")
    assert fault(listener=f"{FILES} }}").startswith("f: listeners.0.tls: without effect")
    assert fault(upstream="tls = {}").startswith("f: upstream.tls: without effect")
    assert config(upstream='security_protocol = "SSL"').upstream.tls is None


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ('client_auth = "required"', "client_ca: required"),
        ('client_auth = "always"', 'client_auth: "always" is not one of "none", "requested", "required"'),
        ('client_ca = "ca.pem"', "client_ca: without effect"),
        ('client_crl = "ca.crl"', "client_crl: without effect"),
        ('minimum_version = "TLSv1.1"', 'minimum_version: "TLSv1.1" is not one of "TLSv1.2", "TLSv1.3"'),
        ("handshake_timeout_ms = 0", "handshake_timeout_ms: 0 is not in 1..2147483647"),
        ('principal_mapping_rules = "RULE:^a"', "principal_mapping_rules: "),
        ('certificate_texts = "latin1"', 'certificate_texts: "latin1" is not one of "by_kind", "utf8"'),
    ],
)
def test_what_contradicts_itself_on_a_listener_is_named(more: str, text: str) -> None:
    found = fault(listener=f'security_protocol = "SSL"\n{FILES}, {more} }}')
    assert found.startswith(f"f: listeners.0.tls.{text}")


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ('certificate = "a.crt"', "key: required"),
        ('key = "a.key"', "certificate: required"),
        ('key_password_file = "p"', "key_password_file: without effect"),
        ('verify = false, ca = "ca.pem"', "ca: without effect"),
        ('verify = false, server_name = "kafka"', "server_name: without effect"),
    ],
)
def test_what_contradicts_itself_towards_brokers_is_named(keys: str, text: str) -> None:
    found = fault(upstream=f'security_protocol = "SSL"\ntls = {{ {keys} }}')
    assert found.startswith(f"f: upstream.tls.{text}")


def more_upstreams(*names: str) -> str:
    return "\n".join(f'[[upstreams]]\nname = "{name}"\nbootstrap = ["127.0.0.1:9093"]' for name in names)


def test_listeners_may_lead_to_another_upstream() -> None:
    found = config(listener=f'upstream = "inner"\n{more_upstreams("inner")}')
    assert found.listeners[0].upstream == found.upstreams[0].name == "inner"


def test_upstreams_have_names_of_their_own_and_are_not_the_gateway() -> None:
    assert "is not in [[upstreams]], which has none" in fault(listener='upstream = "inner"')
    assert "upstreams.1.name" in fault(listener=more_upstreams("x", "x"))
    assert "upstreams.0.name" in fault(listener=more_upstreams("upstream"))
    loop = '[[upstreams]]\nname = "x"\nbootstrap = ["127.0.0.1:19092"]'
    assert fault(listener=loop).startswith(
        'f: upstreams.0.bootstrap.0: "127.0.0.1:19092" is the gateway itself'
    )
