"""Runs alterations that the quota handlers submit, one task each.

An alteration continues when its client has disconnected, because it may be durable already.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from gateway.quota_admin.rights import OnAltered
from gateway.quota_admin.store.interface import Alteration, StoreError
from gateway.quota_admin.store.live import LiveQuotas
from gateway.runtime.clock import NowMs

_log = structlog.get_logger("gateway.quota_admin")


class AlterationRunner:
    """Alterations in progress."""

    def __init__(self, live: LiveQuotas, now_ms: NowMs) -> None:
        self._live = live
        self._now_ms = now_ms
        self._tasks: set[asyncio.Task[None]] = set()

    def alter(self, alteration: Alteration, on_altered: OnAltered) -> None:
        """See `gateway.quota_admin.rights.Alter`."""
        task = asyncio.get_running_loop().create_task(self._alter(alteration, on_altered))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait for the alterations in progress. With a store on a disk that hangs, this has no time limit."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _alter(self, alteration: Alteration, on_altered: OnAltered) -> None:
        failure: str | None = None
        try:
            await self._live.alter(alteration)
        except StoreError as exc:
            failure = str(exc)
        except Exception as exc:  # noqa: BLE001  (the boundary: the client must get an answer)
            _log.error("alteration_failed", by=alteration.by, via=alteration.via, exc_info=exc)
            failure = "the quota store failed"
        try:
            steps = on_altered(failure, self._now_ms())
            if steps is None:
                return
            with suppress(StopIteration):
                next(steps)
                while True:
                    await asyncio.sleep(0)
                    steps.send(self._now_ms())
        except Exception as exc:  # noqa: BLE001  (a bug of ours, on a connection that may be gone)
            _log.error("alteration_not_answered", by=alteration.by, via=alteration.via, exc_info=exc)
