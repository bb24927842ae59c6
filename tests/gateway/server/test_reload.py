"""What a new configuration changes, as a plan."""

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from config import Config
from config.section_base import Section
from gateway.observability.events import ReloadResult
from gateway.server.reload import LIVE, LIVE_EXCEPT, plan
from testkit.configuration_page import PAGE, is_live

BASE: dict[str, Any] = {
    "upstream": {"bootstrap": ["k:1"]},
    "listeners": [{"name": "a", "bind": "127.0.0.1:19092"}],
    "quotas": [{"user": "a", "producer_byte_rate": 1}],
}


def config(**sections: Any) -> Config:
    return Config.model_validate({**BASE, **sections})


def test_the_same_configuration_changes_nothing() -> None:
    found = plan(config(), config())
    assert (found.applies, found.needs_restart) == ((), ())
    assert found.config == config()
    assert found.result is ReloadResult.APPLIED


@pytest.mark.parametrize(
    ("section", "value", "key"),
    [
        ("quotas", [], "quotas"),
        ("quotas", [{"user": "a", "producer_byte_rate": 1, "observe": True}], "quotas"),
        ("enforcement", {"mode": "off"}, "enforcement.mode"),
        ("log", {"level": "debug"}, "log.level"),
        ("capacity", {"producer_byte_rate": 5}, "capacity.producer_byte_rate"),
        ("overload", {"broker_time_ms": 5}, "overload.broker_time_ms"),
        ("limits", {"max_mute_ms": 5}, "limits.max_mute_ms"),
        ("drain", {"timeout_ms": 5}, "drain.timeout_ms"),
        ("quota_admin", {"admins": ["User:a"]}, "quota_admin.admins"),
        ("connections", {"max_connections": 5}, "connections.max_connections"),
        ("connections", {"failed_authentication_delay_ms": 5}, "connections.failed_authentication_delay_ms"),
    ],
)
def test_setting_that_can_change_is_in_force_afterwards(section: str, value: Any, key: str) -> None:
    wanted = config(**{section: value})
    found = plan(config(), wanted)
    assert found.applies == (key,)
    assert found.needs_restart == ()
    assert found.config == wanted
    assert found.changes(section)


@pytest.mark.parametrize(
    ("section", "value", "key"),
    [
        ("upstream", {"bootstrap": ["other:1"]}, "upstream.bootstrap"),
        ("listeners", [{"name": "a", "bind": "127.0.0.1:29092"}], "listeners.a.bind"),
        ("upstreams", [{"name": "u", "bootstrap": ["k:2"]}], "upstreams.u"),
        ("admin", {"bind": "127.0.0.1:1"}, "admin.bind"),
        ("client_quota", {"window_num": 5}, "client_quota.window_num"),
        ("mutation_quota", {"window_num": 5}, "mutation_quota.window_num"),
        ("client_ids", {"empty": "as_named"}, "client_ids.empty"),
        ("limits", {"max_frame_bytes": 5000}, "limits.max_frame_bytes"),
        ("connections", {"ipv6_prefix_bits": 56}, "connections.ipv6_prefix_bits"),
    ],
)
def test_setting_that_can_not_change_waits_for_the_restart_and_the_rest_is_applied(
    section: str, value: Any, key: str
) -> None:
    wanted = config(**{section: value}, enforcement={"mode": "observe"})
    found = plan(config(), wanted)
    assert found.applies == ("enforcement.mode",)
    assert found.needs_restart == (key,)
    assert found.config == config(enforcement={"mode": "observe"})
    assert found.result is ReloadResult.NEEDS_RESTART


def test_setting_that_waits_is_told_again_until_it_is_taken_back() -> None:
    wanted = config(limits={"max_frame_bytes": 5000, "max_mute_ms": 5})
    first = plan(config(), wanted)
    assert (first.applies, first.needs_restart) == (("limits.max_mute_ms",), ("limits.max_frame_bytes",))
    assert first.config == config(limits={"max_mute_ms": 5})
    assert plan(first.config, wanted).applies == ()
    assert plan(first.config, wanted).needs_restart == ("limits.max_frame_bytes",)
    assert plan(first.config, config(limits={"max_mute_ms": 5})).needs_restart == ()


def test_keys_of_the_admin_port_wait_for_its_tls() -> None:
    keys = [{"name": "k", "roles": ["read"], "token_file": "f"}]
    tls = {"certificate": "c", "key": "k"}
    alone = plan(config(), config(admin={"keys": keys}))
    assert (alone.applies, alone.needs_restart) == (("admin.keys",), ())
    both = plan(config(), config(admin={"keys": keys, "tls": tls, "remote_changes": True}))
    assert (both.applies, both.needs_restart) == (("admin.remote_changes",), ("admin.tls", "admin.keys"))
    assert both.config == config(admin={"remote_changes": True})


