"""Quotas and the mode of enforcement while two processes serve: what is changed in the later one holds in both. [io]

The earlier process has clients until it has drained, and can't see what is asked of its successor: not the quotas,
unless they are in a topic, nor `sluice enforcement`, nor a reload. So the later one passes on what is in force there.
At the handover it takes over a mode that was set by hand, and what was reloaded since it has read the file; brakes
end with the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from gateway.quota_admin.store.interface import StoredChange
from gateway.quota_admin.store.live import LiveQuotas
from gateway.quota_admin.store.quota_json import entity_json, entity_of
from gateway.server.operations import Operations
from quotas.entities import QuotaKey
from quotas.layered_quotas import Owner, QuotaChange
from quotas.limits import Enforcement, validate

MODE: Final = "mode"
"""A message with the mode in force, and that of the configuration file."""

RELOAD: Final = "reload"
QUOTAS: Final = "quotas"
CHANGES: Final = (MODE, RELOAD, QUOTAS)
"""Messages that an earlier version passes over."""

_BY: Final = "the other process of an upgrade"

Tell: TypeAlias = Callable[[str, Sequence[Any]], None]
"""Sends a message of rows; see `HandoverLink.send_rows`."""


class ForwardedChanges:
    """One process's side."""

    def __init__(self, live: LiveQuotas, operations: Operations, *, both_follow: bool = False) -> None:
        """Nothing is passed on.

        Args:
            live: quotas in force.
            operations: the mode, and reloads.
            both_follow: each process reads changes of quotas by itself.
        """
        self._both_follow = both_follow
        self._live = live
        self._operations = operations
        self._one_at_a_time = asyncio.Lock()  # and in the order in which they come

    @property
    def mode(self) -> list[str]:
        """What `MODE` says."""
        return [self._operations.mode.value, self._operations.config.enforcement.mode.value]

    async def take_mode(self, told: Sequence[str]) -> None:
        """Follow the process before this one, unless the file says something else than it did there."""
        with suppress(ValueError):  # of another version
            mode, configured = map(Enforcement, told)
            operations = self._operations
            async with self._one_at_a_time:
                if mode is not operations.mode and configured is operations.config.enforcement.mode:
                    await operations.switch(mode, by=_BY)

    def tell_next(self, tell: Tell) -> None:
        """From now on pass on what a process that starts does not look at again: the file, and the mode."""

        def changed(what: str) -> None:
            if what == RELOAD:
                tell(RELOAD, [None])
            # Also behind a reload: for the other process the file may have had another mode before.
            tell(MODE, self.mode)

        self._operations.on_change = changed

    def tell(self, tell: Tell) -> None:
        """From now on pass on what is changed."""
        self.tell_next(tell)
        if not self._both_follow:
            self._live.on_change = lambda changes: tell(QUOTAS, list(_rows(changes)))

    def stop(self) -> None:
        """There is no other process any more."""
        self._operations.on_change = self._live.on_change = None

    async def take(self, what: str, body: Sequence[Any]) -> None:
        """Put in force what was changed in the other process."""
        async with self._one_at_a_time:
            if what == RELOAD:
                await self._operations.reload(by=_BY)
            elif what == MODE:
                with suppress(ValueError):
                    if (mode := Enforcement(body[0])) is not self._operations.mode:
                        await self._operations.switch(mode, by=_BY)
            else:
                await self._live.follow(list(_changes(body)))


def _rows(changes: Iterable[StoredChange]) -> Iterator[list[Any]]:
    for change in changes:
        if isinstance(change, QuotaChange):  # limits of brokers are those of the process that accepts
            yield [entity_json(change.entity), change.key.value, change.value, change.owner.value]


def _changes(rows: Iterable[list[Any]]) -> Iterator[QuotaChange]:
    for row in rows:
        with suppress(ValueError):  # of another version
            of, key, value, owner = row
            entity = entity_of(of)
            if value is None or validate(entity, key, value) is None:
                yield QuotaChange(entity, QuotaKey(key), value, Owner.of(owner))
