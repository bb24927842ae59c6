"""The JSON Schema of the configuration file (draft 2020-12), generated from its models: for editors and pipelines.

It refuses less than the models do. Only `sluice check-config` checks rules between sections, and rules that depend on
the environment or on files. The schema refuses nothing that the models accept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from typing import Any, Final

from pydantic import BaseModel

from config.clusters import NAME, SECTION, SharedSettings
from config.descriptions import meanings, summary
from config.host_port import HostPort
from config.model import Config
from config.section_base import Section, kind_of
from config.sections.admin import AdminKey
from config.sections.fleet import FleetSettings
from config.sections.groups import GroupRule
from config.sections.listeners import ListenerSettings, ListenerTls
from config.sections.quota_store import QuotaStoreSettings
from config.sections.quotas import ENFORCED_KEYS, OTHER_SPELLINGS, QuotaRule
from config.sections.upstream import UpstreamTls
from config.sections.usage import UsageSettings
from quotas.entities import QuotaKey
from quotas.limits import GROUP_KEYS, IP_KEYS, TOPIC_KEYS
from quotas.units import Kind

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_ELSEWHERE: Final = r"\$\{"
"""The beginning of a value from the environment or from a file."""
_CLUSTER: Final = "Cluster"
_TITLES: Final = ("title", "writeOnly", "format")  # added by pydantic; they do not help in editors


def _if(key: str, values: list[str], then: dict[str, Any]) -> dict[str, Any]:
    """A rule for tables whose key has one of some values."""
    condition = {"properties": {key: {"enum": values}}, "required": [key]}
    return {"if": condition, "then": then}


def _without(key: str, of: list[str]) -> dict[str, Any]:
    """A rule: a table with the key has none of the others."""
    return {"if": {"required": [key]}, "then": {"properties": dict.fromkeys(of, False)}}


_TRUE: Final = {"const": True}
_NAMES: Final = ("user", "client_id", "ip", "topic")
_SPELLINGS: Final = {"client_id": ["client_id", "client-id"]}


def _limits(*of: Container[QuotaKey]) -> list[str]:
    """The quotas that none of the given entities can have."""
    return [str(key) for key in ENFORCED_KEYS if not any(key in each for each in of)]


def _names_of(name: str) -> list[dict[str, Any]]:
    """The ways to name a quota's entity by one of its parts."""
    named = [{"required": [each]} for each in _SPELLINGS.get(name, [name])]
    defaults = [f"default{'-' if '-' in each else '_'}{each}" for each in _SPELLINGS.get(name, [name])]
    return named + [{"required": [each], "properties": {each: _TRUE}} for each in defaults]


_RULES: Final[dict[type[Section], list[dict[str, Any]]]] = {
    AdminKey: [{"oneOf": [{"required": [each]} for each in ("token_file", "token", "certificate")]}],
    FleetSettings: [{"dependentRequired": {"previous_secret_file": ["secret_file"]}}],
    GroupRule: [{"anyOf": [{"required": [each]} for each in ("users", "client_ids", "addresses")]}],
    ListenerSettings: [
        _if("security_protocol", ["SSL", "SASL_SSL"], {"required": ["tls"]}),
        _without("sni", ["advertised_host", "first_broker_port", "lowest_broker_id", "broker_ports"]),
    ],
    ListenerTls: [
        _if("client_auth", ["requested", "required"], {"required": ["client_ca"]}),
        {"dependentRequired": {"client_ca": ["client_auth"], "client_crl": ["client_auth"]}},
    ],
    QuotaRule: [
        {"anyOf": [*(each for name in _NAMES for each in _names_of(name)), {"required": ["group"]}]},
        {"anyOf": [{"required": [each]} for each in _limits()]},
        *(
            {"not": {"allOf": [{"required": [name]}, _names_of(name)[-1]]}}
            for name in ("user", "ip", "topic")
        ),
        _without("ip", ["user", "client_id", "client-id", "topic", *_limits(IP_KEYS)]),
        _without("topic", ["ip", *_limits(TOPIC_KEYS)]),
        _without("group", ["user", "client_id", "client-id", "ip", "topic", *_limits(GROUP_KEYS)]),
    ],
    QuotaStoreSettings: [
        {"dependentRequired": {key: ["secret_file"] for key in ("previous_secret_file", "accept_unsigned")}}
    ],
    UpstreamTls: [
        {"dependentRequired": {"certificate": ["key"], "key": ["certificate"], "key_password_file": ["key"]}}
    ],
    UsageSettings: [_if("kind", ["files"], {"required": ["directory"]})],
}
"""Rules of a section that a schema can state."""


