"""The result of an AlterClientQuotas request: Kafka's checks entry by entry, then the changed overrides.

Pure, after ClientQuotaControlManager. The response has the first fault of each entity. One bad value prevents its
whole entry; other entries are carried out. If a request has an entity twice, its first entry is carried out, and the
response still has an error for it. Kafka does the same, so clients get the same response.

Three rules are Sluice's own:

* A value that only the configuration file sets can't be removed here: the store cannot express its removal.
* Two spellings of one address are two entities in Kafka and one in Sluice. The second one in a request gets an error
  and is not carried out.
* A guarantee needs a rate that is not below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from quotas.entities import DEFAULT, EntityType, QuotaEntity, QuotaKey, entity_of_names
from quotas.layered_quotas import LayeredQuotas, Owner, QuotaChange
from quotas.limits import validate, validate_entity

Names: TypeAlias = Mapping[str, str | None]
"""Entity type -> name, None for the default; as on the wire, so neither is checked."""

Operation: TypeAlias = tuple[str, float, bool]
"""(key, value, whether the key is removed)."""

_KEYS: Final = frozenset(key.value for key in QuotaKey)

# Kafka prints the types in the order of a Java hash map.
_PRINTED: Final = {"client-id": 0, "user": 1, "ip": 2, "topic": 3, "group": 4}


@dataclass(slots=True)
class EntityPlan:
    """One entity of a request.

    Attributes:
        names: as on the wire.
        fault: Kafka's text when the error is INVALID_REQUEST.
        changes: the changes to carry out; there may be some beside a fault, see the module.
    """

    names: Names
    fault: str | None = None
    changes: tuple[QuotaChange, ...] = field(default=())


@dataclass(slots=True)
class Planned:
    """The plans of a request so far.

    Attributes:
        by_names: plans by their entity, as on the wire.
        addresses: for each entity of an address, the spelling in the request.
    """

    by_names: dict[frozenset[tuple[str, str | None]], EntityPlan] = field(default_factory=dict)
    addresses: dict[QuotaEntity, str] = field(default_factory=dict)


def plan_alterations(
    entries: Iterable[tuple[Names, Sequence[Operation]]],
    quotas: LayeredQuotas,
    *,
    shared: bool = False,
    planned: Planned | None = None,
) -> list[EntityPlan]:
    """The errors and changes of a request.

    Args:
        entries: the request's entries, in its order.
        quotas: the current quotas; setting a value that is already set changes nothing.
        shared: other gateways set values too, so `quotas` may be out of date. Then a value that seems to be set
            already is a change too, and the store decides.
        planned: plans of earlier entries, if the same request is processed in parts; it is filled.

    Returns:
        One plan for each distinct entity, in the order of their first entries.
    """
    planned = Planned() if planned is None else planned
    plans = planned.by_names
    for names, operations in entries:
        identity = frozenset(names.items())
        plan = plans.get(identity)
        if plan is not None or len({key for key, _, _ in operations}) < len(operations):
            plan = plans.setdefault(identity, EntityPlan(names))
            plan.fault = f"Ignoring duplicate entity {_as_java_prints(names)}"
        elif (before := _same_address(names, planned)) is not None:
            text = f"{names[EntityType.IP]} is the same address as {before}, which this request has too"
            plans[identity] = EntityPlan(names, text)
        else:
            plans[identity] = _plan(names, operations, quotas, shared=shared)
    return list(plans.values())


def _same_address(names: Names, planned: Planned) -> str | None:
    """The other spelling of the same address earlier in the request; None: there is none."""
    written = names.get(EntityType.IP)
    if written is None or not known_types(names):
        return None
    before = planned.addresses.setdefault(entity_of(names), written)
    return None if before == written else before


def _plan(
    names: Names, operations: Sequence[Operation], quotas: LayeredQuotas, *, shared: bool
) -> EntityPlan:
    for entity_type, name in names.items():
        if entity_type not in _PRINTED:
            return EntityPlan(names, f"Unhandled client quota entity type: {entity_type}")
        if name == "":
            return EntityPlan(names, f"Empty {entity_type} not supported")
    entity = entity_of(names)
    fault = validate_entity(entity)
    changes = []
    for key, value, remove in operations:
        if fault is not None:
            break
        if not remove:
            fault = validate(entity, key, value)
            if fault is None and (shared or quotas.override(entity, QuotaKey(key)) != value):
                changes.append(QuotaChange(entity, QuotaKey(key), value, Owner.API))
        elif (known := known_key(key)) is not None:
            if quotas.override(entity, known) is not None:
                changes.append(QuotaChange(entity, known, None))
            elif quotas.base(entity, known) is not None:
                fault = f"{key} of {entity} is set in the gateway's configuration file and can only be removed there"
            elif shared:
                changes.append(QuotaChange(entity, known, None))
    if fault is None:
        fault = quotas.guarantee_fault(entity, {change.key: change.value for change in changes})
    return EntityPlan(names, fault, () if fault else tuple(changes))


def known_key(key: str) -> QuotaKey | None:
    """The quota key of this name; None: there is none."""
    return QuotaKey(key) if key in _KEYS else None


def known_types(names: Names) -> bool:
    """Whether all types are known entity types."""
    return names.keys() <= _PRINTED.keys()


def entity_of(names: Names) -> QuotaEntity:
    """The entity of these names; its types are known."""
    given = {entity_type: DEFAULT if name is None else name for entity_type, name in names.items()}
    return entity_of_names(given)


def names_of(entity: QuotaEntity) -> dict[str, str | None]:
    """The names of an entity, as on the wire."""
    return {
        entity_type.value: name if isinstance(name, str) else None
        for entity_type, name in entity.components()
    }


def _as_java_prints(names: Names) -> str:
    ordered = sorted(names.items(), key=lambda each: (_PRINTED.get(each[0], len(_PRINTED)), each[0]))
    inside = ", ".join(f"{entity_type}={'null' if name is None else name}" for entity_type, name in ordered)
    return f"ClientQuotaEntity(entries={{{inside}}})"
