"""Validation errors as text: key path, value, and the allowed values.

Allowed values are read from the models, so a range is written down in one place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from config.section_base import FAULTS, Key, kind_of
from config.sections.quotas import ENFORCED_KEYS, QuotaRule
from config.value_hints import number_hint
from quotas.entities import QuotaKey
from quotas.units import UnitError, amount_of, has_unit

_KEYS: Final = ("admin", "keys")
_NAMED: Final = ("listeners", "upstreams")
_NAMES_OF_QUOTAS: Final = (
    *(
        name
        for each in ("user", "client_id", "client-id", "ip", "topic")
        for name in (each, f"default{'-' if '-' in each else '_'}{each}")
    ),
    "group",
)
_UNIONS: Final = (Union, UnionType)
# The part between the slashes of a URL and its host, in a value that is shown as JSON.
_LOGIN_IN_URL: Final = re.compile(r"(?<=//).*@")
_MAX_VALUE_CHARS: Final = 80  # with its key this is one or two lines of a terminal


def lines(
    error: ValidationError, model: type[BaseModel], data: object, *, hidden: Collection[Key] = ()
) -> list[str]:
    """One line per fault, in the order of the file's sections, without the file's name.

    Args:
        error: the error of validating `model`.
        model: the model, with the ranges and the known keys.
        data: the validated data, with the names of listeners and upstreams.
        hidden: keys whose values must not be shown, not even in part.
    """
    details = [
        each for each in error.errors(include_url=False) if each["type"] != "default_factory_not_called"
    ]
    found: dict[str, None] = {}  # a set that keeps the order
    for each in details:
        if each["type"] == "too_short" and any(_inside(other["loc"], each["loc"]) for other in details):
            continue  # only "too short" because its items are faulty
        for key, text in _texts(each, model, hidden):
            found[f"{path_text(key, data)}: {text}" if key else text] = None
    return list(found)


def _inside(inner: Key, outer: Key) -> bool:
    return len(inner) > len(outer) and inner[: len(outer)] == outer


def _texts(error: ErrorDetails, model: type[BaseModel], hidden: Collection[Key]) -> Iterator[tuple[Key, str]]:
    key: Key = error["loc"]
    from_file = any(key[:length] in hidden for length in range(len(key) + 1))
    if key[-1:] == ("[key]",) and error["type"] == "value_error":
        key = key[:-1]  # the key of a table is the fault, and is named just before
    context: dict[str, Any] = error.get("ctx", {})
    if error["type"] == FAULTS:
        for inner, text in context["faults"]:
            yield (*key, *inner), text
    elif error["type"] == "missing":
        yield key, "required, but missing"
    elif error["type"] == "extra_forbidden":
        yield key, _unknown(str(key[-1]), _found_at(model, key[:-1])[0])
    elif error["type"] == "value_error" and from_file:
        yield key, "the value, which is from a file, cannot be used here"
    elif error["type"] == "value_error":
        yield key, f"{_shown(key, error['input'])} {context['error']}"
    else:
        kind, metadata, depth = _found_at(model, key)
        value = error["input"]
        number = kind in (int, float) and isinstance(value, str) and not from_file
        hint = _hint(str(key[depth - 1]), value) if number else _hint_of_shape(key[:depth], kind, value)
        shown = "the value, which is from a file," if from_file else _shown(key, value)
        yield key[:depth], f"{shown} is not {_allowed(kind, metadata, value)}{hint}"


def _shown(key: Key, value: object) -> str:
    """A value, unless it may be a secret: a token may be in the wrong place of its table."""
    return "the value" if key[: len(_KEYS)] == _KEYS else value_text(value)


def _hint_of_shape(key: Key, kind: Any, value: object) -> str:
    """A hint for a table that must be one of several, or for a quota that would limit nothing."""
    if isinstance(value, dict) and get_origin(kind) is tuple and _is_model(kind):
        return f"; write [[{'.'.join(str(part) for part in key if isinstance(part, str))}]]"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return ""
    return "; to set no quota, leave the key out" if key[:1] == ("quotas",) and value <= 0 else ""


def _is_model(kind: Any) -> bool:
    """Whether the items of an array are tables."""
    item, _ = _bare(get_args(kind)[0], [])
    return isinstance(item, type) and issubclass(item, BaseModel)


def _hint(key: str, text: str) -> str:
    """A hint how to write a number that was given as a text."""
    kind = kind_of(key)
    if kind is None or not has_unit(text):
        return number_hint(text)
    try:
        amount_of(text, kind)
    except UnitError as exc:
        return f"; it {exc}"
    return ""


def path_text(key: Key, data: object) -> str:
    """The path of a key in a form that may be shown.

    A listener or an upstream is shown by its name, if no other has the same. A quota is shown with its entity.

    Args:
        key: the key's path.
        data: the tables of a file, or a `Config`, that contain the key.
    """
    parts = [part_text(part) for part in key]
    if len(key) > 1 and key[0] in _NAMED and isinstance(key[1], int):
        names = [_member(item, "name") for item in _member(data, str(key[0]))]
        name = names[key[1]]
        if isinstance(name, str) and name and names.count(name) == 1:
            parts[1] = part_text(name)
    if len(key) > 1 and key[0] == "quotas" and isinstance(key[1], int):
        rule = _member(data, "quotas")[key[1]]
        given = {name: _member(rule, name) for name in _NAMES_OF_QUOTAS if name not in key}
        texts = [
            f"{name}={value_text(value)}"
            for name, value in given.items()
            if isinstance(value, str) or value is True
        ]
        parts[-1] += f" ({', '.join(texts)})" if texts else ""
    return ".".join(parts)


def _member(of: Any, name: str) -> Any:
    return of.get(name) if isinstance(of, Mapping) else getattr(of, name, None)


def part_text(part: str | int) -> str:
    """A part of a key's path in a form that may be shown."""
    bare = str(part)
    # Unknown keys are the operator's own words and may contain any characters.
    return bare if bare.replace("_", "").replace("-", "").isalnum() and bare.isascii() else value_text(bare)


