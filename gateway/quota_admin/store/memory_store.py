"""A quota store that forgets everything at the end: for tests, and for gateways that shall begin anew each time."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

from gateway.quota_admin.store.interface import Alteration, HistoryEntry, OnChange, StoreError
from quotas.entities import QuotaEntity, QuotaKey
from quotas.layered_quotas import QuotaChange


class MemoryStore:
    """See the module.

    Attributes:
        version, bad_records, stale: see `QuotaStore`.
        read_only: None; with a text, everything is refused with it.
    """

    def __init__(
        self, *, now_ms: Callable[[], int], max_quotas: int = 200_000, max_history: int = 10_000
    ) -> None:
        """Empty.

        Args:
            now_ms: Unix time, for the history.
            max_quotas: how many overrides there may be.
            max_history: how many changes are remembered.
        """
        self.version = 0
        self.bad_records = 0
        self.read_only: str | None = None
        self.stale: str | None = None
        self._now_ms = now_ms
        self._max_quotas = max_quotas
        self._values: dict[tuple[QuotaEntity, QuotaKey], float] = {}
        self._history: deque[HistoryEntry] = deque(maxlen=max_history)
        self._on_change: OnChange = lambda _changes, _version: None

    async def open(self, on_change: OnChange) -> None:
        """There is nothing to load."""
        self._on_change = on_change
        on_change((), self.version)

    async def write(self, alteration: Alteration) -> int:
        """See `QuotaStore`."""
        if self.read_only is not None:
            raise StoreError(self.read_only)
        changes = effective(alteration.changes, lambda entity, key: self._values.get((entity, key)))
        if not changes:
            return self.version
        added = sum(1 for change, old in changes if old is None)
        removed = sum(1 for change, _ in changes if change.value is None)
        check_count(len(self._values) + added - removed, self._max_quotas, grows=added > removed)
        self.version += 1
        for change, old in changes:
            at = (change.entity, change.key)
            if change.value is None:
                del self._values[at]
            else:
                self._values[at] = change.value
            self._history.append(
                HistoryEntry(
                    self.version, self._now_ms(), alteration.by, alteration.via, *at, old, change.value
                )
            )
        self._on_change([change for change, _ in changes], self.version)
        return self.version

    async def catch_up(self) -> None:
        """There are no others."""

    async def history(self, limit: int) -> list[HistoryEntry]:
        """See `QuotaStore`."""
        return list(itertools.islice(reversed(self._history), limit))

    async def close(self) -> None:
        """Nothing is held."""


def effective(
    changes: tuple[QuotaChange, ...], value_of: Callable[[QuotaEntity, QuotaKey], float | None]
) -> list[tuple[QuotaChange, float | None]]:
    """The changes that change something, each with the override it replaces; of two for one quota the later one.

    Args:
        changes: of an alteration.
        value_of: the override so far.
    """
    last = {(change.entity, change.key): change for change in changes}
    found = ((change, value_of(*at)) for at, change in last.items())
    return [(change, old) for change, old in found if change.value != old]


def check_count(count: int, most: int, *, grows: bool) -> None:
    """Refuse an alteration that makes a full store grow.

    Raises:
        StoreError: there would be too many overrides.
    """
    if grows and count > most:
        raise StoreError(f"there would be {count} quotas, and quota_store.max_quotas allows {most}")
