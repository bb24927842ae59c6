"""The YAML of quotas: `sluice quotas export` writes it, `diff` and `apply` read it.

    scope: [user=team-a-*]        # optional: which entities this file is about
    quotas:
    - user: team-a-app
      client-id: loader
      producer_byte_rate: 10MiB
    - default-user: true
      request_percentage: 50%

The order is always the same, so a difference of two exports is the difference of the quotas. Errors name the line.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from config.faults import part_text, unknown_key
from gateway.cli.quota_scope import Scope, ScopeError
from quotas.entities import (
    DEFAULT,
    Default,
    EntityType,
    Family,
    Name,
    QuotaEntity,
    QuotaKey,
    counted,
    entity_of_names,
)
from quotas.limits import allowed_keys, validate, validate_entity
from quotas.units import KINDS, UnitError, amount_of, amount_text, has_unit

_NAMES: Final = {
    each: str(each)
    for each in (EntityType.USER, EntityType.CLIENT_ID, EntityType.IP, EntityType.TOPIC, EntityType.GROUP)
}

_KEYS: Final = (
    *_NAMES.values(),
    *(f"default-{name}" for name in _NAMES.values() if name != EntityType.GROUP),
    *QuotaKey,
)
"""The keys of an entry."""

_OTHER_SPELLINGS: Final = {
    "client_id": "client-id",
    "default_client_id": "default-client-id",
    **{f"default_{name}": f"default-{name}" for name in _NAMES.values() if "-" not in name},
}
"""Spellings that are read too, because [[quotas]] of the configuration has them."""

_FAMILIES: Final = (
    Family.USER,
    Family.USER_CLIENT,
    Family.CLIENT,
    Family.IP,
    Family.TOPIC,
    Family.USER_TOPIC,
    Family.CLIENT_TOPIC,
    Family.GROUP,
)

# With libyaml, if it is installed: ten times as fast.
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Final[Any] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class QuotaTextError(Exception):
    """The text can't be used.

    Attributes:
        lines: one per fault.
    """

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


@dataclass(frozen=True, slots=True)
class QuotaText:
    """The content of a text.

    Attributes:
        quotas: by entity and key.
        lines: the line of each entity.
        scope: the entities that the file is about; None: it has no scope.
        notes: suggestions for a better form; these are no faults.
    """

    quotas: dict[tuple[QuotaEntity, QuotaKey], float] = field(default_factory=dict)
    lines: dict[QuotaEntity, int] = field(default_factory=dict)
    scope: Scope | None = None
    notes: list[str] = field(default_factory=list)


class _Row(dict[Hashable, Any]):
    """A mapping with the lines in which it and each of its keys begin."""

    line = 0
    lines: dict[str, int]

    def line_of(self, key: object) -> int:
        return self.lines.get(str(key), self.line)


class _Loader(_LOADER):  # type: ignore[misc]
    """A loader that refuses duplicate keys, of which YAML would take the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node.value, str):
                raise yaml.constructor.ConstructorError(None, None, "a key is no text", key_node.start_mark)
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key_node.value} is given twice", key_node.start_mark
                )
            seen.add(key_node.value)
        found: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return found

    def construct_row(self, node: Any) -> _Row:
        row = _Row(self.construct_mapping(node, deep=True))
        row.line = node.start_mark.line + 1
        row.lines = {key.value: key.start_mark.line + 1 for key, _ in node.value}
        return row


_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.construct_row)


def to_text(items: Iterable[tuple[QuotaEntity, QuotaKey, float]]) -> str:
    """The text of some quotas."""
    by_entity: dict[QuotaEntity, dict[QuotaKey, float]] = {}
    for entity, key, value in items:
        by_entity.setdefault(entity, {})[key] = value
    rows = []
    for entity in sorted(by_entity, key=_order):
        row: dict[str, Any] = {}
        for entity_type, name in entity.components():
            if isinstance(name, Default):
                row[f"default-{_NAMES[entity_type]}"] = True
            else:
                row[_NAMES[entity_type]] = name
        values = by_entity[entity]
        row |= {key.value: _amount(key, values[key]) for key in QuotaKey if key in values}
        rows.append(row)
    text: str = yaml.dump(
        {"quotas": rows},
        Dumper=_DUMPER,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=10**6,
    )
    return text


