from __future__ import annotations

import pytest
from pydantic import ValidationError

import config
from config.connection_sections import ConnectionSettings
from quotas.connections import AfterHold

HEAD = '[upstream]\nbootstrap = ["k:1"]\n[[listeners]]\nname = "a"\nbind = "127.0.0.1:19092"\n'
SECOND = '[[listeners]]\nname = "b"\nbind = "127.0.0.1:29092"\n'


def test_nothing_is_limited_and_kafkas_way_is_taken_by_default() -> None:
    settings = ConnectionSettings()
    assert settings.max_connections is None
    assert settings.max_connections_per_ip is None
    assert settings.max_connection_creation_rate is None
    assert settings.after_hold is AfterHold.CLOSE
    assert settings.failed_authentication_delay_ms == 100


def test_overrides_are_by_the_one_name_of_each_address() -> None:
    given = {"::ffff:10.0.0.1": 3, "2001:DB8::1": 0}
    settings = ConnectionSettings.model_validate({"max_connections_per_ip_overrides": given})
    assert settings.max_connections_per_ip_overrides == {"10.0.0.1": 3, "2001:db8::1": 0}


@pytest.mark.parametrize("value", [0, -1, 2**31, 1.0, "5", True])
def test_rates_are_positive_whole_numbers(value: object) -> None:
    for key in ("max_connections", "max_connection_creation_rate"):
        with pytest.raises(ValidationError):
            ConnectionSettings.model_validate({key: value})


def test_nobody_but_the_overrides_may_be_let_in() -> None:
    assert ConnectionSettings(max_connections_per_ip=0).max_connections_per_ip == 0


def test_at_most_one_listener_is_protected() -> None:
    with pytest.raises(config.ConfigError) as caught:
        config.parse(f"{HEAD}protected = true\n{SECOND}protected = true\n", name="f")
    assert caught.value.lines == ["f: listeners.1.protected: listeners.0 is; only one can be"]


def test_a_protected_listener_on_its_own_is_warned_about() -> None:
    assert config.parse(f"{HEAD}protected = true\n", name="f").warnings() == [
        "listeners.0.protected: without effect, since there is no other listener"
    ]
    assert config.parse(f"{HEAD}protected = true\n{SECOND}", name="f").warnings() == []


def test_two_spellings_of_one_address_are_one_quota() -> None:
    rows = "".join(
        f'[[quotas]]\nip = "{ip}"\nconnection_creation_rate = 1\n' for ip in ("10.0.0.1", "::ffff:10.0.0.1")
    )
    with pytest.raises(config.ConfigError, match="has this quota from"):
        config.parse(HEAD + rows, name="f")
