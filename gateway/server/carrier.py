"""Sends counters from a process to the one that replaces it, with and without workers. [io]

See `gateway.server.carried`. With workers, the workers have the counters of byte rates and request time, and the
supervisor has those of mutations. The supervisor collects the state of its workers and passes rows on to them.

Of the two processes of a gateway, one is the member of its fleet: the old process until it leaves, then the new one.
The member also sends the fleet's usage to the other process. After the old process has left, the new process reports
the usage of both processes' clients to the fleet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.fleet.counters import AllCounters
from gateway.fleet.exchange import Exchange
from gateway.fleet.shares import Member, Used
from gateway.runtime.clock import NowMs
from gateway.server.carried import Heard, OwnUse, Row, furthest, states, take_states, take_use
from gateway.server.replacement import TellUse
from gateway.server.worker import WorkerSide
from gateway.server.workers import Worker, WorkerPool
from quotas.entities import QuotaKey
from quotas.shared_rate import ConnectionKey

TELL_S: Final = 0.1
"""The interval between two messages of usage."""

_PART: Final = 10
"""Looking through all counters, which may be many, takes at most a tenth of the time."""


class Carrier:
    """The counters of a gateway, in this process and in its workers."""

    def __init__(
        self,
        counters: AllCounters,
        pool: WorkerPool | None,
        now_ms: NowMs,
        exchange: Exchange | None = None,
    ) -> None:
        """Nothing is sent yet.

        Args:
            counters: those of this process.
            pool: the workers; None: there are none.
            now_ms: the clock.
            exchange: with the fleet; None: there is no fleet.
        """
        self._counters = counters
        self._pool = pool
        self._now_ms = now_ms
        self._own: OwnUse | None = None
        self._tell: TellUse | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard = Heard()
        self._name = None if exchange is None else exchange.member.id
        self._for_fleet = False
        if exchange is not None:
            exchange.on_use = self._hear
        if pool is not None:
            pool.handlers["use"] = lambda _worker, rows: self._worker_told(rows)
            pool.on_ready.append(self._worker_ready)

    async def states(self) -> list[Row]:
        """The state of all counters; usage from here on is sent later."""
        self._own = OwnUse(self._counters)
        rows = list(states(self._counters, now_ms=self._now_ms()))
        if self._pool is not None:
            answers = await self._pool.ask_all("counter_states")
            rows += furthest(row for answer in answers.values() for row in answer)
        return rows

    def take_states(self, rows: Sequence[Row]) -> None:
        """Raise the counters to at least these states."""
        take_states(self._counters, rows, now_ms=self._now_ms())
        if self._pool is not None:
            self._pool.tell_all("take_counter_states", rows)

    def tell_use(self, tell: TellUse) -> None:
        """From now on send the usage of clients."""
        self._tell = tell
        if self._own is None:
            self._own = OwnUse(self._counters)
        if self._pool is not None:
            self._pool.tell_all("tell_use", True)
        self._tick()

    def stop(self) -> None:
        """Send the remaining usage, then nothing more: the other process is gone or has failed."""
        if self._tell is not None:
            assert self._timer is not None
            self._timer.cancel()
            self._tell_once()
            self._tell = None
        self._own = None  # until a next upgrade, its counters may be forgotten
        if self._pool is not None:
            self._pool.tell_all("tell_use", False)

    def take_use(self, rows: Sequence[Row]) -> None:
        """Record the usage of the other process's clients."""
        take_use(self._counters, rows, for_fleet=self._for_fleet, now_ms=self._now_ms())
        if self._pool is not None:
            if self._for_fleet:  # workers get usage from the fleet, as members; the fleet has no mutes
                rows = [[*name, 0.0, left_until_ms] for *name, _, left_until_ms in rows if left_until_ms]
            self._pool.tell_all("take_use", rows)

    def tell_now(self) -> None:
        """Send the usage so far."""
        if self._tell is not None:
            self._tell_once()

    def earlier_left_fleet(self) -> None:
        """From now on this process reports the usage of the old process's clients to the fleet."""
        self._for_fleet = self._name is not None

    def _hear(self, member: Member, quota: QuotaKey, used: Sequence[Used]) -> None:
        # The gateway's own processes report their usage themselves.
        if self._tell is not None and member.id.rpartition("/")[0] != self._name != member.id:
            self._heard.add(quota, [each for each in used if not isinstance(each[0], ConnectionKey)])

    def _tick(self) -> None:
        began_s = time.perf_counter()
        self._tell_once()
        took_s = time.perf_counter() - began_s
        self._timer = asyncio.get_running_loop().call_later(max(TELL_S, _PART * took_s), self._tick)

    def _tell_once(self) -> None:
        assert self._own is not None
        self._worker_told(self._own.take() + self._heard.take())

    def _worker_told(self, rows: list[Row]) -> None:
        if self._tell is not None and rows:
            self._tell(rows)

    def _worker_ready(self, worker: Worker) -> None:
        if self._tell is not None:
            worker.link.tell("tell_use", True)


class WorkerCarrier:
    """The worker's side."""

    def __init__(self, worker: WorkerSide, counters: AllCounters, now_ms: NowMs) -> None:
        """Answer the supervisor from now on.

        Args:
            worker: the link to the supervisor.
            counters: of this process.
            now_ms: the clock.
        """
        self._worker = worker
        self._counters = counters
        self._own: OwnUse | None = None
        self._due_s = 0.0
        self._since_states: OwnUse | None = None
        self._now_ms = now_ms
        handlers: dict[str, Callable[..., Any]] = {
            "counter_states": self._states,
            "take_counter_states": lambda rows: take_states(counters, rows, now_ms=now_ms()),
            "tell_use": self._tell_use,
            "take_use": lambda rows: take_use(counters, rows, now_ms=now_ms()),
        }
        worker.handlers |= handlers
        worker.on_tick.append(self._tick)

    def _tell_use(self, wanted: bool) -> None:
        self._tell()
        self._own = (self._since_states or OwnUse(self._counters)) if wanted else None
        self._since_states = None

    def _states(self) -> list[Row]:
        self._since_states = OwnUse(self._counters)
        return list(states(self._counters, now_ms=self._now_ms()))

    def _tick(self) -> None:
        began_s = time.perf_counter()
        if began_s >= self._due_s:
            self._tell()
            self._due_s = began_s + _PART * (time.perf_counter() - began_s)

    def _tell(self) -> None:
        if self._own is not None and (rows := self._own.take()):
            self._worker.link.tell("use", rows)
