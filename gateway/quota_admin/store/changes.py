"""What a store keeps: quotas, and connection limits of brokers (KIP-402, KIP-612), each a value in a slot.

A slot is (entity, quota key) for a quota and (None, setting) for a connection limit, which is one of all brokers:
every gateway that shares the store has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from quotas.entities import QuotaEntity, QuotaKey
from quotas.layered_quotas import QuotaChange

ALL_BROKERS: Final = "brokers"
"""In the place of the entity, in the history, in audit lines and on disk."""


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A connection limit of brokers that is set or goes.

    Attributes:
        name: the setting, such as ``max.connections`` or ``listener.name.clients.max.connections``.
        value: as `gateway.quota_admin.broker_limits.checked_limit` returns it; None: the limit is removed.
    """

    name: str
    value: str | None


StoredChange: TypeAlias = QuotaChange | LimitChange
Slot: TypeAlias = tuple[QuotaEntity | None, str]
Value: TypeAlias = float | str


def slot_of(change: StoredChange) -> Slot:
    """What the change is of."""
    return (None, change.name) if isinstance(change, LimitChange) else (change.entity, change.key)


def change_of(slot: Slot, value: Value | None) -> StoredChange:
    """The change that gives a slot its value."""
    entity, key = slot
    if entity is None:
        assert value is None or isinstance(value, str)
        return LimitChange(key, value)
    assert not isinstance(value, str)
    return QuotaChange(entity, QuotaKey(key), value)


def entity_text(entity: QuotaEntity | None) -> str:
    """The entity of a slot for a person."""
    return ALL_BROKERS if entity is None else str(entity)


def effective(
    changes: Iterable[StoredChange], value_of: Callable[[Slot], Value | None]
) -> list[tuple[StoredChange, Value | None]]:
    """The changes that change something, each with the value it replaces; of two for one slot the later one.

    Args:
        changes: of an alteration.
        value_of: the value so far.
    """
    last = {slot_of(change): change for change in changes}
    found = ((change, value_of(slot)) for slot, change in last.items())
    return [(change, old) for change, old in found if change.value != old]


def growth(changes: Iterable[tuple[StoredChange, Value | None]]) -> int:
    """How many more quotas there are after these changes, which `effective` has returned."""
    return sum(
        (change.value is not None) - (old is not None)
        for change, old in changes
        if isinstance(change, QuotaChange)
    )