def json_schema() -> dict[str, Any]:
    """The schema of the file."""
    found = Config.model_json_schema(ref_template="#/$defs/{model}")
    defs: dict[str, Any] = found.pop("$defs")
    models = {model.__name__: model for model in _models(Config)}
    words = {name: {"type": "string", "enum": defs.pop(name)["enum"]} for name in defs.keys() - models.keys()}
    for name, each in defs.items():
        _describe(each, models[name], words)
    _describe(found, Config, words)
    properties, required = found["properties"], found["required"]
    defs[_CLUSTER] = {
        "type": "object",
        "description": "One of several Kafka clusters behind the gateway.",
        "properties": {
            "name": {
                **_text({"type": "string", "pattern": f"^{NAME.pattern}$"}, ""),
                "description": "Unique name. Metrics, logs, paths of the admin port and --cluster use it.",
            },
            **{key: each for key, each in properties.items() if key not in SharedSettings.model_fields},
        },
        "required": ["name", *required],
        "additionalProperties": False,
    }
    clusters = {
        "type": "array",
        "items": {"$ref": f"#/$defs/{_CLUSTER}"},
        "minItems": 1,
        "description": "Several Kafka clusters behind one gateway, each with the sections of a file of its own.",
    }
    others = properties.keys() - SharedSettings.model_fields.keys()
    return {
        "$schema": _DIALECT,
        "title": "Configuration of Sluice",
        "type": "object",
        "properties": {**properties, SECTION: clusters},
        "additionalProperties": False,
        "if": {"required": [SECTION]},
        "then": {"properties": dict.fromkeys(sorted(others), False)},
        "else": {"required": required},
        "$defs": dict(sorted(defs.items())),
    }


def schema_text() -> str:
    """The schema as the text of a file."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def _models(model: type[BaseModel]) -> set[type[BaseModel]]:
    found = {model}
    for field in model.model_fields.values():
        stack = [field.annotation]
        while stack:
            kind: Any = stack.pop()
            stack += getattr(kind, "__args__", ())
            if isinstance(kind, type) and issubclass(kind, Section) and kind not in found:
                found |= _models(kind)
    return found


def _describe(schema: dict[str, Any], model: type[BaseModel], words: Mapping[str, Any]) -> None:
    """Add to a model's schema the meanings of its keys, units, and values from variables and files.

    Args:
        schema: the schema of the model.
        model: the model, with the meanings.
        words: the types that are lists of words, by name.
    """
    schema.pop("title", None)
    schema["description"] = summary(model)
    texts = meanings(model)
    for key, found in schema["properties"].items():
        described = _value(found, kind_of(key), words, texts.get(key, ""))
        default = model.model_fields[key].default
        if isinstance(default, HostPort):
            described["default"] = str(default)
        elif isinstance(default, Section):
            described.pop("default", None)  # its keys have their own defaults
        schema["properties"][key] = described
    if model is QuotaRule:
        for other, key in OTHER_SPELLINGS.items():
            schema["properties"][other] = schema["properties"][key]
    if model in _RULES:
        schema["allOf"] = _RULES[model]


def _value(
    schema: Mapping[str, Any], kind: Kind | None, words: Mapping[str, Any], text: str
) -> dict[str, Any]:
    """The values of a key in a file: TOML has no null, numbers may have units, texts may contain variables."""
    found = {name: each for name, each in schema.items() if name not in _TITLES}
    if found.get("default", "") is None:
        del found["default"]
    found |= words.get(found.get("$ref", "").rpartition("/")[2], {})
    if "enum" in found:
        found.pop("$ref", None)
    choices = [each for each in found.pop("anyOf", ()) if each != {"type": "null"}]
    if len(choices) == 1:
        return {**_value(choices[0], kind, words, text), **found}
    if choices:
        return _described({**found, "anyOf": [_value(each, kind, words, text) for each in choices]}, text)
    if found.get("type") in ("integer", "number") and kind is not None:
        # One type list with a bound for numbers and a pattern for texts, so that editors show a single choice.
        return _described(
            {**found, "type": [found["type"], "string"], "pattern": f"{_units(kind)}|{_ELSEWHERE}"}, text
        )
    if found.get("type") == "array":
        return _described({**found, "items": _value(found["items"], None, words, "")}, text)
    return _text(found, text)


def _text(schema: dict[str, Any], text: str) -> dict[str, Any]:
    if "pattern" in schema:
        return _described({**schema, "pattern": f"{schema['pattern']}|{_ELSEWHERE}"}, text)
    if not schema.keys() & {"enum", "const"}:
        return _described(schema, text)
    default = {"default": schema.pop("default")} if "default" in schema else {}
    choices = [schema, {"type": "string", "pattern": _ELSEWHERE}]
    # Editors prefer the meaning of a choice to that of its key, so each choice has the key's meaning.
    return _described({**default, "anyOf": [_described(each, text) for each in choices]}, text)


def _described(schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {**schema, "description": text} if text else schema


def _units(kind: Kind) -> str:
    units = "|".join(map(re.escape, kind.units))
    return rf"^\s*[0-9][0-9_]*(\.[0-9]+)? ?({units})\s*$"
