"""A quota store in memory that is lost when the gateway ends: for tests and trials."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable

from gateway.quota_admin.store.interface import (
    NOTHING,
    Alteration,
    HistoryEntry,
    Kept,
    OnChange,
    Slot,
    StoredChange,
    StoreError,
    Value,
    check_count,
    effective_in_slices,
    owner_of,
    slot_of,
)
from gateway.quota_admin.store.writing import WritesInProgress
from gateway.runtime.slices import Slices, free


class MemoryStore:
    """See the module.

    Attributes:
        version, bad_records, unsigned_records, stale: see `QuotaStore`.
        read_only: None; if set to a text, all alterations are refused with it.
    """

    def __init__(
        self, *, now_ms: Callable[[], int], max_quotas: int = 200_000, max_history: int = 10_000
    ) -> None:
        """Starts empty.

        Args:
            now_ms: Unix time, for the history.
            max_quotas: the most overrides.
            max_history: the most changes in the history.
        """
        self.version = 0
        self.bad_records = 0
        self.unsigned_records = 0
        self.read_only: str | None = None
        self.stale: str | None = None
        self._now_ms = now_ms
        self._max_quotas = max_quotas
        self._kept: dict[Slot, Kept] = {}
        self._quotas = 0
        self._history: deque[HistoryEntry] = deque(maxlen=max_history)
        self._on_change: OnChange
        self._one_at_a_time = asyncio.Lock()
        self._writing = WritesInProgress()

    async def open(self, on_change: OnChange) -> None:
        """There is nothing to load."""
        self._on_change = on_change
        await on_change((), self.version)

    async def write(self, alteration: Alteration) -> int:
        """See `QuotaStore`."""
        if self.read_only is not None:
            raise StoreError(self.read_only)
        return await self._writing.carry_out(self._write(alteration))

    async def _write(self, alteration: Alteration) -> int:
        async with self._one_at_a_time:
            changes, _, grown = await effective_in_slices(
                alteration.changes, self._kept_of, alteration.expected
            )
            if not changes:
                return self.version
            check_count(self._quotas + grown, self._max_quotas, grows=grown > 0)
            self._quotas += grown
            self.version += 1
            slices = Slices()
            for change, old in changes:
                if slices.over:
                    await slices.next()
                self._set(change, old, alteration)
            await self._on_change([change for change, _ in changes], self.version)
            await free(changes)
        return self.version

    def _kept_of(self, slot: Slot) -> Kept:
        return self._kept.get(slot, NOTHING)

    def _set(self, change: StoredChange, old: Value | None, alteration: Alteration) -> None:
        slot = slot_of(change)
        if change.value is None:
            del self._kept[slot]
        else:
            self._kept[slot] = Kept(change.value, owner_of(change))
        self._history.append(
            HistoryEntry(
                self.version, self._now_ms(), alteration.by, alteration.via, *slot, old, change.value
            )
        )

    async def catch_up(self) -> None:
        """Does nothing: no other gateway uses this store."""

    async def history(self, limit: int) -> list[HistoryEntry]:
        """See `QuotaStore`."""
        return list(itertools.islice(reversed(self._history), limit))

    async def close(self) -> None:
        """Does nothing: there are no resources."""
