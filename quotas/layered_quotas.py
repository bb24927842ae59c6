"""Two layers of quotas: the configuration file is the base, the quota store's overrides win.

Overrides win key by key: an entity may have its producer_byte_rate from the store and its request_percentage from the
file. The values in force are always in `Limits`, which all counters read. This module knows the source of each value,
and the value that applies again when an override is removed. Counters keep their samples throughout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Final, Literal, TypeAlias

from quotas.entities import GUARANTEE_KEYS, QuotaEntity, QuotaKey
from quotas.limits import Limits, guarantee_faults, validate

Source: TypeAlias = Literal["file", "store"]

OF_GUARANTEES: Final = (*GUARANTEE_KEYS, *GUARANTEE_KEYS.values())
"""Keys whose values must be consistent: a guarantee needs a rate that is not below it."""

_Values: TypeAlias = dict[QuotaKey, dict[QuotaEntity, float]]


class Owner(StrEnum):
    """How an override got its value."""

    APPLY = "apply"  # from a file of quotas, with `sluice quotas apply`
    SET = "set"  # otherwise through the admin port, for example with `sluice quotas set`
    API = "api"  # through AlterClientQuotas
    UNKNOWN = ""  # by a version that did not store owners

    @classmethod
    def of(cls, text: str) -> Owner:
        """The owner of this name; unknown if only a later version has it."""
        return cls(text) if text in _OWNERS else cls.UNKNOWN


_OWNERS = frozenset(Owner)


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """One override that is set or removed.

    Attributes:
        entity: the entity of the quota.
        key: the key of the quota.
        value: in the key's unit; None: the override is removed.
        owner: the override's owner from now on.
    """

    entity: QuotaEntity
    key: QuotaKey
    value: float | None
    owner: Owner = Owner.UNKNOWN


@dataclass(frozen=True, slots=True, weakref_slot=True)
class LayeredSnapshot:
    """All quotas at one moment, by key.

    Attributes:
        in_force: the values in force.
        overrides: the values of the store.
        base: the values of the configuration file.
        owners: the owners of overrides, if known.
    """

    in_force: Mapping[QuotaKey, Mapping[QuotaEntity, float]]
    overrides: Mapping[QuotaKey, Mapping[QuotaEntity, float]]
    base: Mapping[QuotaKey, Mapping[QuotaEntity, float]]
    owners: Mapping[QuotaKey, Mapping[QuotaEntity, Owner]]

    def rows(self) -> Iterator[tuple[QuotaEntity, QuotaKey, float, Source, float | None, Owner]]:
        """Each quota in force with its source, its value in the file, and the override's owner."""
        for entity, key, value in _items(self.in_force):
            source: Source = "store" if entity in self.overrides[key] else "file"
            owner = self.owners[key].get(entity, Owner.UNKNOWN)
            yield entity, key, value, source, self.base[key].get(entity), owner