def value_text(value: object) -> str:
    """A value in a form that may be shown: escaped, without the password of a URL, and at most a line long."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, (list, tuple)):
        return "an array" if value else "an empty array"
    if isinstance(value, (bool, str)):
        text = _LOGIN_IN_URL.sub("***@", json.dumps(value))
    else:
        text = str(value)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}..."


def allowed(model: type[BaseModel], key: Key) -> str:
    """The allowed values of a key, in the words of the errors.

    Args:
        model: the model that has the key.
        key: the key's path below `model`.
    """
    kind, metadata, _ = _found_at(model, key)
    return _allowed(kind, metadata, None)


def _unknown(name: str, parent: Any) -> str:
    known = list(parent.model_fields) if isinstance(parent, type) and issubclass(parent, BaseModel) else []
    if parent is QuotaRule and name in list(QuotaKey):
        return f"this version does not enforce it; known quotas: {', '.join(ENFORCED_KEYS)}"
    return unknown_key(name, known)


def unknown_key(name: str, known: Sequence[str]) -> str:
    """The fault text of a key that does not exist, with the keys that do."""
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}"
    return f"unknown key; {hint}"


def _found_at(model: type[BaseModel], key: Key) -> tuple[Any, list[Any], int]:
    """The type of a key, its constraints, and the number of the key's parts that are in the file.

    A value that may have several types has a fault for each of them. The last part of that key is the type's name.
    """
    kind: Any = model
    metadata: list[Any] = []
    for depth, part in enumerate(key):
        if get_origin(kind) in _UNIONS:
            return kind, metadata, depth
        if get_origin(kind) is Mapping:
            kind, metadata = _bare(get_args(kind)[1], [])
        elif isinstance(part, int):
            kind, metadata = _bare(get_args(kind)[0], [])
        else:
            field = kind.model_fields[part]
            kind, metadata = _bare(field.annotation, list(field.metadata))
    return kind, metadata, len(key)


def _bare(kind: Any, metadata: list[Any]) -> tuple[Any, list[Any]]:
    if get_origin(kind) is Annotated:
        inner, *more = get_args(kind)
        for each in more:
            metadata.extend(getattr(each, "metadata", [each]))
        return _bare(inner, metadata)
    if get_origin(kind) in _UNIONS:
        some = [each for each in get_args(kind) if each is not NoneType]
        return _bare(some[0], metadata) if len(some) == 1 else (kind, metadata)
    return kind, metadata


def _allowed(kind: Any, metadata: list[Any], value: object) -> str:
    def bound(name: str) -> Any:
        return next((getattr(each, name) for each in metadata if hasattr(each, name)), None)

    if get_origin(kind) in _UNIONS:
        return " or ".join(
            _allowed(*_bare(each, []), None) for each in get_args(kind) if each is not NoneType
        )
    if get_origin(kind) is Literal:
        names = [f'"{choice}"' for choice in get_args(kind)]
        return names[0] if len(names) == 1 else "one of " + ", ".join(names)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(f'"{choice.value}"' for choice in kind)
    if kind is int:
        span = f"in {bound('ge')}..{bound('le')}"
        return span if isinstance(value, int) and not isinstance(value, bool) else f"a whole number {span}"
    if kind is float:
        return f"a finite number > {bound('gt')}"
    if kind is bool:
        return "true or false"
    if kind in (str, SecretStr):
        return _allowed_text(bound("pattern"), bound("min_length"))
    if get_origin(kind) is tuple:
        return "an array with at least one item" if bound("min_length") else "an array"
    return "a table"


def _allowed_text(pattern: str | None, min_length: int | None) -> str:
    if pattern is not None:
        return f"a string that matches {pattern}"
    return "a string of at least one character" if min_length else "a string"