def test_admin_port_that_moves_is_not_opened_at_its_old_address() -> None:
    key = {"name": "k", "roles": ["read"], "token_file": "f"}
    everywhere = {"bind": "0.0.0.0:9644", "keys": [key]}
    running = config(admin=everywhere)
    found = plan(running, config(admin={"remote_changes": True}))
    assert (found.applies, found.needs_restart) == ((), ("admin.bind", "admin.keys", "admin.remote_changes"))
    assert found.config == running
    # What makes it less open applies at once.
    another = {**key, "name": "other"}
    closing = config(admin={"bind": "127.0.0.1:9644", "keys": [another]})
    found = plan(config(admin={**everywhere, "remote_changes": True}), closing)
    assert (found.applies, found.needs_restart) == (("admin.keys", "admin.remote_changes"), ("admin.bind",))
    assert found.config == config(admin={**everywhere, "keys": [another]})


def test_capacity_waits_for_the_scope_that_allows_one() -> None:
    running = config(client_quota={"scope": "broker"})
    capacity = {"producer_byte_rate": 5, "observe": True}
    wanted = config(capacity=capacity, overload={"mode": "observe", "broker_time_ms": 5})
    found = plan(running, wanted)
    assert found.applies == ("overload.broker_time_ms",)
    assert found.needs_restart == (
        "client_quota.scope",
        "capacity.producer_byte_rate",
        "capacity.observe",
        "overload.mode",
    )
    assert found.config == config(client_quota={"scope": "broker"}, overload={"broker_time_ms": 5})
    # Without a capacity each scope is allowed, so the way back waits for nothing.
    back = plan(wanted, running)
    assert (back.applies, back.needs_restart) == (
        ("capacity.producer_byte_rate", "capacity.observe", "overload.mode", "overload.broker_time_ms"),
        ("client_quota.scope",),
    )


def test_sections_and_settings_of_the_plan_exist() -> None:
    assert set(Config.model_fields) >= LIVE
    for section, _, key in (each.partition(".") for each in LIVE_EXCEPT):
        assert key in Config.model_fields[section].default.__class__.model_fields


def two_listeners(first: dict[str, Any], second: dict[str, Any]) -> Config:
    return config(
        listeners=[
            {"name": "a", "bind": "127.0.0.1:19092", **first},
            {"name": "b", "bind": "127.0.0.1:29092", **second},
        ]
    )


def test_limits_of_a_listener_change_and_its_ports_wait_for_the_restart() -> None:
    running = two_listeners({}, {"max_connections": 5})
    found = plan(running, two_listeners({"max_connection_creation_rate": 7}, {"protected": True}))
    assert found.applies == (
        "listeners.a.max_connection_creation_rate",
        "listeners.b.max_connections",
        "listeners.b.protected",
    )
    assert found.needs_restart == ()
    assert found.changes("listeners")
    moved = two_listeners({"max_connections": 3}, {"max_connections": 5, "broker_ports": 3})
    found = plan(running, moved)
    assert found.applies == ("listeners.a.max_connections",)
    assert found.needs_restart == ("listeners.b.broker_ports",)
    assert found.config == two_listeners({"max_connections": 3}, {"max_connections": 5})


def test_j08_limits_follow_the_name_of_a_listener_and_one_gone_from_the_file_keeps_its_own() -> None:
    running = two_listeners({"max_connections": 5}, {})
    only_second = config(listeners=[{"name": "b", "bind": "127.0.0.1:29092", "max_connections": 9}])
    found = plan(running, only_second)
    assert found.config == two_listeners({"max_connections": 5}, {"max_connections": 9})
    assert found.needs_restart == ("listeners.a",)


def test_another_protected_listener_waits_while_the_one_gone_from_the_file_runs() -> None:
    running = two_listeners({"protected": True}, {})
    found = plan(
        running, config(listeners=[{"name": "b", "bind": "127.0.0.1:29092", "protected": True, "max_connections": 9}])
    )
    assert found.applies == ("listeners.b.max_connections",)
    assert found.needs_restart == ("listeners.a", "listeners.b.protected")
    assert found.config == two_listeners({"protected": True}, {"max_connections": 9})


def test_configuration_in_force_obeys_the_rules_of_a_file() -> None:
    capacity = {"producer_byte_rate": 5}
    quotas: list[dict[str, Any]] = [
        {"client_quota": {"scope": "broker"}},
        {},
        {"capacity": capacity},
        {"capacity": capacity, "overload": {"mode": "enforce"}},
    ]
    listeners = [
        [{"name": name, "bind": f"127.0.0.1:{port}", "protected": name == protected} for name, port in some]
        for some in ([("a", 19092), ("b", 29092)], [("b", 29092), ("c", 39092)], [("b", 29092)])
        for protected in ("a", "b", "c")
    ]
    configs = [config(**some, listeners=ports) for some, ports in product(quotas, listeners)]
    for running, wanted in product(configs, configs):
        found = plan(running, wanted)
        Config(**{section: getattr(found.config, section) for section in Config.model_fields})
        assert (found.config == wanted) is (not found.needs_restart)


