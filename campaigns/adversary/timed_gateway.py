"""The gateway with each event of its loop timed: `python -m campaigns.adversary.timed_gateway serve`.

The gateway's own watchdog costs only a timer and measures turns of the loop. A turn has many events when many clients
send at once. This program measures each callback and each call of a protocol, in CPU time of the loop's thread,
including garbage collections. It logs a line for the longest event so far of a second, and for each event above
`TOLD_MS`. The line has the time of collections, the number of page faults, and how often another thread got the CPU.
Once a second a line has the durations of turns by the watchdog's timer.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import structlog
import uvloop

from gateway.cli.main import main
from gateway.server.loop_watchdog import LoopWatchdog

TOLD_MS: Final = 20
"""The longest that one event may block the loop (benchmarks/results/limits.md)."""

EVENT: Final = "event_took"
TURNS: Final = "turns_took"
_PROTOCOL: Final = (
    "buffer_updated",
    "connection_lost",
    "connection_made",
    "data_received",
    "eof_received",
    "pause_writing",
    "resume_writing",
)
_log = structlog.get_logger("gateway.loop")


class _Clock:
    """Measures the outermost of nested calls."""

    def __init__(self) -> None:
        self.first_step_of: str | None = None
        self._inside = False
        self._most_ms = 1.0
        self._second = 0
        self._collection_ns = self._collected_ns = 0
        self._generation = -1

    def collecting(self, phase: str, info: dict[str, int]) -> None:
        """See `gc.callbacks`."""
        if phase == "start":
            self._collection_ns = time.thread_time_ns()
        elif self._inside:
            self._collected_ns += time.thread_time_ns() - self._collection_ns
            self._generation = max(self._generation, info["generation"])

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same callable, with its time measured."""
        first_step_of = self.first_step_of

        def measured(*args: Any, **more: Any) -> Any:
            if self._inside:
                return call(*args, **more)
            self._inside = True
            self._collected_ns, self._generation = 0, -1
            before = resource.getrusage(resource.RUSAGE_THREAD)
            began_ns, began_wall_ns = time.thread_time_ns(), time.monotonic_ns()
            try:
                return call(*args, **more)
            finally:
                took_ms = (time.thread_time_ns() - began_ns) / 1e6
                wall_ms = (time.monotonic_ns() - began_wall_ns) / 1e6
                self._inside = False
                if took_ms > 1.0:
                    self._long(took_ms, wall_ms, before, first_step_of, call, args)

        return measured

    def _long(
        self,
        took_ms: float,
        wall_ms: float,
        before: resource.struct_rusage,
        first_step_of: str | None,
        call: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> None:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._most_ms = second, 1.0
        if took_ms <= min(self._most_ms, TOLD_MS):
            return
        self._most_ms = max(self._most_ms, took_ms)
        owner = getattr(call, "__self__", args[0] if args else None)
        session = getattr(owner, "session", None)
        name = first_step_of or getattr(call, "__qualname__", None) or repr(call)
        after = resource.getrusage(resource.RUSAGE_THREAD)
        _log.info(
            EVENT,
            cpu_ms=round(took_ms, 1),
            handler=name,
            peer=getattr(session, "peer", ""),
            wall_ms=round(wall_ms, 1),
            collected_ms=round(self._collected_ns / 1e6, 1),
            generation=self._generation,
            kernel_ms=round((after.ru_stime - before.ru_stime) * 1000, 1),
            faults=after.ru_minflt - before.ru_minflt,
            switches=after.ru_nivcsw - before.ru_nivcsw,
        )


_CLOCK: Final = _Clock()


class TimedLoop(uvloop.Loop):
    """A loop that measures all its callbacks."""

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        """See `asyncio`."""
        return super().call_soon(_CLOCK.timed(callback), *args, context=context)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> Any:
        """See `asyncio`. The first step has no name, so it gets the coroutine's name."""
        _CLOCK.first_step_of = getattr(coro, "__qualname__", None)
        try:
            return super().create_task(coro, name=name, context=context)
        finally:
            _CLOCK.first_step_of = None

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        """See `asyncio`."""
        return super().call_soon_threadsafe(_CLOCK.timed(callback), *args, context=context)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        """See `asyncio`."""
        return super().call_later(delay, _CLOCK.timed(callback), *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        """See `asyncio`."""
        return super().call_at(when, _CLOCK.timed(callback), *args, context=context)

    def add_reader(self, fileobj: Any, callback: Any, *args: Any) -> None:
        """See `asyncio`."""
        super().add_reader(fileobj, _CLOCK.timed(callback), *args)


def _protocols(parent: type) -> Iterator[type]:
    for child in parent.__subclasses__():
        yield child
        yield from _protocols(child)


class _Turns:
    """Turns of the loop: how late each was for the watchdog's timer, limited to the CPU time of the loop's thread."""

    def __init__(self) -> None:
        self._tick = LoopWatchdog._tick
        self._turns = self._long = 0
        self._most_ms = 0.0
        self._second = 0

    def count(self, watchdog: LoopWatchdog) -> None:
        """In place of `LoopWatchdog._tick`."""
        now_s = time.monotonic()
        took_ms = 1_000 * min(now_s - watchdog._due_s, time.thread_time() - watchdog._cpu_s)
        self._turns += 1
        self._long += took_ms > TOLD_MS
        self._most_ms = max(self._most_ms, took_ms)
        if int(now_s) != self._second:
            _log.info(TURNS, turns=self._turns, long=self._long, cpu_ms=round(self._most_ms, 1))
            self._turns = self._long = 0
            self._most_ms, self._second = 0.0, int(now_s)
        self._tick(watchdog)


def time_events() -> None:
    """Begin to measure. All protocols must have been imported."""
    turns = _Turns()
    LoopWatchdog._tick = lambda watchdog: turns.count(watchdog)  # type: ignore[method-assign]
    gc.callbacks.append(_CLOCK.collecting)
    for protocol in set(_protocols(asyncio.BaseProtocol)):
        if protocol.__module__.startswith("gateway."):
            for name in _PROTOCOL:
                if name in vars(protocol):
                    setattr(protocol, name, _CLOCK.timed(vars(protocol)[name]))
    uvloop.Loop = TimedLoop  # type: ignore[misc]


if __name__ == "__main__":
    time_events()
    sys.exit(main())
