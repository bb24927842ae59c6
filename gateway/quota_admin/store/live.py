"""Quotas that change while the gateway runs: the store and the set in force, kept together.

What the store says comes into force here and nowhere else: a counter never sees a change that is not durable, and a
change that failed is not in force; of a shared store it may come later, as another gateway's does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from gateway.quota_admin.store.interface import Alteration, HistoryEntry, QuotaStore, StoreError
from quotas.layered_quotas import LayeredQuotas, QuotaChange
from quotas.limits import validate

MAX_WAITING: Final = 1_000
"""Alterations that wait for others; each connection has at most one."""

_log = structlog.get_logger("gateway.store")


@dataclass(slots=True)
class StoreCounts:
    """What has happened with the store.

    Attributes:
        writes: alterations that were made.
        failures: alterations that were not, whatever the reason.
        changed_at_ms: when the set last changed, monotonic clock, by whomever; None: never since the start.
    """

    writes: int = 0
    failures: int = 0
    changed_at_ms: int | None = None


class LiveQuotas:
    """See the module.

    Attributes:
        quotas: what is in force and where it came from.
        store: what keeps the overrides.
        counts: for the metrics.
    """

    def __init__(self, quotas: LayeredQuotas, store: QuotaStore, *, now_ms: Callable[[], int]) -> None:
        """Nothing is read yet.

        Args:
            quotas: gets everything that the store says.
            store: not open yet.
            now_ms: monotonic.
        """
        self.quotas = quotas
        self.store = store
        self.counts = StoreCounts()
        self._now_ms = now_ms
        self._opened = False
        self._draining = False
        self._waiting = 0

    async def open(self) -> None:
        """Read the store; afterwards what it says is in force.

        Raises:
            StoreError: it can't be used.
        """
        try:
            await self.store.open(self._on_change)
        except ValueError as exc:
            raise StoreError(f"it holds a quota that is not valid: {exc}") from exc
        self._opened = True

    def why_not_ready(self) -> str | None:
        """None once the store was read to its end and is followed, otherwise a few words for /readyz."""
        return self.store.stale if self._opened else "quota store not read yet"

    def drain(self) -> None:
        """Refuse alterations from now on: whoever asked might not get the answer."""
        self._draining = True

    async def alter(self, alteration: Alteration) -> int:
        """Change quotas; afterwards the change is durable and in force.

        Args:
            alteration: whether its author may is not asked here.

        Returns:
            The store's version that has it.

        Raises:
            StoreError: nothing of it is in force; see `QuotaStore.write`.
        """
        try:
            if self._draining:
                raise StoreError("the gateway is shutting down")
            if not self._opened:
                raise StoreError("the quota store was not read yet")
            # Once stored, what is not valid would be taken for damage at the next start.
            for change in alteration.changes:
                fault = change.value is not None and validate(change.entity, change.key, change.value)
                if fault:
                    raise StoreError(f"{change.entity}: {fault}")
            if self._waiting >= MAX_WAITING:
                raise StoreError("too many alterations wait already")
            self._waiting += 1
            try:
                version = await self.store.write(alteration)
            finally:
                self._waiting -= 1
        except StoreError as exc:
            self.counts.failures += 1
            _log.error("quotas_not_altered", by=alteration.by, via=alteration.via, error=str(exc))
            raise
        self.counts.writes += 1
        return version

    async def catch_up(self) -> None:
        """Returns when what other gateways had made before the call is in force here too.

        Raises:
            StoreError: it can't be read at the moment.
        """
        if not self._opened:
            raise StoreError("the quota store was not read yet")
        await self.store.catch_up()

    async def history(self, limit: int) -> list[HistoryEntry]:
        """The latest changes, the last one first.

        Raises:
            StoreError: it can't be read.
        """
        return await self.store.history(limit)

    async def close(self) -> None:
        """Release the store."""
        await self.store.close()

    def _on_change(self, changes: Sequence[QuotaChange], version: int) -> None:
        # They were looked at before they were written, and by the store when it read them.
        self.quotas.apply(changes, checked=True)
        if self._opened:
            self.counts.changed_at_ms = self._now_ms()
            _log.info("quotas_changed", changes=len(changes), version=version)
