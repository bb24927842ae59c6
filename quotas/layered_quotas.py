"""Two layers of quotas: the configuration file is the base, the quota store's overrides win.

Key by key: an entity may have its producer_byte_rate from the store and its request_percentage from the file. What
is in force is always in `Limits`, which all counters read; this only knows where each value came from, and what
comes back when an override goes. Counters keep their samples throughout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from quotas.entities import GUARANTEE_KEYS, QuotaEntity, QuotaKey
from quotas.limits import Limits, guarantee_faults, validate

Source: TypeAlias = Literal["file", "store"]

OF_GUARANTEES: Final = (*GUARANTEE_KEYS, *GUARANTEE_KEYS.values())
"""Keys whose values have to go together."""

_Values: TypeAlias = dict[QuotaKey, dict[QuotaEntity, float]]


class Owner(StrEnum):
    """How an override got its value."""

    APPLY = "apply"  # from a file of quotas, by `sluice quotas apply`
    SET = "set"  # by the admin port otherwise, such as `sluice quotas set`
    API = "api"  # by AlterClientQuotas
    UNKNOWN = ""  # before owners were kept

    @classmethod
    def of(cls, text: str) -> Owner:
        """The owner of this name; unknown if a later version has named it."""
        return cls(text) if text in _OWNERS else cls.UNKNOWN


_OWNERS = frozenset(Owner)


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """One override that is set or goes.

    Attributes:
        entity: the quota is for it.
        key: of the quota.
        value: in the key's unit; None: the override is removed.
        owner: of the override from now on.
    """

    entity: QuotaEntity
    key: QuotaKey
    value: float | None
    owner: Owner = Owner.UNKNOWN


@dataclass(frozen=True, slots=True, weakref_slot=True)
class LayeredSnapshot:
    """All quotas at one moment, by key.

    Attributes:
        in_force: what counts.
        overrides: what the store says.
        base: what the configuration file says.
        owners: of overrides, as far as they are known.
    """

    in_force: Mapping[QuotaKey, Mapping[QuotaEntity, float]]
    overrides: Mapping[QuotaKey, Mapping[QuotaEntity, float]]
    base: Mapping[QuotaKey, Mapping[QuotaEntity, float]]
    owners: Mapping[QuotaKey, Mapping[QuotaEntity, Owner]]

    def rows(self) -> Iterator[tuple[QuotaEntity, QuotaKey, float, Source, float | None, Owner]]:
        """Each quota in force with where it came from, what the file says of it, and the override's owner."""
        for entity, key, value in _items(self.in_force):
            source: Source = "store" if entity in self.overrides[key] else "file"
            owner = self.owners[key].get(entity, Owner.UNKNOWN)
            yield entity, key, value, source, self.base[key].get(entity), owner


class LayeredQuotas:
    """See the module.

    Attributes:
        limits: what is in force; only this sets and removes quotas in it.
    """

    def __init__(self, limits: Limits) -> None:
        """Takes what is set already as the base.

        Args:
            limits: kept up to date from now on.
        """
        self.limits = limits
        self._base = _by_key(limits.items())
        self._overrides: _Values = {key: {} for key in QuotaKey}
        self._owners: dict[QuotaKey, dict[QuotaEntity, Owner]] = {key: {} for key in QuotaKey}

    def replace_base(self, items: Iterable[tuple[QuotaEntity, QuotaKey, float]]) -> bool:
        """Makes this the whole base, or changes nothing: the start and every reload of the configuration.

        Returns:
            Whether anything that is in force differs from before.

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
        """Sets and removes overrides, all or none. Takes as long as there are changes, however many quotas there are.

        Args:
            changes: the later of two for the same quota counts.
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
        """Why the guarantees of an entity would not go with its rates; None: they would, or it is not about these.

        Args:
            entity: whose.
            new: what is to change of it; None: the override goes.
        """
        if not any(key in new for key in OF_GUARANTEES):
            return None
        values: dict[QuotaKey, float] = {}
        for key in OF_GUARANTEES:
            value = new.get(key) if key in new else self.limits.get(entity, key)
            # One that goes leaves what the configuration file says.
            value = self.base(entity, key) if value is None else value
            if value is not None:
                values[key] = value
        return next((f"{key} {fault}" for key, fault in guarantee_faults(values)), None)

    def source(self, entity: QuotaEntity, key: QuotaKey) -> Source | None:
        """Where the value in force came from; None: there is none."""
        if entity in self._overrides[key]:
            return "store"
        return "file" if entity in self._base[key] else None

    def override(self, entity: QuotaEntity, key: QuotaKey) -> float | None:
        """What the store says; None: nothing."""
        return self._overrides[key].get(entity)

    def base(self, entity: QuotaEntity, key: QuotaKey) -> float | None:
        """What the configuration file says; None: nothing."""
        return self._base[key].get(entity)

    def owner(self, entity: QuotaEntity, key: QuotaKey) -> Owner:
        """Of the override; unknown without one."""
        return self._owners[key].get(entity, Owner.UNKNOWN)

    def override_count(self, key: QuotaKey) -> int:
        """How many quotas of one key the store says."""
        return len(self._overrides[key])

    def overrides(self) -> Iterator[tuple[QuotaEntity, QuotaKey, float]]:
        """Everything that the store says, by key and then in the order it was set first."""
        return _items(self._overrides)

    def snapshot(self) -> LayeredSnapshot:
        """What is set now, for work that takes longer than until the next change."""
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
