"""The interface of every quota store.

A store holds *overrides*: what was changed in a running gateway, quotas and connection limits of brokers. What the
configuration file says is not in it (see `quotas.layered_quotas`). It hands every change, its own and those of other
gateways, to one function, in one order.

Each is a value in a slot: (entity, quota key) for a quota, (None, setting) for a connection limit (KIP-402, KIP-612),
which is one of all brokers: every gateway that shares the store has it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

from gateway.runtime.slices import Slices, free
from quotas.entities import QuotaEntity, QuotaKey, counted
from quotas.layered_quotas import Owner, QuotaChange

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


class Kept(NamedTuple):
    """What is kept in a slot.

    Attributes:
        value: None: nothing.
        owner: of a quota's value.
    """

    value: Value | None
    owner: Owner = Owner.UNKNOWN


NOTHING: Final = Kept(None)


def changes_something(change: StoredChange, kept: Kept) -> bool:
    """Whether a change makes any difference; a file that names a quota owns it also where the value is right."""
    if change.value != kept.value:
        return True
    if not isinstance(change, QuotaChange) or change.value is None:
        return False
    return change.owner is Owner.APPLY and kept.owner is not Owner.APPLY


def slot_of(change: StoredChange) -> Slot:
    """What the change is of."""
    return (None, change.name) if isinstance(change, LimitChange) else (change.entity, change.key)


def owner_of(change: StoredChange) -> Owner:
    """Of what the change sets; a limit of brokers has none."""
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
    """The store can't do it. The text may be shown to clients."""


Expected: TypeAlias = Mapping[Slot, Value | None]
"""What slots have to contain so that an alteration is made."""


class ChangedMeanwhileError(StoreError):
    """Slots do not contain what an alteration expects, so nothing of it is made.

    Attributes:
        found: the slots, each with what was expected and what is there.
    """

    def __init__(self, found: list[tuple[Slot, Value | None, Value | None]]) -> None:
        super().__init__(f"{counted(len(found), 'quota')} changed meanwhile, so nothing was changed")
        self.found = found


def effective(
    changes: Iterable[StoredChange], kept_of: Callable[[Slot], Kept], expected: Expected
) -> list[tuple[StoredChange, Value | None]]:
    """The changes that change something, each with the value it replaces; of two for one slot the later one.

    Args:
        changes: of an alteration.
        kept_of: what is kept so far.
        expected: see `Alteration`.

    Raises:
        ChangedMeanwhileError: see there.
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
    """What an alteration comes to; see `effective`.

    Attributes:
        changes: those that change something, each with the value it replaces.
        slots: how many it names.
        growth: how many more quotas there are afterwards.
    """

    changes: list[tuple[StoredChange, Value | None]]
    slots: int
    growth: int


async def effective_in_slices(
    changes: Iterable[StoredChange], kept_of: Callable[[Slot], Kept], expected: Expected
) -> Effective:
    """`effective` and `growth`, in the loop."""
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
    """How many more quotas there are after these changes, which `effective` has returned."""
    return sum(
        (change.value is not None) - (old is not None)
        for change, old in changes
        if isinstance(change, QuotaChange)
    )


OnChange: TypeAlias = Callable[[Sequence[StoredChange], int], Awaitable[None]]
"""Takes changes that are durable and valid, with the version that has them; runs on the loop, one call at a time."""


@dataclass(frozen=True, slots=True)
class Alteration:
    """Changes that belong together: all of them are made or none.

    Attributes:
        by: the principal that asked.
        via: how, such as a listener and the peer's address, or the admin port.
        changes: valid, quotas by `quotas.limits.validate`, limits by `broker_limits.checked_limit`; of two for the
            same slot the later one counts.
        expected: nothing is changed unless these slots contain this. Gateways that share a topic look at what was in
            it a moment before.
    """

    by: str
    via: str
    changes: tuple[StoredChange, ...]
    expected: Expected = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One change that was made.

    Attributes:
        version: the store's, from this change on.
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
    """Refuse an alteration that makes a full store grow.

    Raises:
        StoreError: there would be too many quotas.
    """
    if grows and count > most:
        raise StoreError(f"there would be {count} quotas, and quota_store.max_quotas allows {most}")


class QuotaStore(Protocol):
    """A durable set of overrides. Used on the loop; nothing of it blocks.

    Attributes:
        version: grows with every alteration that changes something; 0: nothing was ever changed.
        read_only: why alterations are refused, for good or until the disk can be written; None: they are not.
        bad_records: how many things in it were passed over because they are no quotas.
        unsigned_records: how many were passed over because they have no valid signature.
        stale: why what others change is not followed at the moment; None: it is, or there are no others.
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
        """Load everything, handing it to `on_change`, then follow what others change.

        Raises:
            StoreError: there is a store and it can't be trusted, or another gateway has it.
        """

    async def write(self, alteration: Alteration) -> int:
        """Make changes; returns when they are durable and were handed to `on_change`.

        What changes nothing is no new version and leaves no history. A shared store makes sure that it would change
        nothing, and what was set already as far as was known here, and was not, has its audit lines from the store.

        Returns:
            The version that has them.

        Raises:
            StoreError: nothing of it is in force. With a shared store it may be later, and then the text says so.
        """

    async def catch_up(self) -> None:
        """Returns when what others had made before the call is in force here too.

        Raises:
            StoreError: it can't be read at the moment.
        """

    async def history(self, limit: int) -> list[HistoryEntry]:
        """The latest changes, the last one first.

        Raises:
            StoreError: it can't be read.
        """

    async def close(self) -> None:
        """Release everything. A second call does nothing."""
