"""Quotas and broker limits of a running gateway: keeps the store and what is in force consistent.

What the store says comes into force here and nowhere else: a counter never sees a change that is not durable, and a
change that failed is not in force; of a shared store it may come later, as another gateway's does.
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
"""The name of these traces."""

_AT_ONCE: Final = 50
"""Changes that come into force together: some tenths of a millisecond."""

_Rates: TypeAlias = Mapping[QuotaEntity, Mapping[QuotaKey, float | None]]
"""What changes of rates and guarantees, by entity."""

_log = structlog.get_logger("gateway.store")


@dataclass(slots=True)
class StoreCounts:
    """What has happened with the store.

    Attributes:
        writes: alterations that were made.
        failures: alterations that were not, whatever the reason.
        changed_at_ms: when the set last changed, monotonic clock, by any gateway; None: never since the start.
    """

    writes: int = 0
    failures: int = 0
    changed_at_ms: int | None = None


class LiveQuotas:
    """See the module.

    Attributes:
        quotas: what is in force and where it came from.
        kept_limits: limits of brokers that the store has, those of other gateways' listeners among them.
        store: what keeps the overrides.
        counts: for the metrics.
        spread: hands changes that are in force here to other processes of this gateway, and returns when they are
            there; None: there are none.
        on_change: called with changes that are in force in all of them; None: nothing is.
    """

    def __init__(
        self,
        quotas: LayeredQuotas,
        store: QuotaStore,
        *,
        now_ms: Callable[[], int],
        traces: TraceSink | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            quotas: gets everything that the store says.
            store: not open yet.
            now_ms: monotonic.
            traces: of alterations; None: none are made.
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
        # None: those of the store are not in force.
        self._limits: BrokerLimits | None = None
        # Two alterations may be possible each by itself and not together.
        self._one_of_limits = asyncio.Lock()
        # Alterations under way: by entity what changes of rates and guarantees, and where there is a guarantee.
        self._rates_under_way: list[tuple[_Rates, set[QuotaEntity]]] = []
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

    def follow_limits(self, limits: BrokerLimits) -> None:
        """Put the limits of brokers in force that the store has, now and whenever they change.

        Raises:
            StoreError: they can't be in force here.
        """
        try:
            limits.put_in_force(self.kept_limits)
        except LimitError as exc:
            raise StoreError(f"its limits of brokers can't be in force: {exc}") from exc
        self._limits = limits
        if elsewhere := self.kept_limits.keys() - limits.keys:
            _log.warning("connection_limits_without_listener", settings=",".join(sorted(elsewhere)))

    def stored(self) -> tuple[list[StoredChange], int]:
        """Everything that the store says, as changes, and its version."""
        quotas = [
            QuotaChange(entity, key, value, self.quotas.owner(entity, key))
            for entity, key, value in self.quotas.overrides()
        ]
        limits = [LimitChange(name, value) for name, value in self.kept_limits.items()]
        return [*quotas, *limits], self.store.version

    def why_not_ready(self) -> str | None:
        """None once the store was read to its end and is followed, otherwise a few words for /readyz."""
        return self.store.stale or (None if self._opened else "quota store not read yet")

    def drain(self) -> None:
        """Refuse alterations from now on: the answer might not reach the client."""
        self._draining = True

    async def alter(self, alteration: Alteration) -> int:
        """Change quotas; afterwards the change is durable and in force.

        Args:
            alteration: the rights of its author are not looked at here.

        Returns:
            The store's version that has it.

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
            # Once stored, what is not valid would be taken for damage at the next start.
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
        """Returns when what other gateways had made before the call is in force here too.

        Raises:
            StoreError: it can't be read at the moment.
        """
        if not self._opened:
            raise StoreError("the quota store was not read yet")
        await self.store.catch_up()

    async def follow(self, changes: Sequence[StoredChange]) -> None:
        """Put in force what another process has in its store, which was this one's."""
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
        """Write changes of rates and guarantees, which have to go together when they are in force.

        Two alterations of one entity at once are not waited for: a store that hangs would hold up each in turn.
        """
        slices = Slices()
        guaranteed: set[QuotaEntity] = set()
        under_way = new, guaranteed
        self._refuse_beside(under_way)
        # From here on: a guarantee that came while it looks at the next ones would not be seen.
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
                    raise StoreError(f"{entity}: {fault}")
            return await self.store.write(alteration)
        finally:
            self._rates_under_way = [each for each in self._rates_under_way if each is not under_way]

    def _refuse_beside(self, under_way: tuple[_Rates, set[QuotaEntity]]) -> None:
        new, guaranteed = under_way
        for each in self._rates_under_way:
            rates, others = each
            if each is not under_way and not (guaranteed.isdisjoint(rates) and others.isdisjoint(new)):
                raise StoreError("a change of rates or guarantees of the same entity is under way; try again")

    async def _write_limits(self, alteration: Alteration, changes: Sequence[LimitChange]) -> int:
        async with self._one_of_limits:
            limits = self._limits
            if limits is not None:
                try:
                    limits.check(limits.own(_merged(self.kept_limits, changes)))
                except LimitError as exc:
                    raise StoreError(str(exc)) from exc
            return await self.store.write(alteration)

    async def _on_change(self, changes: Sequence[StoredChange], version: int) -> None:
        slices = Slices(every=1)
        for at in range(0, len(changes), _AT_ONCE):
            if at and slices.over:
                await slices.next()
            part = changes[at : at + _AT_ONCE]
            # They were looked at before they were written, and by the store when it read them.
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
            # Another gateway has set them, whose machine can do more. Those before stay.
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
            raise StoreError(f"{change.entity}: {fault}")
        return
    try:
        checked_limit(change.name, change.value)
    except LimitError as exc:
        raise StoreError(str(exc)) from exc
