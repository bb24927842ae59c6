"""The supervisor's quota store as a worker uses it: one more `QuotaStore`.

A write is sent to the supervisor. Before the answer, the change comes back to all workers, including this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from gateway.quota_admin.store.interface import Alteration, HistoryEntry, OnChange, StoredChange, StoreError
from gateway.server.link import Link, LinkLost


class RemoteStore:
    """See the module.

    Attributes:
        version, read_only, bad_records, unsigned_records, stale: see `QuotaStore`. Only the version is real. The
            others have the values of a store without faults, as the supervisor reports faults.
    """

    def __init__(self, link: Link, handlers: dict[str, Callable[..., Any]]) -> None:
        """Not open yet.

        Args:
            link: to the supervisor.
            handlers: gets the handler for changes that the supervisor sends.
        """
        self.version = 0
        self.read_only: str | None = None
        self.bad_records = 0
        self.unsigned_records = 0
        self.stale: str | None = None
        self._link = link
        self._on_change: OnChange
        self._one_at_a_time = asyncio.Lock()
        handlers["quotas_changed"] = self._changed

    async def open(self, on_change: OnChange) -> None:
        """See `QuotaStore`."""
        self._on_change = on_change
        async with self._one_at_a_time:
            changes, self.version = await self._ask("open_store")
            await on_change(changes, self.version)

    async def write(self, alteration: Alteration) -> int:
        """See `QuotaStore`."""
        return int(await self._ask("write", alteration))

    async def catch_up(self) -> None:
        """See `QuotaStore`."""
        await self._ask("catch_up")

    async def history(self, limit: int) -> list[HistoryEntry]:
        """See `QuotaStore`."""
        found: list[HistoryEntry] = await self._ask("history", limit)
        return found

    async def close(self) -> None:
        """Nothing to close."""

    async def _ask(self, what: str, *values: Any) -> Any:
        try:
            return await self._link.ask(what, *values)
        except LinkLost as exc:
            raise StoreError("the gateway is shutting down") from exc

    async def _changed(self, changes: Sequence[StoredChange], version: int) -> None:
        async with self._one_at_a_time:
            self.version = version
            await self._on_change(changes, version)