def test_order_of_listeners_waits_for_the_restart() -> None:
    running = two_listeners({}, {})
    turned = running.model_copy(update={"listeners": running.listeners[::-1]})
    assert plan(running, turned).needs_restart == ("listeners",)


def test_settings_of_tables_below_are_named_and_defaults_that_follow_are_not() -> None:
    tls = {"certificate": "c", "key": "k"}
    running = config(upstream={"bootstrap": ["k:1"], "security_protocol": "SSL", "tls": {"ca": "a"}})
    wanted = config(
        upstream={"bootstrap": ["k:1"], "security_protocol": "SSL", "tls": {"ca": "b", "server_name": "k"}},
        listeners=[{"name": "a", "bind": "127.0.0.2:29092", "security_protocol": "SSL", "tls": tls}],
    )
    assert plan(running, wanted).needs_restart == (
        "upstream.tls.ca",
        "upstream.tls.server_name",
        "listeners.a.bind",
        "listeners.a.security_protocol",
        "listeners.a.tls",
    )


TLS: dict[str, Any] = {
    "certificate": "c",
    "key": "k",
    "client_auth": "required",
    "client_ca": "a",
    "certificates": [{"certificate": "c", "key": "k"}],
}
WITH_ALL_TABLES: dict[str, Any] = {
    "upstream": {
        "bootstrap": ["k:1"],
        "security_protocol": "SASL_SSL",
        "tls": {},
        "sasl": {"mechanism": "PLAIN", "username": "u", "password_file": "p"},
    },
    "listeners": [
        {
            "name": "a",
            "bind": "127.0.0.1:19092",
            "security_protocol": "SASL_SSL",
            "tls": TLS,
            "sasl": {},
            "proxy_protocol": {"trusted": ["127.0.0.1"]},
            "sni": {"bootstrap_name": "k.example", "broker_name": "b{node}.k.example"},
        }
    ],
    "admin": {
        "tls": {key: value for key, value in TLS.items() if key != "certificates"},
        "keys": [{"name": "k", "roles": ["read"], "certificate": "c"}],
    },
    "groups": [{"name": "g", "users": ["a"]}],
    "quotas": [{"user": "a", "producer_byte_rate": 1}],
}


def with_other_values(of: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Copies of a table, or of an array of tables, each with another value of one key; with the key's path."""
    if isinstance(of, tuple):
        for other, copy in with_other_values(of[0], path):
            yield other, (copy, *of[1:])
        return
    for key in type(of).model_fields:
        value = getattr(of, key)
        below = value if isinstance(value, Section) or (value and isinstance(value, tuple)) else None
        if isinstance(below, Section) or (below and isinstance(below[0], Section)):
            for other, copy in with_other_values(below, f"{path}.{key}"):
                yield other, of.model_copy(update={key: copy})
        else:
            yield f"{path}.{key}", of.model_copy(update={key: "another value"})


def keys_of_the_page() -> Iterator[str]:
    path = ""
    for line in PAGE.read_text().partition("## `[[clusters]]`")[0].splitlines():
        if heading := re.fullmatch(r"## `\[+(.*?)\]+`", line):
            path = heading[1]
        elif (row := re.match(r"\| `(\w+)` \|", line)) and "[below](" not in line and "[as `" not in line:
            yield f"{path}.{row[1]}"


def test_each_key_of_the_reference_is_reloaded_or_named_as_waiting() -> None:
    upstream = {**WITH_ALL_TABLES["upstream"], "name": "u"}
    running = Config.model_validate({**WITH_ALL_TABLES, "upstreams": [upstream]})
    seen = set()
    for section in Config.model_fields:
        for path, value in with_other_values(getattr(running, section), section):
            wanted = running.model_copy(update={section: value})
            found = plan(running, wanted)
            shown = path.replace("listeners.", "listeners.a.", 1).replace("upstreams.", "upstreams.u.", 1)
            if path in ("listeners.name", "upstreams.name"):
                shown = f'{section}."another value"'
            table, _, key = path.rpartition(".")
            live = is_live(table, key)
            named, others = (found.applies, found.needs_restart)[:: 1 if live else -1]
            assert any(f"{shown}.".startswith(f"{each}.") for each in named), (path, named)
            assert not others, path
            assert (found.config == wanted) is live, path
            seen.add(path)
    assert seen > set(keys_of_the_page())
