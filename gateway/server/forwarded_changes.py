"""Quotas and enforcement while two processes serve: a change in the new process is in force in both. [io]

The old process has clients until it has drained, but does not receive changes made in the new process: quotas (unless
they are in a topic), `sluice enforcement`, and reloads. So the new process forwards them. At the handover the new
process takes over a mode that was set by hand, and reloads made since it read the file. Brakes end with the old
process.
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
"""The message with the mode in force and the mode of the configuration file."""

RELOAD: Final = "reload"
QUOTAS: Final = "quotas"
CHANGES: Final = (MODE, RELOAD, QUOTAS)
"""Messages that an earlier version ignores."""

_BY: Final = "the other process of an upgrade"

Tell: TypeAlias = Callable[[str, Sequence[Any]], None]
"""Sends a message of rows; see `HandoverLink.send_rows`."""


class ForwardedChanges:
    """One process's side."""

    def __init__(self, live: LiveQuotas, operations: Operations, *, both_follow: bool = False) -> None:
        """Nothing is forwarded yet.

        Args:
            live: quotas in force.
            operations: the mode, and reloads.
            both_follow: both processes read changes of quotas from the store, so quotas are not forwarded.
        """
        self._both_follow = both_follow
        self._live = live
        self._operations = operations
        self._one_at_a_time = asyncio.Lock()  # keeps the order of arrival

    @property
    def mode(self) -> list[str]:
        """The body of a `MODE` message."""
        return [self._operations.mode.value, self._operations.config.enforcement.mode.value]

    async def take_mode(self, told: Sequence[str]) -> None:
        """Take over the old process's mode, unless the file's mode differs from the one that it read."""
        with suppress(ValueError):  # a mode of another version
            mode, configured = map(Enforcement, told)
            operations = self._operations
            async with self._one_at_a_time:
                if mode is not operations.mode and configured is operations.config.enforcement.mode:
                    await operations.switch(mode, by=_BY)

    def tell_next(self, tell: Tell) -> None:
        """From now on forward reloads and the mode: a starting process reads the file only once."""

        def changed(what: str) -> None:
            if what == RELOAD:
                tell(RELOAD, [None])
            # Also after a reload: the other process may have read a file with another mode.
            tell(MODE, self.mode)

        self._operations.on_change = changed

    def tell(self, tell: Tell) -> None:
        """From now on forward all changes."""
        self.tell_next(tell)
        if not self._both_follow:
            self._live.on_change = lambda changes: tell(QUOTAS, list(_rows(changes)))

    def stop(self) -> None:
        """Forward no more: there is no other process."""
        self._operations.on_change = self._live.on_change = None

    async def take(self, what: str, body: Sequence[Any]) -> None:
        """Put a change of the other process in force."""
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
        if isinstance(change, QuotaChange):  # broker limits concern only the process that accepts
            yield [entity_json(change.entity), change.key.value, change.value, change.owner.value]


def _changes(rows: Iterable[list[Any]]) -> Iterator[QuotaChange]:
    for row in rows:
        with suppress(ValueError):  # a row of another version
            of, key, value, owner = row
            entity = entity_of(of)
            if value is None or validate(entity, key, value) is None:
                yield QuotaChange(entity, QuotaKey(key), value, Owner.of(owner))
