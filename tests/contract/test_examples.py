"""Every example configuration loads, and full.toml with secure.toml leaves nothing out."""

import re
import tomllib
from collections.abc import Iterator
from functools import reduce
from importlib.resources import files
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

import config
from config.faults import lines, path_text
from config.loader import parse_file
from config.sections.upstream import UpstreamSettings

_OF_NAMED_UPSTREAMS: dict[str, set[str]] = {"upstreams": set(UpstreamSettings.model_fields), "upstream": {"sasl"}}
"""What [upstream] shows for all of them, and one of [[upstreams]] for it."""

EXAMPLES = sorted(
    (each for each in files("config").joinpath("examples").iterdir() if each.name.endswith(".toml")),
    key=lambda each: each.name,
)


_OF_CAPACITY = ("producer_byte_guarantee", "consumer_byte_guarantee", "weight")

_NOTED = {
    "full.toml": [
        *(f'quotas.0.{key} (user="alice", client_id="app")' for key in _OF_CAPACITY),
        'quotas.0.user (client_id="app")',
        "quotas.1.user (default_client_id=true)",
    ],  # logins are in secure.toml
    "secure.toml": ["upstreams.by-token.name", "upstreams.by-token-file.name"],  # no listener leads there
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.name)
def test_example_has_no_error_and_few_notes(example: Any) -> None:
    read = parse_file(example.read_text(encoding="utf-8"), name=example.name)
    found = config.cluster_findings(read) if isinstance(read, config.Clusters) else config.findings(read)
    assert [(each.severity, each.key) for each in found] == [
        (config.Severity.NOTE, key) for key in _NOTED.get(example.name, [])
    ]


def _text(name: str) -> str:
    return files("config").joinpath("examples", name).read_text(encoding="utf-8")


def _tables(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = document.get(name, [])
    return found if isinstance(found, list) else [found]


def _with_what_is_commented_out() -> dict[str, Any]:
    """Keys without a default are there as comments of the form ``# key = value``."""
    return tomllib.loads(re.sub(r'^# (["\w.]+ = )', r"\1", _text("full.toml"), flags=re.MULTILINE))


def _paths(table: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Of all tables in a table or an array."""
    if isinstance(table, dict):
        yield path
    for part, below in table.items() if isinstance(table, dict) else enumerate(table):
        if isinstance(below, dict | list):
            yield from _paths(below, (*path, part))


@pytest.mark.parametrize("name", ["full.toml", "secure.toml"])
def test_a_wrong_key_is_named_with_its_place_in_every_table(name: str) -> None:
    paths = list(_paths(tomllib.loads(_text(name))))
    assert len(paths) > 5
    for path in paths:
        document = tomllib.loads(_text(name))
        table = reduce(lambda found, part: found[part], path, document)
        table["client-name"] = 1
        with pytest.raises(ValidationError) as caught:
            config.Config.model_validate(document)
        assert any(
            line.startswith(f"{path_text((*path, 'client-name'), document)}: ")
            for line in lines(caught.value, config.Config, document)
        ), path


def test_values_that_are_commented_out_are_valid() -> None:
    full = config.Config.model_validate(_with_what_is_commented_out())
    assert full.connections.max_connections is not None
    assert full.connections.max_connections_per_ip_overrides
    assert full.listeners[0].max_connections is not None


def test_full_and_secure_examples_together_show_every_key() -> None:
    full, secure = _with_what_is_commented_out(), tomllib.loads(_text("secure.toml"))
    assert set(full) | set(secure) == set(config.Config.model_fields)
    for name, field in config.Config.model_fields.items():
        tables = _tables(full, name) + _tables(secure, name)
        section = next((each for each in get_args(field.annotation) if isinstance(each, type)), field.annotation)
        assert isinstance(section, type)
        assert issubclass(section, BaseModel)
        assert set().union(*tables) >= set(section.model_fields) - _OF_NAMED_UPSTREAMS.get(name, set()), name


def test_full_example_shows_the_defaults() -> None:
    full = config.parse(_text("full.toml"), name="full.toml")
    defaults = config.default_config(full.upstream.bootstrap, quotas=full.quotas)
    for name in set(config.Config.model_fields) - {"listeners", "groups"}:
        assert getattr(full, name) == getattr(defaults, name), name
    assert full.listeners[0] == defaults.listeners[0]
