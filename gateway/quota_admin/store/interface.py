"""The interface of every quota store.

A store holds *overrides*: what was changed in a running gateway, quotas and connection limits of brokers. What the
configuration file says is not in it (see `quotas.layered_quotas`). It hands every change, its own and those of other
gateways, to one function, in one order.

Each is a value in a slot: (entity, quota key) for a quota, (None, setting) for a connection limit (KIP-402, KIP-612),
which is one of all brokers: every gateway that shares the store has it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from gateway.runtime.slices import Slices, free
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
    changes: Iterable[StoredChange], value_of: Callable[[Slot], Value | None]
) -> Effective:
    """`effective` and `growth`, in the loop."""
    slices = Slices()
    last = {}
    for change in changes:
        if slices.over:
            await slices.next()
        last[slot_of(change)] = change
    found: list[tuple[StoredChange, Value | None]] = []
    grown = 0
    for slot, change in last.items():
        if slices.over:
            await slices.next()
        if change.value != (old := value_of(slot)):
            found.append((change, old))
            grown += growth(found[-1:])
    slots = len(last)
    await free(last)
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
    """

    by: str
    via: str
    changes: tuple[StoredChange, ...]


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


class StoreError(Exception):
    """The store can't do it. The text may be shown to clients."""


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