def from_text(text: str) -> QuotaText:
    """The content of a text.

    Raises:
        QuotaTextError: the text is not valid; the error has all faults with their places.
    """
    try:
        document = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as exc:
        raise QuotaTextError([f"not YAML: {_yaml_fault(exc)}"]) from exc
    if not isinstance(document, _Row):
        raise QuotaTextError(["has to be one list under the key quotas"])
    faults = [
        f"line {document.line_of(key)}: {part_text(str(key))}: {unknown_key(str(key), ('quotas', 'scope'))}"
        for key in document
        if key not in ("quotas", "scope")
    ]
    if not faults and not isinstance(document.get("quotas"), list):
        faults.append("has to be one list under the key quotas")
    if faults:
        raise QuotaTextError(faults)
    return _Reading(document).read()


def _yaml_fault(exc: Exception) -> str:
    """YAML's error in one line, with the place but without YAML's name for a text that is no file."""
    return " ".join(str(exc).split()).replace(' in "<unicode string>", line', " at line")


class _Reading:
    """Reads a document entry by entry, and collects faults."""

    def __init__(self, document: _Row) -> None:
        self._document = document
        self._quotas: dict[tuple[QuotaEntity, QuotaKey], float] = {}
        self._lines: dict[QuotaEntity, int] = {}
        self._places: dict[QuotaEntity, str] = {}
        self._faults: list[str] = []
        self._spelled: dict[str, list[int]] = {}

    def read(self) -> QuotaText:
        for at, row in enumerate(self._document["quotas"]):
            self._read_row(f"quotas.{at}", row)
        scope = self._scope() if "scope" in self._document else None
        if scope is not None:
            self._faults += outside(scope, self._lines)
        if self._faults:
            raise QuotaTextError(self._faults)
        notes = [
            f"line {lines[0]}: {_OTHER_SPELLINGS[key]} is the preferred spelling of {key}"
            + (f" (also in {counted(len(lines) - 1, 'other line')})" if len(lines) > 1 else "")
            for key, lines in self._spelled.items()
        ]
        return QuotaText(self._quotas, self._lines, scope, notes)

    def _scope(self) -> Scope | None:
        given, place = self._document["scope"], f"line {self._document.line_of('scope')}: scope"
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not texts or not all(isinstance(each, str) for each in texts):
            self._faults.append(f"{place}: has to be a list of entities, such as [user=team-a-*]")
            return None
        try:
            return Scope.of(texts)
        except ScopeError as exc:
            self._faults.append(f"{place}: {exc}")
            return None

    def _read_row(self, place: str, row: Any) -> None:
        if not isinstance(row, _Row):
            self._faults.append(f"{place}: has to be a mapping")
            return
        at = f"line {row.line}: {place}"
        before = len(self._faults)
        given = {self._preferred(row, place, key): value for key, value in row.items()}
        if len(self._faults) > before:
            return
        try:
            entity = _entity(given)
            if not given:
                raise ValueError("limits nothing")
            if (first := self._places.setdefault(entity, place)) != place:
                raise ValueError(
                    f"{entity} is in line {self._lines[entity]} already ({first}); give all its quotas there"
                )
            self._lines[entity] = row.line
        except ValueError as exc:
            self._faults.append(f"{at}: {exc}")
            return
        for key, value in given.items():
            try:
                self._quotas[entity, QuotaKey(key)] = _limit(entity, key, value)
            except ValueError as exc:
                self._faults.append(f"line {row.line_of(key)}: {place}.{key}: {exc}")

    def _preferred(self, row: _Row, place: str, key: Hashable) -> str:
        at = f"line {row.line_of(key)}: {place}.{part_text(str(key))}"
        if key in _KEYS:
            return str(key)
        preferred = _OTHER_SPELLINGS.get(str(key))
        if preferred is None:
            self._faults.append(f"{at}: {unknown_key(str(key), _KEYS)}")
            return ""
        if preferred in row:
            self._faults.append(f"{at}: is the same as {preferred}; give one of them")
        if EntityType.CLIENT_ID in preferred:
            self._spelled.setdefault(str(key), []).append(row.line_of(key))
        return preferred


def outside(scope: Scope, lines: Mapping[QuotaEntity, int]) -> list[str]:
    """A line for each entity of a text that a scope does not cover."""
    return [
        f"line {line}: {entity} is outside the scope, which is {scope}"
        for entity, line in lines.items()
        if not scope.covers(entity)
    ]


