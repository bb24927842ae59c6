"""Quotas and broker limits of a running gateway: keeps the store and what is in force consistent.

The store's values are put in force here and nowhere else. So counters never use a change that is not durable, and a
failed change is not in force. In a shared store a failed change may still come into force later, like a change of
another gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import structlog

from gateway.observability.traces import Attribute, Trace, TraceSink
from gateway.quota_admin.broker_limits import BrokerLimits, LimitError, checked_limit
from gateway.quota_admin.store.interface import (
    Alteration,
    AlterationRefusedError,
    HistoryEntry,
    LimitChange,
    OnChange,
    QuotaStore,
    StoredChange,
    StoreError,
)
from gateway.runtime.slices import Slices
from quotas.entities import GUARANTEE_KEYS, QuotaEntity, QuotaKey
from quotas.layered_quotas import OF_GUARANTEES, LayeredQuotas, QuotaChange
from quotas.limits import validate

MAX_WAITING: Final = 1_000
"""Alterations that wait for others; each connection has at most one."""

ALTERATION: Final = "alter_quotas"
"""The name of the traces of alterations."""

_AT_ONCE: Final = 50
"""Changes that are put in force in one step, which takes some tenths of a millisecond."""

_Rates: TypeAlias = Mapping[QuotaEntity, Mapping[QuotaKey, float | None]]
"""The changes of rates and guarantees, by entity."""

_log = structlog.get_logger("gateway.store")


@dataclass(slots=True)
class StoreCounts:
    """Counts of the store's operations.

    Attributes:
        writes: alterations that were made.
        failures: alterations that failed. Those that were refused for their content, or because of another
            alteration, do not count.
        changed_at_ms: the last change by any gateway, monotonic clock; None: none since the start.
    """

    writes: int = 0
    failures: int = 0
    changed_at_ms: int | None = None


class LiveQuotas:
    """See the module.

    Attributes:
        quotas: the values in force and their sources.
        kept_limits: the store's limits of brokers, including those of other gateways' listeners.
        store: the store of the overrides.
        counts: for the metrics.
        spread: passes changes that are in force here to the other processes of this gateway, and returns when they
            have them; None: there are no other processes.
        on_change: called with changes that are in force in all processes; None: none is called.
    """

    def __init__(
        self,
        quotas: LayeredQuotas,
        store: QuotaStore,
        *,
        now_ms: Callable[[], int],
        traces: TraceSink | None = None,
    ) -> None:
        """Reads nothing yet.

        Args:
            quotas: receives all values of the store.
            store: not open yet.
            now_ms: the monotonic clock.
            traces: receives traces of alterations; None: no traces are made.
        """
        self._traces = traces
        self.quotas = quotas
        self.kept_limits: dict[str, str] = {}
        self.store = store
        self.counts = StoreCounts()
        self.spread: OnChange | None = None
        self.on_change: Callable[[Sequence[StoredChange]], None] | None = None
        self._now_ms = now_ms
        self._opened = False
        # None: the store's limits are not in force.
        self._limits: BrokerLimits | None = None
        # Two alterations of limits may each be valid alone but not together, so one is made at a time.
        self._one_of_limits = asyncio.Lock()
        # Alterations in progress: their changes of rates and guarantees, and the entities with a guarantee.
        self._rates_under_way: list[tuple[_Rates, set[QuotaEntity]]] = []
        self._draining = False
        self._waiting = 0

    async def open(self) -> None:
        """Read the store; afterwards its quotas are in force.

        Raises:
            StoreError: the store can't be used.
        """
        try:
            await self.store.open(self._on_change)
        except ValueError as exc:
            raise StoreError(f"it holds a quota that is not valid: {exc}") from exc
        self._opened = True

    def follow_limits(self, limits: BrokerLimits) -> None:
        """Put the store's limits of brokers in force, now and after each change.

        Raises:
            StoreError: the limits can't be in force here.
        """
        try:
            limits.put_in_force(self.kept_limits)
        except LimitError as exc:
            raise StoreError(f"its limits of brokers can't be in force: {exc}") from exc
        self._limits = limits
        if elsewhere := self.kept_limits.keys() - limits.keys:
            _log.warning("connection_limits_without_listener", settings=",".join(sorted(elsewhere)))

    def stored(self) -> tuple[list[StoredChange], int]:
        """All values of the store, as changes, and its version."""
        quotas = [
            QuotaChange(entity, key, value, self.quotas.owner(entity, key))
            for entity, key, value in self.quotas.overrides()
        ]
        limits = [LimitChange(name, value) for name, value in self.kept_limits.items()]
        return [*quotas, *limits], self.store.version

    def why_not_ready(self) -> str | None:
        """Why the gateway is not ready, for /readyz; None once the store was read to its end and is followed."""
        return self.store.stale or (None if self._opened else "quota store not read yet")

    def drain(self) -> None:
        """Refuse alterations from now on, because the response might not reach the client."""
        self._draining = True

    async def alter(self, alteration: Alteration) -> int:
        """Change quotas; afterwards the change is durable and in force.

        Args:
            alteration: the rights of its author are not checked here.

        Returns:
            The store's version that includes it.

        Raises:
            StoreError: nothing of it is in force; see `QuotaStore.write`.
        """
        trace = None
        if self._traces is not None:
            attributes: dict[str, Attribute] = {
                "enduser.id": alteration.by,
                "sluice.via": alteration.via,
                "sluice.changes": len(alteration.changes),
            }
            trace = Trace(self._traces, ALTERATION, attributes, now_ms=self._now_ms())
        try:
            version = await self._alter(alteration)
        except StoreError as exc:
            if isinstance(exc, AlterationRefusedError):
                _log.info("alteration_refused", by=alteration.by, via=alteration.via, reason=str(exc))
            else:
                self.counts.failures += 1
                _log.error("quotas_not_altered", by=alteration.by, via=alteration.via, error=str(exc))
            if trace is not None:
                trace.end(str(exc), now_ms=self._now_ms())
            raise
        self.counts.writes += 1
        if trace is not None:
            trace.end(now_ms=self._now_ms(), version=version)
        return version

    async def _alter(self, alteration: Alteration) -> int:
        if self._draining:
            raise StoreError("the gateway is shutting down")
        if not self._opened:
            raise StoreError("the quota store was not read yet")
        if self._waiting >= MAX_WAITING:
            raise StoreError("too many alterations wait already")
        self._waiting += 1
        try:
            # The next start would take a stored value that is not valid for damage.
            slices = Slices()
            guarantees: dict[QuotaEntity, dict[QuotaKey, float | None]] = {}
            for change in alteration.changes:
                if slices.over:
                    await slices.next()
                _require_valid(change)
                if isinstance(change, QuotaChange) and change.key in OF_GUARANTEES:
                    guarantees.setdefault(change.entity, {})[change.key] = change.value
            if guarantees:
                return await self._write_guarantees(alteration, guarantees)
            limits = [change for change in alteration.changes if isinstance(change, LimitChange)]
            return await (self._write_limits(alteration, limits) if limits else self.store.write(alteration))
        finally:
            self._waiting -= 1

    async def catch_up(self) -> None:
        """Returns when all alterations that other gateways made before the call are in force here too.

        Raises:
            StoreError: the store can't be read now.
        """
        if not self._opened:
            raise StoreError("the quota store was not read yet")
        await self.store.catch_up()

    async def follow(self, changes: Sequence[StoredChange]) -> None:
        """Put in force the changes of the process that has taken over this process's store."""
        await self._on_change(changes, self.store.version)

    async def history(self, limit: int) -> list[HistoryEntry]:
        """The latest changes, the last one first.

        Raises:
            StoreError: it can't be read.
        """
        return await self.store.history(limit)

    async def close(self) -> None:
        """Release the store."""
        await self.store.close()

    async def _write_guarantees(self, alteration: Alteration, new: _Rates) -> int:
        """Write changes of rates and guarantees, which must be consistent when they are in force.

        Of two simultaneous alterations of one entity the second is refused and does not wait: with a store that
        hangs, each would wait for the one before.
        """
        slices = Slices()
        guaranteed: set[QuotaEntity] = set()
        under_way = new, guaranteed
        self._refuse_beside(under_way)
        # Registered before the checks below: otherwise a guarantee that is added meanwhile would be missed.
        self._rates_under_way.append(under_way)
        try:
            for entity, values in new.items():
                if slices.over:
                    await slices.next()
                if any(
                    values.get(key) or self.quotas.limits.get(entity, key) for key in GUARANTEE_KEYS.values()
                ):
                    guaranteed.add(entity)
            self._refuse_beside(under_way)
            for entity in guaranteed:
                if (fault := self.quotas.guarantee_fault(entity, new[entity])) is not None:
                    raise AlterationRefusedError(f"{entity}: {fault}")
            return await self.store.write(alteration)
        finally:
            self._rates_under_way = [each for each in self._rates_under_way if each is not under_way]

    def _refuse_beside(self, under_way: tuple[_Rates, set[QuotaEntity]]) -> None:
        new, guaranteed = under_way
        for each in self._rates_under_way:
            rates, others = each
            if each is not under_way and not (guaranteed.isdisjoint(rates) and others.isdisjoint(new)):
                raise AlterationRefusedError(
                    "a change of rates or guarantees of the same entity is under way; try again"
                )

    async def _write_limits(self, alteration: Alteration, changes: Sequence[LimitChange]) -> int:
        async with self._one_of_limits:
            limits = self._limits
            if limits is not None:
                try:
                    limits.check(limits.own(_merged(self.kept_limits, changes)))
                except LimitError as exc:
                    raise AlterationRefusedError(str(exc)) from exc
            return await self.store.write(alteration)

    async def _on_change(self, changes: Sequence[StoredChange], version: int) -> None:
        slices = Slices(every=1)
        for at in range(0, len(changes), _AT_ONCE):
            if at and slices.over:
                await slices.next()
            part = changes[at : at + _AT_ONCE]
            # The changes were checked before they were written, and by the store when it read them.
            self.quotas.apply((c for c in part if isinstance(c, QuotaChange)), checked=True)
        if limits := [change for change in changes if isinstance(change, LimitChange)]:
            self.kept_limits = _merged(self.kept_limits, limits)
            self._put_limits_in_force()
        if self.spread is not None:
            await self.spread(changes, version)
        if self.on_change is not None:
            self.on_change(changes)
        if self._opened:
            self.counts.changed_at_ms = self._now_ms()
            _log.info("quotas_changed", changes=len(changes), version=version)

    def _put_limits_in_force(self) -> None:
        if self._limits is None:
            return
        try:
            self._limits.put_in_force(self.kept_limits)
        except LimitError as exc:
            # Another gateway, whose machine supports more, has set them. The previous limits stay in force.
            _log.error("connection_limits_not_in_force", error=str(exc))


def _merged(kept: Mapping[str, str], changes: Iterable[LimitChange]) -> dict[str, str]:
    after = {**kept, **{change.name: change.value for change in changes}}
    return {name: value for name, value in after.items() if value is not None}


def _require_valid(change: StoredChange) -> None:
    if change.value is None:
        return
    if isinstance(change, QuotaChange):
        fault = validate(change.entity, change.key, change.value)
        if fault:
            raise AlterationRefusedError(f"{change.entity}: {fault}")
        return
    try:
        checked_limit(change.name, change.value)
    except LimitError as exc:
        raise AlterationRefusedError(str(exc)) from exc
