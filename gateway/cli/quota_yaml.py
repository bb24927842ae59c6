"""The YAML of quotas: `sluice quotas export` writes it, `import` reads it.

    quotas:
    - user: alice
      client_id: app
      producer_byte_rate: 1048576
    - default_user: true
      request_percentage: 50.0

The keys are those of [[quotas]] in the configuration file. The order is always the same, so a difference of two
exports is the difference of the quotas.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Any, Final

import yaml

from config.faults import part_text, unknown_key
from config.value_hints import number_hint
from quotas.entities import DEFAULT, Default, EntityType, Family, Name, QuotaEntity, QuotaKey
from quotas.limits import allowed_keys, validate, validate_entity

_NAMES: Final = {
    EntityType.USER: "user",
    EntityType.CLIENT_ID: "client_id",
    EntityType.IP: "ip",
    EntityType.TOPIC: "topic",
}

_KEYS: Final = (*_NAMES.values(), *(f"default_{name}" for name in _NAMES.values()), *QuotaKey)
"""Those of an entry."""

_FAMILIES: Final = (
    Family.USER,
    Family.USER_CLIENT,
    Family.CLIENT,
    Family.IP,
    Family.TOPIC,
    Family.USER_TOPIC,
    Family.CLIENT_TOPIC,
)

# libyaml where there is one: ten times as fast.
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


class _Loader(_LOADER):  # type: ignore[misc]
    """No key twice, of which YAML would take the last."""

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
                row[f"default_{_NAMES[entity_type]}"] = True
            else:
                row[_NAMES[entity_type]] = name
        values = by_entity[entity]
        row |= {key.value: _number(values[key]) for key in QuotaKey if key in values}
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


def from_text(text: str) -> dict[tuple[QuotaEntity, QuotaKey], float]:
    """The quotas of a text.

    Raises:
        QuotaTextError: it is not valid; all faults are in the text, with their places.
    """
    try:
        document = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as exc:
        raise QuotaTextError([f"not YAML: {' '.join(str(exc).split())}"]) from exc
    wrong = [key for key in document if key != "quotas"] if isinstance(document, dict) else []
    if wrong:
        raise QuotaTextError([f"{part_text(wrong[0])}: unknown key; has to be one list under the key quotas"])
    if not isinstance(document, dict) or not isinstance(document.get("quotas"), list):
        raise QuotaTextError(["has to be one list under the key quotas"])
    found: dict[tuple[QuotaEntity, QuotaKey], float] = {}
    faults: list[str] = []
    for at, row in enumerate(document["quotas"]):
        try:
            for key, value in _row(row):
                if key in found:
                    raise ValueError(f"{key[0]} has {key[1]} from an entry before")
                found[key] = value
        except ValueError as exc:
            faults.append(f"quotas.{at}: {exc}")
    if faults:
        raise QuotaTextError(faults)
    return found


def key_fault(entity: QuotaEntity, key: str) -> str | None:
    """Why a valid entity can not have this quota, and which it can; None: it can."""
    allowed = [each for each in QuotaKey if each in allowed_keys(entity)]
    if key in allowed:
        return None
    if key not in list(QuotaKey):
        return unknown_key(key, allowed)
    return f"{entity} has no such quota; give {' or '.join(allowed)}"


def _row(row: Any) -> Iterable[tuple[tuple[QuotaEntity, QuotaKey], float]]:
    if not isinstance(row, dict):
        raise ValueError("has to be a mapping")
    for key in row:
        if key not in _KEYS:
            raise ValueError(f"{part_text(key)}: {unknown_key(str(key), _KEYS)}")
    rest = dict(row)
    names: dict[EntityType, Name | None] = {}
    for entity_type, key in _NAMES.items():
        name, default = rest.pop(key, None), rest.pop(f"default_{key}", None)
        if default is not None and default is not True:
            raise ValueError(f"default_{key} has to be true or left out")
        if name is not None and not isinstance(name, str):
            raise ValueError(f"{key}: {_shown(name)} is no text; put it in quotes")
        if key in row and name is None:
            raise ValueError(f"{key} is empty; the default is default_{key}: true")
        if name is not None and default:
            raise ValueError(f"give {key} or default_{key}, not both")
        names[entity_type] = DEFAULT if default else name
    entity = QuotaEntity(*(names[each] for each in _NAMES))
    if not rest:
        raise ValueError("limits nothing")
    for key, value in rest.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{key}: {_shown(value)} is no number{_number_hint(value)}")
        if validate_entity(entity) is None and (fault := key_fault(entity, key)) is not None:
            raise ValueError(f"{key}: {fault}")
        if (fault := validate(entity, str(key), _float(key, value))) is not None:
            raise ValueError(f"{entity}: {fault}")
        yield (entity, QuotaKey(key)), float(value)


def _shown(value: Any) -> str:
    # A few aliases inside each other are a text without end.
    return f"a {type(value).__name__}" if isinstance(value, (dict, list, set, tuple)) else repr(value)[:100]


def _number_hint(value: Any) -> str:
    """How to write a text that is a number to people; YAML takes 1e6 for a text."""
    if not isinstance(value, str):
        return ""
    try:
        limit = float(value)
    except ValueError:
        return number_hint(value)
    if not math.isfinite(limit):
        return ""
    in_quotes = isinstance(yaml.load(value, Loader=_LOADER), int | float)
    return f"; write {_number(limit)}{', without quotes' if in_quotes else ''}"


def _float(key: Any, value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{key}: the number is too large") from None


def _order(entity: QuotaEntity) -> tuple[int, *tuple[tuple[int, str], ...]]:
    """Users, pairs, client ids, addresses, topics; names in their order, a default behind them."""
    family = entity.family
    return (
        -1 if family is None else list(_FAMILIES).index(family),
        *(
            (0, "") if name is None else (2, "") if isinstance(name, Default) else (1, name)
            for name in (entity.user, entity.client_id, entity.ip, entity.topic)
        ),
    )


def _number(value: float) -> int | float:
    # 0.1 stays 0.1; whole numbers are what byte rates are.
    return int(value) if value.is_integer() and abs(value) < 2**63 else value