def key_fault(entity: QuotaEntity, key: str) -> str | None:
    """Why a valid entity cannot have this quota, and which ones it can have; None: it can."""
    allowed = [each for each in QuotaKey if each in allowed_keys(entity)]
    if key in allowed:
        return None
    if key not in list(QuotaKey):
        return unknown_key(key, allowed)
    return f"{entity} has no such quota; give {' or '.join(allowed)}"


def limit_of(key: QuotaKey, text: str) -> float:
    """The limit in a text, a number alone or with a unit.

    Raises:
        ValueError: the text is something else; the message lists the allowed forms.
    """
    if has_unit(text):
        try:
            return float(amount_of(text, KINDS[key]))
        except UnitError as exc:
            raise ValueError(f"{text!r} {exc}") from None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text[:100]!r} is no number; give {KINDS[key].allowed}") from None


def _entity(given: dict[str, Any]) -> QuotaEntity:
    """The entity of an entry; removes its names from the entry."""
    names: dict[EntityType, Name | None] = {}
    for entity_type, key in _NAMES.items():
        empty = key in given and given[key] is None
        name, default = given.pop(key, None), given.pop(f"default-{key}", None)
        if default is not None and default is not True:
            raise ValueError(f"default-{key} has to be true or left out")
        if name is not None and not isinstance(name, str):
            raise ValueError(f"{key}: {_shown(name)} is no text; put it in quotes")
        if empty:
            raise ValueError(f"{key} is empty; the default is default-{key}: true")
        if name is not None and default:
            raise ValueError(f"give {key} or default-{key}, not both")
        names[entity_type] = DEFAULT if default else name
    entity = entity_of_names(names)
    if not any(entity.components()):
        raise ValueError(f"names no entity; give {', '.join(_KEYS[: len(_NAMES)])} or one of their defaults")
    if (fault := validate_entity(entity)) is not None:
        raise ValueError(f"{entity}: {fault}")
    return entity


def _limit(entity: QuotaEntity, key: str, value: Any) -> float:
    if (fault := key_fault(entity, key)) is not None:
        raise ValueError(fault)
    if isinstance(value, str) and has_unit(value):
        limit = limit_of(QuotaKey(key), value)
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        allowed = f"; give {KINDS[QuotaKey(key)].allowed}" if isinstance(value, str) else ""
        raise ValueError(f"{_shown(value)} is no number{_number_hint(value) or allowed}")
    else:
        try:
            limit = float(value)
        except OverflowError:
            raise ValueError("the number is too large") from None
    if (fault := validate(entity, key, limit)) is not None:
        raise ValueError(f"{fault}; to set no quota, leave the key out" if limit <= 0 else fault)
    return limit


def _shown(value: Any) -> str:
    # Nested aliases could make a text of unlimited length.
    return f"a {type(value).__name__}" if isinstance(value, (dict, list, set, tuple)) else repr(value)[:100]


def _number_hint(value: Any) -> str:
    """How to write a text that people read as a number; YAML reads 1e6 as a text."""
    if not isinstance(value, str):
        return ""
    try:
        limit = float(value)
    except ValueError:
        return ""
    if not math.isfinite(limit):
        return ""
    in_quotes = isinstance(yaml.load(value, Loader=_LOADER), int | float)
    return f"; write {_number(limit)}{', without quotes' if in_quotes else ''}"


def _order(entity: QuotaEntity) -> tuple[int, *tuple[tuple[int, str], ...]]:
    """A sort key: users, pairs, client ids, addresses, topics; each sorted by name, with the default last."""
    family = entity.family
    return (
        -1 if family is None else list(_FAMILIES).index(family),
        *(
            (0, "") if name is None else (2, "") if isinstance(name, Default) else (1, name)
            for name in (entity.user, entity.client_id, entity.ip, entity.topic)
        ),
    )


def _amount(key: QuotaKey, value: float) -> str | int | float:
    text = amount_text(key, value)
    return text if has_unit(text) else _number(value)


def _number(value: float) -> int | float:
    # 0.1 stays 0.1; whole numbers are written without a fraction, because byte rates are whole.
    return int(value) if value.is_integer() and abs(value) < 2**63 else value
