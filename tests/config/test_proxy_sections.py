from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

import config
from config.proxy_sections import ProxyProtocolSettings


def settings(**keys: Any) -> ProxyProtocolSettings:
    return ProxyProtocolSettings.model_validate(keys)


def test_h24_who_is_trusted_must_be_said() -> None:
    for keys in ({}, {"trusted": []}):
        with pytest.raises(ValidationError, match="trusted"):
            settings(**keys)


def test_trusted_are_addresses_and_blocks_by_their_one_name() -> None:
    trusted = ["10.0.0.0/8", "::ffff:192.0.2.1", "2001:DB8::/32"]
    assert settings(trusted=trusted).trusted == ("10.0.0.0/8", "192.0.2.1", "2001:db8::/32")


@pytest.mark.parametrize("trusted", ["lb.example", "10.0.0.1/8", "fe80::1%eth0", "", 7])
def test_what_is_no_address_is_refused(trusted: object) -> None:
    with pytest.raises(ValidationError):
        settings(trusted=[trusted])


@pytest.mark.parametrize(
    ("trusted", "everybody"), [("0.0.0.0/0", True), ("::/0", True), ("0.0.0.0/1", False), ("10.0.0.1", False)]
)
def test_trust_in_everybody_is_noticed(trusted: str, everybody: bool) -> None:
    assert settings(trusted=["10.0.0.2", trusted]).trusts_everybody is everybody


@pytest.mark.parametrize(
    ("key", "value"),
    [("timeout_ms", 0), ("timeout_ms", 60_001), ("max_waiting", 0), ("max_waiting", 100_001)],
)
def test_waiting_is_bounded(key: str, value: int) -> None:
    with pytest.raises(ValidationError, match=key):
        settings(trusted=["10.0.0.1"], **{key: value})


HEAD = '[upstream]\nbootstrap = ["k:1"]\n{}\n[[listeners]]\nname = "a"\nbind = "127.0.0.1:19092"\n'


def test_listener_has_a_section_of_its_own_and_trust_in_everybody_is_warned_of() -> None:
    text = HEAD.format("") + '[listeners.proxy_protocol]\ntrusted = ["10.0.0.0/8"]\n'
    read = config.parse(text, name="t")
    assert read.listeners[0].proxy_protocol is not None
    assert read.listeners[0].proxy_protocol.timeout_ms == 3_000
    assert read.warnings() == []
    anybody = config.parse(text.replace("10.0.0.0/8", "0.0.0.0/0"), name="t")
    assert [line for line in anybody.warnings() if "trusts everybody" in line]


@pytest.mark.parametrize("version", ["none", "v1", "v2"])
def test_headers_are_sent_to_brokers_only_when_asked_for(version: str) -> None:
    read = config.parse(HEAD.format(f'send_proxy_protocol = "{version}"'), name="t")
    assert read.upstream.send_proxy_protocol.value == version
    assert config.parse(HEAD.format(""), name="t").upstream.send_proxy_protocol.value == "none"


@pytest.mark.parametrize("section", ["quota_store", "usage"])
def test_own_topics_can_not_be_behind_a_proxy_that_wants_headers(section: str) -> None:
    text = HEAD.format('send_proxy_protocol = "v2"') + f'[{section}]\nkind = "topic"\n'
    with pytest.raises(config.ConfigError, match=rf"send_proxy_protocol.*{section}"):
        config.parse(text, name="t")
