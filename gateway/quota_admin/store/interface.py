"""The interface of every quota store.

A store contains *overrides*: quotas and connection limits of brokers that were changed in a running gateway. Values
of the configuration file are not in it (see `quotas.layered_quotas`). The store passes every change, its own and
those of other gateways, to one function, in one order.

Each override is a value in a slot: (entity, quota key) for a quota, (None, setting) for a connection limit (KIP-402,
KIP-612). A connection limit is for all brokers: every gateway that shares the store applies it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

from gateway.runtime.slices import Slices, free
from quotas.entities import QuotaEntity, QuotaKey, counted
from quotas.layered_quotas import Owner, QuotaChange

ALL_BROKERS: Final = "brokers"
"""Stands for the entity of a limit in the history, in audit lines and on disk."""


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A connection limit of brokers that is set or removed.

    Attributes:
        name: the setting, such as ``max.connections`` or ``listener.name.clients.max.connections``.
        value: as `gateway.quota_admin.broker_limits.checked_limit` returns it; None: the limit is removed.
    """

    name: str
    value: str | None


StoredChange: TypeAlias = QuotaChange | LimitChange
Slot: TypeAlias = tuple[QuotaEntity | None, str]
Value: TypeAlias = float | str


class Kept(NamedTuple):
    """The content of a slot.

    Attributes:
        value: the value; None: the slot is empty.
        owner: the owner of a quota's value.
    """

    value: Value | None
    owner: Owner = Owner.UNKNOWN


NOTHING: Final = Kept(None)


def changes_something(change: StoredChange, kept: Kept) -> bool:
    """Whether a change has an effect. A new owner is an effect too: a file owns the quotas that it names."""
    if change.value != kept.value:
        return True
    if not isinstance(change, QuotaChange) or change.value is None:
        return False
    return change.owner is Owner.APPLY and kept.owner is not Owner.APPLY


def slot_of(change: StoredChange) -> Slot:
    """The slot of a change."""
    return (None, change.name) if isinstance(change, LimitChange) else (change.entity, change.key)


def owner_of(change: StoredChange) -> Owner:
    """The owner of the value that a change sets; a limit of brokers has none."""
    return change.owner if isinstance(change, QuotaChange) else Owner.UNKNOWN


def change_of(slot: Slot, value: Value | None, owner: Owner = Owner.UNKNOWN) -> StoredChange:
    """The change that gives a slot its value."""
    entity, key = slot
    if entity is None:
        assert value is None or isinstance(value, str)
        return LimitChange(key, value)
    assert not isinstance(value, str)
    return QuotaChange(entity, QuotaKey(key), value, owner)


def entity_text(entity: QuotaEntity | None) -> str:
    """The entity of a slot for a person."""
    return ALL_BROKERS if entity is None else str(entity)


class StoreError(Exception):
    """The store can't carry out an operation. The text may be shown to clients."""


Expected: TypeAlias = Mapping[Slot, Value | None]
"""The values that slots must have for an alteration to be made."""


class AlterationRefusedError(StoreError):
    """An alteration is refused because of its content, or of another alteration. The store works."""


class ChangedMeanwhileError(AlterationRefusedError):
    """Slots do not contain what an alteration expects, so nothing of it is made.

    Attributes:
        found: the slots, each with the expected value and the actual one.
    """

    def __init__(self, found: list[tuple[Slot, Value | None, Value | None]]) -> None:
        super().__init__(f"{counted(len(found), 'quota')} changed meanwhile, so nothing was changed")
        self.found = found


def effective(
    changes: Iterable[StoredChange], kept_of: Callable[[Slot], Kept], expected: Expected
) -> list[tuple[StoredChange, Value | None]]:
    """The changes with an effect, each with the value that it replaces; of two for one slot the later one.

    Args:
        changes: the changes of an alteration.
        kept_of: returns the content of a slot.
        expected: see `Alteration`.

    Raises:
        ChangedMeanwhileError: slots do not contain the expected values.
    """
    last = {slot_of(change): change for change in changes}
    found = [(change, kept_of(slot)) for slot, change in last.items()]
    wrong = [
        (slot, expected[slot], kept.value)
        for slot, (_, kept) in zip(last, found, strict=True)
        if expected.get(slot, kept.value) != kept.value
    ]
    if wrong:
        raise ChangedMeanwhileError(wrong)
    return [(change, kept.value) for change, kept in found if changes_something(change, kept)]


class Effective(NamedTuple):
    """The effect of an alteration; see `effective`.

    Attributes:
        changes: the changes with an effect, each with the value that it replaces.
        slots: the number of slots that the alteration names.
        growth: the increase of the number of quotas.
    """

    changes: list[tuple[StoredChange, Value | None]]
    slots: int
    growth: int


