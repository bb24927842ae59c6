"""Quota stores of tests, how to make them, and a record of their calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from gateway.quota_admin.store.interface import (
    Alteration,
    LimitChange,
    QuotaStore,
    Slot,
    StoredChange,
    Value,
    slot_of,
)
from gateway.quota_admin.store.sqlite_store import SqliteStore
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.layered_quotas import QuotaChange

AT_MS: Final = 1_700_000_000_000

ALICE: Final = QuotaEntity(user="alice")
ANYBODY: Final = QuotaEntity(user=DEFAULT)
APP: Final = QuotaEntity(client_id="app")
PRODUCE: Final = QuotaKey.PRODUCER_BYTE_RATE
FETCH: Final = QuotaKey.CONSUMER_BYTE_RATE


class Seen:
    """A store's calls so far, and `values` as a gateway would have them."""

    def __init__(self) -> None:
        self.values: dict[Slot, Value] = {}
        self.calls: list[tuple[Sequence[StoredChange], int]] = []

    async def __call__(self, changes: Sequence[StoredChange], version: int) -> None:
        self.calls.append((tuple(changes), version))
        for change in changes:
            if change.value is None:
                self.values.pop(slot_of(change), None)
            else:
                self.values[slot_of(change)] = change.value


def alteration(*changes: tuple[QuotaEntity, QuotaKey, float | None], by: str = "User:admin") -> Alteration:
    """An alteration that an admin requests."""
    return Alteration(by, "a test", tuple(QuotaChange(*change) for change in changes))


def limit_alteration(**limits: str | None) -> Alteration:
    """An alteration of brokers' connection limits, with underscores for the dots in their names."""
    changes = (LimitChange(name.replace("_", "."), value) for name, value in limits.items())
    return Alteration("User:admin", "a test", tuple(changes))


def sqlite_store(path: Path, *, max_quotas: int = 1_000, max_history: int = 100) -> SqliteStore:
    """A store that is not open yet."""
    return SqliteStore(path, now_ms=lambda: AT_MS, max_quotas=max_quotas, max_history=max_history)


@asynccontextmanager
async def opened(store: QuotaStore) -> AsyncIterator[Seen]:
    """Opens a store, and closes it at the end."""
    seen = Seen()
    await store.open(seen)
    try:
        yield seen
    finally:
        await store.close()
