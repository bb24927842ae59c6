"""The JSON of quotas on the admin port. An entity is a list; a null name is the default."""

from __future__ import annotations

from typing import Any, Final

from gateway.quota_admin.store.interface import HistoryEntry
from quotas.entities import DEFAULT, Default, EntityType, Name, QuotaEntity, QuotaKey, entity_of_names
from quotas.layered_quotas import QuotaChange
from quotas.limits import validate, validate_entity

BROKER: Final = "broker"
"""The entity type of brokers' limits in the history."""

MAX_FAULTS: Final = 100
MAX_FAULT_CHARS: Final = 500


def slot_entity_json(entity: QuotaEntity | None) -> list[dict[str, str | None]]:
    """The entity of a slot as JSON. Without an entity it is all brokers, with the name null like other defaults."""
    return [{"type": BROKER, "name": None}] if entity is None else entity_json(entity)


def entity_json(entity: QuotaEntity) -> list[dict[str, str | None]]:
    """An entity as JSON, in its form on the wire."""
    return [
        {"type": entity_type.value, "name": None if isinstance(name, Default) else name}
        for entity_type, name in entity.components()
    ]


def entity_of(value: Any) -> QuotaEntity:
    """The entity of JSON that `entity_json` has written; not yet checked by `validate`.

    Raises:
        ValueError: the JSON has another form.
    """
    names: dict[EntityType, Name] = {}
    try:
        for part in value:
            entity_type, name = EntityType(part["type"]), part["name"]
            if entity_type in names or not (name is None or isinstance(name, str)):
                raise ValueError(f"{entity_type} is given twice, or its name is no text")
            names[entity_type] = DEFAULT if name is None else name
    except (TypeError, KeyError) as exc:
        raise ValueError("an entity is a list of objects with type and name") from exc
    return entity_of_names(names)


def change_json(change: QuotaChange, old: float | None) -> dict[str, Any]:
    """A change and the value that it replaces."""
    return {
        "entity": entity_json(change.entity),
        "quota": change.key.value,
        "old": _float(old),
        "new": _float(change.value),
    }


def history_json(entry: HistoryEntry) -> dict[str, Any]:
    """A line of the history."""
    return {
        "version": entry.version,
        "at_ms": entry.at_ms,
        "by": entry.by,
        "via": entry.via,
        "entity": slot_entity_json(entry.entity),
        "quota": str(entry.key),
        "old": _value(entry.old),
        "new": _value(entry.new),
    }


class QuotaRows:
    """Reads quotas one by one.

    Attributes:
        found: the valid quotas.
        faults: a line for each of the first that are not.
        fault_count: how many are not.
        removed: the quotas to remove.
        expected: the values that some of them must replace; None: no value.
    """

    def __init__(self, *, removals: bool = False) -> None:
        """Args: removals: whether a limit may be null, which removes the quota."""
        self.removed: set[tuple[QuotaEntity, QuotaKey]] = set()
        self.expected: dict[tuple[QuotaEntity | None, str], float | None] = {}
        self._removals = removals
        self.found: dict[tuple[QuotaEntity, QuotaKey], float] = {}
        self.faults: list[str] = []
        self.fault_count = 0
        self._count = 0

    def add(self, row: Any) -> None:
        """Read the next row of a client: ``{"entity": ..., "quota": ..., "limit": ...}``."""
        at, self._count = self._count, self._count + 1
        try:
            entity, key, limit = entity_of(row["entity"]), row["quota"], row["limit"]
            if limit is None and self._removals:
                self._remove(entity, key)
                self._expect(entity, key, row)
                return
            if isinstance(limit, bool) or not isinstance(limit, (int, float)):
                raise ValueError(f"{key} is no number")
            if (fault := validate(entity, key, float(limit))) is not None:
                raise ValueError(f"{entity}: {fault}")
            if (entity, QuotaKey(key)) in self.found:
                raise ValueError(f"{entity} has {key} twice")
            self.found[entity, QuotaKey(key)] = float(limit)
            self._expect(entity, key, row)
        except (TypeError, KeyError) as exc:
            self.add_fault(at, f"needs entity, quota and limit ({exc})")
        except (ValueError, OverflowError) as exc:
            self.add_fault(at, str(exc))

    def _expect(self, entity: QuotaEntity, key: str, row: Any) -> None:
        if "expected" in row:
            expected = row["expected"]
            if expected is not None and (
                isinstance(expected, bool) or not isinstance(expected, (int, float))
            ):
                raise ValueError(f"expected of {key} is no number")
            self.expected[entity, QuotaKey(key)] = _float(expected)

    def _remove(self, entity: QuotaEntity, key: str) -> None:
        if (fault := validate_entity(entity)) is not None:
            raise ValueError(f"{entity}: {fault}")
        self.removed.add((entity, QuotaKey(key)))

    def add_fault(self, at: int, text: str) -> None:
        """Add the fault of a row, by its position."""
        self.fault_count += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(f"quotas.{at}: {text[:MAX_FAULT_CHARS]}")


def quotas_of(value: Any) -> tuple[dict[tuple[QuotaEntity, QuotaKey], float], list[str]]:
    """The quotas of a list, and a line for each of the first faults in it; see `QuotaRows`."""
    if not isinstance(value, list):
        return {}, ["quotas has to be a list"]
    rows = QuotaRows()
    for each in value:
        rows.add(each)
    return rows.found, rows.faults


def _value(value: float | str | None) -> float | str | None:
    return value if isinstance(value, str) else _float(value)


def _float(value: float | None) -> float | None:
    # A program may have passed a whole number.
    return None if value is None else float(value)