async def effective_in_slices(
    changes: Iterable[StoredChange], kept_of: Callable[[Slot], Kept], expected: Expected
) -> Effective:
    """`effective` and `growth`, in slices so that the event loop stays responsive."""
    slices = Slices()
    last = {}
    for change in changes:
        if slices.over:
            await slices.next()
        last[slot_of(change)] = change
    found: list[tuple[StoredChange, Value | None]] = []
    wrong: list[tuple[Slot, Value | None, Value | None]] = []
    grown = 0
    for slot, change in last.items():
        if slices.over:
            await slices.next()
        kept = kept_of(slot)
        if expected and expected.get(slot, kept.value) != kept.value:
            wrong.append((slot, expected[slot], kept.value))
        if changes_something(change, kept):
            found.append((change, kept.value))
            grown += growth(found[-1:])
    slots = len(last)
    await free(last)
    if wrong:
        raise ChangedMeanwhileError(wrong)
    return Effective(found, slots, grown)


def growth(changes: Iterable[tuple[StoredChange, Value | None]]) -> int:
    """The increase of the number of quotas by these changes, which `effective` has returned."""
    return sum(
        (change.value is not None) - (old is not None)
        for change, old in changes
        if isinstance(change, QuotaChange)
    )


OnChange: TypeAlias = Callable[[Sequence[StoredChange], int], Awaitable[None]]
"""Receives durable, valid changes, and the version that includes them; runs on the loop, one call at a time."""


@dataclass(frozen=True, slots=True)
class Alteration:
    """Changes that belong together: all of them are made or none.

    Attributes:
        by: the principal that requested it.
        via: the way of the request, such as a listener and the peer's address, or the admin port.
        changes: valid changes: quotas by `quotas.limits.validate`, limits by `broker_limits.checked_limit`. Of two
            for the same slot the later one counts.
        expected: nothing is changed unless these slots have these values. Gateways that share a topic compare with
            its content a moment before.
    """

    by: str
    via: str
    changes: tuple[StoredChange, ...]
    expected: Expected = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A change in the history.

    Attributes:
        version: the store's version from this change on.
        at_ms: wall clock, Unix time.
        by, via: see `Alteration`.
        entity, key: the slot that was changed; without an entity it is a connection limit of all brokers.
        old, new: the override before and after; None: there was none.
    """

    version: int
    at_ms: int
    by: str
    via: str
    entity: QuotaEntity | None
    key: str
    old: Value | None
    new: Value | None


def check_count(count: int, most: int, *, grows: bool) -> None:
    """Refuse an alteration that adds quotas to a full store.

    Raises:
        StoreError: there would be too many quotas.
    """
    if grows and count > most:
        raise StoreError(f"there would be {count} quotas, and quota_store.max_quotas allows {most}")


class QuotaStore(Protocol):
    """A durable set of overrides. It is used on the loop, and no method blocks.

    Attributes:
        version: grows with every alteration that has an effect; 0: there was none.
        read_only: why alterations are refused, permanently or until the disk can be written; None: they are not.
        bad_records: the number of records that were skipped because they are no quotas.
        unsigned_records: the number of records that were skipped because they have no valid signature.
        stale: why other gateways' changes are not followed now; None: they are, or there are no other gateways.
    """

    @property
    def read_only(self) -> str | None:
        """See the class."""

    @property
    def bad_records(self) -> int:
        """See the class."""

    @property
    def unsigned_records(self) -> int:
        """See the class."""

    @property
    def stale(self) -> str | None:
        """See the class."""

    @property
    def version(self) -> int:
        """See the class."""

    async def open(self, on_change: OnChange) -> None:
        """Load everything and pass it to `on_change`, then follow changes of other gateways.

        Raises:
            StoreError: there is a store that can't be trusted, or another gateway has locked it.
        """

    async def write(self, alteration: Alteration) -> int:
        """Make changes; returns when they are durable and were passed to `on_change`.

        An alteration without effect makes no new version and no history. A shared store first makes sure that there
        is really no effect. If a value seemed to be set already in this gateway but was not, the store itself writes
        the audit line.

        Returns:
            The version that includes the changes.

        Raises:
            StoreError: nothing is in force. With a shared store the changes may come into force later; then the text
                says so.
        """

    async def catch_up(self) -> None:
        """Returns when all alterations that other gateways made before the call are in force here too.

        Raises:
            StoreError: the store can't be read now.
        """

    async def history(self, limit: int) -> list[HistoryEntry]:
        """The latest changes, the last one first.

        Raises:
            StoreError: the history can't be read.
        """

    async def close(self) -> None:
        """Release all resources. A second call does nothing."""