class LayeredQuotas:
    """See the module.

    Attributes:
        limits: the values in force; only this object sets and removes quotas there.
    """

    def __init__(self, limits: Limits) -> None:
        """Takes the quotas that are already set as the base.

        Args:
            limits: kept up to date from now on.
        """
        self.limits = limits
        self._base = _by_key(limits.items())
        self._overrides: _Values = {key: {} for key in QuotaKey}
        self._owners: dict[QuotaKey, dict[QuotaEntity, Owner]] = {key: {} for key in QuotaKey}

    def replace_base(self, items: Iterable[tuple[QuotaEntity, QuotaKey, float]]) -> bool:
        """Replaces the whole base, or changes nothing; for the start and every reload of the configuration.

        Returns:
            Whether any value in force has changed.

        Raises:
            ValueError: an item is not valid; its entity and key are in the text. Nothing was changed.
        """
        wanted = list(items)
        for entity, key, value in wanted:
            _check(entity, key, value)
        before = self.limits.version
        base, old = _by_key(wanted), self._base
        self._base = base
        for key, values in base.items():
            for entity, value in values.items():
                if old[key].get(entity) != value and entity not in self._overrides[key]:
                    self.limits.put(entity, key, value)
        for key, values in old.items():
            for entity in values.keys() - base[key].keys() - self._overrides[key].keys():
                self.limits.remove(entity, key)
        return self.limits.version != before

    def apply(self, changes: Iterable[QuotaChange], *, checked: bool = False) -> None:
        """Sets and removes overrides, all or none. The time depends on the number of changes, not of quotas.

        Args:
            changes: of two for the same quota, the later one counts.
            checked: `quotas.limits.validate` has found no fault in any of them.

        Raises:
            ValueError: a value is not valid; its entity and key are in the text. Nothing was changed.
        """
        wanted = list(changes)
        for change in wanted:
            if change.value is not None and not checked:
                _check(change.entity, change.key, change.value)
        for change in wanted:
            self._apply(change)

    def guarantee_fault(self, entity: QuotaEntity, new: Mapping[QuotaKey, float | None]) -> str | None:
        """Why changes would make guarantees of an entity contradict its rates; None: they would not.

        A rate and its guarantee are checked only if one of the two changes. They may contradict each other already,
        since a reload puts the configuration file in force whatever the store has.

        Args:
            entity: the entity.
            new: the changes, by key; a value of None removes the override.
        """
        values: dict[QuotaKey, float] = {}
        changed = [pair for pair in GUARANTEE_KEYS.items() if not new.keys().isdisjoint(pair)]
        for key in chain.from_iterable(changed):
            value = new.get(key) if key in new else self.limits.get(entity, key)
            # Without the override, the configuration file's value applies.
            value = self.base(entity, key) if value is None else value
            if value is not None:
                values[key] = value
        return next((f"{key} {fault}" for key, fault in guarantee_faults(values)), None)

    def contradictions(self) -> Iterator[str]:
        """The guarantees in force that contradict their rates, because the file has one and the store the other."""
        for rate, guarantee in GUARANTEE_KEYS.items():
            for entity in self._base[guarantee] | self._overrides[guarantee]:
                in_force = {key: self.limits.get(entity, key) for key in (rate, guarantee)}
                values = {key: value for key, value in in_force.items() if value is not None}
                yield from (f"{entity}: {key} {fault}" for key, fault in guarantee_faults(values))

    def source(self, entity: QuotaEntity, key: QuotaKey) -> Source | None:
        """The source of the value in force; None: there is no value."""
        if entity in self._overrides[key]:
            return "store"
        return "file" if entity in self._base[key] else None

    def override(self, entity: QuotaEntity, key: QuotaKey) -> float | None:
        """The store's value; None: it has none."""
        return self._overrides[key].get(entity)

    def base(self, entity: QuotaEntity, key: QuotaKey) -> float | None:
        """The configuration file's value; None: it has none."""
        return self._base[key].get(entity)

    def owner(self, entity: QuotaEntity, key: QuotaKey) -> Owner:
        """The override's owner; unknown without an override."""
        return self._owners[key].get(entity, Owner.UNKNOWN)

    def override_count(self, key: QuotaKey) -> int:
        """The number of overrides of one key."""
        return len(self._overrides[key])

    def overrides(self) -> Iterator[tuple[QuotaEntity, QuotaKey, float]]:
        """All overrides, by key and then in the order in which they were first set."""
        return _items(self._overrides)

    def snapshot(self) -> LayeredSnapshot:
        """A copy of the current quotas, for work during which quotas may change."""
        overrides = {key: values.copy() for key, values in self._overrides.items()}
        owners = {key: values.copy() for key, values in self._owners.items()}
        return LayeredSnapshot(self.limits.snapshot(), overrides, self._base, owners)

    def _apply(self, change: QuotaChange) -> None:
        entity, key, value = change.entity, change.key, change.value
        if value is None or change.owner is Owner.UNKNOWN:
            self._owners[key].pop(entity, None)
        else:
            self._owners[key][entity] = change.owner
        if value is not None:
            self._overrides[key][entity] = value
            self.limits.put(entity, key, value)
            return
        if self._overrides[key].pop(entity, None) is None:
            return
        below = self._base[key].get(entity)
        if below is None:
            self.limits.remove(entity, key)
        else:
            self.limits.put(entity, key, below)


def _by_key(items: Iterable[tuple[QuotaEntity, QuotaKey, float]]) -> _Values:
    values: _Values = {key: {} for key in QuotaKey}
    for entity, key, value in items:
        values[key][entity] = value
    return values


def _items(
    values: Mapping[QuotaKey, Mapping[QuotaEntity, float]],
) -> Iterator[tuple[QuotaEntity, QuotaKey, float]]:
    for key, of_key in values.items():
        for entity, value in of_key.items():
            yield entity, key, value


def _check(entity: QuotaEntity, key: QuotaKey, value: float) -> None:
    fault = validate(entity, key, value)
    if fault is not None:
        raise ValueError(f"{entity}: {fault}")
