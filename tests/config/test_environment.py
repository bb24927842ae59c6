"""Variables of the environment in a configuration."""

from pathlib import Path

import pytest

from config import ConfigError, Source, parse

FILE = """
[upstream]
bootstrap = ["k:1", "${HOST}:${PORT}"]
[[listeners]]
name = "a"
bind = "127.0.0.1:19092"
advertised_host = "${POD}.sluice"
[fleet]
member = "${POD}"
"""
ENVIRONMENT = {"HOST": "kafka", "PORT": "9092", "POD": "sluice-0"}


def test_variables_are_replaced_in_strings_and_in_arrays() -> None:
    found = parse(FILE, name="f", environment=ENVIRONMENT)
    assert [str(each) for each in found.upstream.bootstrap] == ["k:1", "kafka:9092"]
    assert found.listeners[0].advertised_host == "sluice-0.sluice"
    assert found.fleet.member == "sluice-0"


def test_every_missing_variable_is_a_fault_with_its_key() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(FILE, name="f", environment={"PORT": "9092"})
    hint = "; write $${ for the text ${"
    assert caught.value.lines == [
        f"f:3: upstream.bootstrap.1: the environment has no variable HOST{hint}",
        f"f:7: listeners.a.advertised_host: the environment has no variable POD{hint}",
        f"f:9: fleet.member: the environment has no variable POD{hint}",
    ]


@pytest.mark.parametrize("text", ["${}", "${1A}", "${A", "${A-b}", "${ A}", "a${"])
def test_what_only_begins_like_a_variable_is_a_fault(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(FILE.replace("${POD}.sluice", text), name="f", environment=ENVIRONMENT | {"A": "a"})
    assert caught.value.lines == [
        "f:7: listeners.a.advertised_host: ${ begins no ${NAME} and no ${file:/PATH}; write $${ for the text ${"
    ]


@pytest.mark.parametrize(
    ("written", "read"),
    [("$${POD}", "${POD}"), ("a$", "a$"), ("$1/$$", "$1/$$"), ("$POD", "$POD"), ("$$${POD}", "$${POD}")],
)
def test_a_dollar_before_anything_else_is_a_dollar(written: str, read: str) -> None:
    quota = f'[[quotas]]\nuser = "{written}"\nproducer_byte_rate = 1\n'
    found = parse(FILE + quota, name="f", environment=ENVIRONMENT)
    assert found.quotas[0].user == read


def test_a_value_is_one_string_whatever_is_in_it() -> None:
    hostile = '${HOST}"\nproducer_byte_rate = 1e9\n[admin]\nremote_changes = true\n#'
    quota = '[[quotas]]\nuser = "${USER}"\nproducer_byte_rate = 1\n'
    found = parse(FILE + quota, name="f", environment=ENVIRONMENT | {"USER": hostile})
    assert found.quotas[0].user == hostile
    assert found.quotas[0].producer_byte_rate == 1
    assert not found.admin.remote_changes


def test_a_variable_is_never_a_number_or_a_key() -> None:
    with pytest.raises(ConfigError, match="broker_ports"):
        parse(
            FILE.replace('name = "a"', 'name = "a"\nbroker_ports = "${N}"'),
            name="f",
            environment={"N": "3"} | ENVIRONMENT,
        )
    with pytest.raises(ConfigError, match="unknown key"):
        parse(FILE + '"${KEY}" = 1\n', name="f", environment={"KEY": "topic"} | ENVIRONMENT)


def test_variables_lists_keys_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "sluice.toml"
    file.write_text(FILE)
    assert Source(file).variables == [
        ("upstream.bootstrap.1", "HOST"),
        ("upstream.bootstrap.1", "PORT"),
        ("listeners.a.advertised_host", "POD"),
        ("fleet.member", "POD"),
    ]
