"""Quotas as the admin port tells and takes them, in JSON. An entity is a list, a null name its default."""

from __future__ import annotations

from typing import Any, Final

from gateway.quota_admin.store.interface import HistoryEntry
from quotas.entities import DEFAULT, Default, EntityType, Name, QuotaEntity, QuotaKey
from quotas.layered_quotas import QuotaChange
from quotas.limits import validate

BROKER: Final = "broker"
"""The type of the entity in the history of limits of brokers."""


def slot_entity_json(entity: QuotaEntity | None) -> list[dict[str, str | None]]:
    """Of a slot of the store: without an entity, all brokers, whose name is null as that of other defaults."""
    return [{"type": BROKER, "name": None}] if entity is None else entity_json(entity)


def entity_json(entity: QuotaEntity) -> list[dict[str, str | None]]:
    """As the entity is on the wire."""
    return [
        {"type": entity_type.value, "name": None if isinstance(name, Default) else name}
        for entity_type, name in entity.components()
    ]


def entity_of(value: Any) -> QuotaEntity:
    """What `entity_json` has written; not yet checked by `validate`.

    Raises:
        ValueError: it is something else.
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
    return QuotaEntity(names.get(EntityType.USER), names.get(EntityType.CLIENT_ID), names.get(EntityType.IP))


def change_json(change: QuotaChange, old: float | None) -> dict[str, Any]:
    """A change and what it replaces."""
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


def quotas_of(
    value: Any, *, kept: bool = False
) -> tuple[dict[tuple[QuotaEntity, QuotaKey], float], list[str]]:
    """The quotas of a list of ``{"entity": ..., "quota": ..., "limit": ...}``, and a line for each fault in it.

    Args:
        value: the list, from a client.
        kept: see `quotas.limits.validate`.
    """
    found: dict[tuple[QuotaEntity, QuotaKey], float] = {}
    faults: list[str] = []
    if not isinstance(value, list):
        return found, ["quotas has to be a list"]
    for at, each in enumerate(value):
        try:
            entity, key, limit = entity_of(each["entity"]), each["quota"], each["limit"]
            if isinstance(limit, bool) or not isinstance(limit, (int, float)):
                raise ValueError(f"{key} is no number")
            if (fault := validate(entity, key, float(limit), kept=kept)) is not None:
                raise ValueError(f"{entity}: {fault}")
            if (entity, QuotaKey(key)) in found:
                raise ValueError(f"{entity} has {key} twice")
            found[entity, QuotaKey(key)] = float(limit)
        except (TypeError, KeyError) as exc:
            faults.append(f"quotas.{at}: needs entity, quota and limit ({exc})")
        except (ValueError, OverflowError) as exc:
            faults.append(f"quotas.{at}: {exc}")
    return found, faults


def _value(value: float | str | None) -> float | str | None:
    return value if isinstance(value, str) else _float(value)


def _float(value: float | None) -> float | None:
    # A whole number that a program passed as such is a limit as well.
    return None if value is None else float(value)
