"""The world's clock and event queue, and the processes in the world.

Processes run in turns. Each has its own event loop, so a process that is killed just gets no more turns. A process is
busy for as long as its turn costs, and others continue meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import random
from asyncio import events
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000

EPOCH_NS: Final = 1_700_000_000 * NS_PER_S
"""The wall clock at the begin of a world."""

_START_NS: Final = 1_000 * NS_PER_S
"""The monotonic clock at that time. It is far from the wall clock, so that confusing the two is noticed."""

_COSTS: Final = 256
_CLEAN_CANCELLED: Final = 100

Call = Callable[..., object]


class Stuck(Exception):
    """A world without progress: events follow each other endlessly at the same time."""


class Event:
    """A scheduled call."""

    __slots__ = ("args", "call")

    def __init__(self, call: Call, args: tuple[Any, ...]) -> None:
        self.call: Call | None = call
        self.args = args

    def cancel(self) -> None:
        """Cancels the call."""
        self.call = None
        self.args = ()


class World:
    """The world; see the module's docstring.

    Attributes:
        now_ns: the monotonic clock.
        wall_offset_ns: wall clock minus monotonic clock.
        current: the process whose turn it is; None: a broker, a client or the network is active.
        digest: hash of all bytes that crossed any socket.
        after_event: called after each event.
    """

    def __init__(self, seed: object) -> None:
        self.seed = seed
        self.now_ns = _START_NS
        self.wall_offset_ns = EPOCH_NS - _START_NS
        self.current: Process | None = None
        self.digest = hashlib.blake2b(digest_size=16)
        self.events = 0
        self.after_event: Callable[[], None] | None = None
        self._queue: list[tuple[int, int, Event]] = []
        self._number = 0
        self._pids = 0
        self._same_time = 0

    def dice(self, name: str) -> random.Random:
        """Random numbers for one part of the world. Each part has its own, independent of other parts."""
        return random.Random(f"{self.seed}/{name}")

    @property
    def now_ms(self) -> int:
        """The monotonic clock."""
        return self.now_ns // NS_PER_MS

    def at(self, when_ns: int, call: Call, *args: Any) -> Event:
        """Schedules a call at a time."""
        event = Event(call, args)
        self._number += 1
        heapq.heappush(self._queue, (max(when_ns, self.now_ns), self._number, event))
        return event

    def after(self, delay_ns: int, call: Call, *args: Any) -> Event:
        """Schedules a call after a delay."""
        return self.at(self.now_ns + delay_ns, call, *args)

    def run(self, until_ns: int, done: Callable[[], bool] | None = None) -> None:
        """Lets time pass until `until_ns`, or until `done` returns True."""
        queue = self._queue
        while queue and queue[0][0] <= until_ns:
            if done is not None and done():
                return
            when_ns, _, event = heapq.heappop(queue)
            call = event.call
            if call is None:
                continue
            if when_ns > self.now_ns:
                self.now_ns = when_ns
                self._same_time = 0
            else:
                self._same_time += 1
                if self._same_time > 200_000:
                    raise Stuck(f"at {when_ns} ns: {call}")
            self.events += 1
            call(*event.args)
            if self.after_event is not None:
                self.after_event()
        if done is None or not done():
            self.now_ns = max(self.now_ns, until_ns)

    def crossed(self, link: int, data: bytes) -> None:
        """Records that bytes have reached the other end of a link. Link 0 is between processes of one gateway.

        Bytes on link 0 are not part of the digest. They are pickled and contain sets, whose order differs in each
        run.
        """
        digest = self.digest
        digest.update(b"%d %d %d:" % (self.now_ns, link, len(data)))
        if link:
            digest.update(data)

    def next_pid(self) -> int:
        """The id of a new process."""
        self._pids += 1
        return 1_000 + self._pids


class Process(asyncio.BaseEventLoop):
    """A process of the world, as its event loop.

    Attributes:
        name: for reports.
        pid: see `World.next_pid`.
        alive: False: it gets no more turns.
        local_ns: its clock, which is ahead of the world's by the cost of its turn.
        descriptors: its open descriptors.
        faults: exceptions that its code has raised and not caught.
        paused_until_ns: the end of its last pause.
    """

    def __init__(self, world: World, name: str, *, most_cost_ns: int = 60_000) -> None:
        """Creates a process without work.

        Args:
            world: the world.
            name: for reports; also identifies its random numbers.
            most_cost_ns: the longest time of one callback.
        """
        super().__init__()
        self.set_debug(False)
        self.world = world
        self.name = name
        self.pid = world.next_pid()
        self.alive = True
        self.local_ns = world.now_ns
        self.descriptors: set[int] = set()
        self.faults: list[str] = []
        self.paused_until_ns = 0
        self.turns = 0
        dice = world.dice(f"cpu/{name}/{self.pid}")
        self._costs_ns = [dice.randrange(2_000, most_cost_ns) for _ in range(_COSTS)]
        self._calls = 0
        self._due: Event | None = None
        self._due_ns = 0
        self.set_exception_handler(self._on_fault)

    # -- time ------------------------------------------------------------------------------------------------

    def time(self) -> float:
        """See `asyncio.AbstractEventLoop`."""
        return self.local_ns / 1e9

    def spend(self, cost_ns: int) -> None:
        """Adds to the time that the present callback takes."""
        self.local_ns += cost_ns

    def cpu_clock_ns(self) -> int:
        """The value of a high-resolution clock; each reading costs a little time."""
        self._calls += 1
        self.local_ns += self._costs_ns[self._calls % _COSTS]
        return self.local_ns

    # -- turns -----------------------------------------------------------------------------------------------

    def post(self, call: Call, *args: Any) -> None:
        """Schedules a call in one of its next turns; called from outside."""
        if self.alive:
            self.call_soon(call, *args)
            self._be_due(self.world.now_ns)

    def run_task(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a task; called from outside."""
        task = asyncio.Task(coroutine, loop=self)
        self._be_due(self.world.now_ns)
        return task

    def enter(self, call: Call, *args: Any) -> Any:
        """Calls a function now, as if it were the process's turn."""
        world = self.world
        loop, before = events._get_running_loop(), world.current
        events._set_running_loop(self)
        world.current = self
        self.local_ns = max(self.local_ns, world.now_ns)
        try:
            return call(*args)
        finally:
            events._set_running_loop(loop)
            world.current = before
            self._arm()

    def _be_due(self, when_ns: int) -> None:
        when_ns = max(when_ns, self.local_ns)
        if self._due is not None:
            if self._due_ns <= when_ns:
                return
            self._due.cancel()
        self._due_ns = when_ns
        self._due = self.world.at(when_ns, self._turn)

    def _turn(self) -> None:
        self._due = None
        if self.alive:
            self.turns += 1
            self.enter(self._run_once)

    def _run_once(self) -> None:
        scheduled, ready, costs = self._scheduled, self._ready, self._costs_ns  # type: ignore[attr-defined]
        end = self.local_ns / 1e9
        while scheduled and (scheduled[0]._cancelled or scheduled[0]._when <= end):
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            if not timer._cancelled:
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            handle._run()
            if not self.alive:
                return
            self._calls = calls = self._calls + 1
            self.local_ns += costs[calls % _COSTS]

    def _arm(self) -> None:
        if not self.alive:
            return
        if self._ready:  # type: ignore[attr-defined]
            self._be_due(self.local_ns)
            return
        scheduled = self._scheduled  # type: ignore[attr-defined]
        if len(scheduled) > _CLEAN_CANCELLED and self._timer_cancelled_count * 2 > len(scheduled):
            self._forget_cancelled(scheduled)
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if scheduled:
            self._be_due(int(scheduled[0]._when * 1e9) + 1)  # not before it, despite rounding

    def _forget_cancelled(self, scheduled: list[asyncio.TimerHandle]) -> None:
        kept = []
        for timer in scheduled:
            if timer._cancelled:
                timer._scheduled = False  # type: ignore[attr-defined]
            else:
                kept.append(timer)
        heapq.heapify(kept)
        scheduled[:] = kept
        self._timer_cancelled_count = 0

    def pause(self, for_ns: int) -> None:
        """Stops for a time, as if one callback took that long."""
        self.local_ns = self.paused_until_ns = max(self.local_ns, self.world.now_ns) + for_ns
        if self._due is not None:
            self._due.cancel()
            self._due = None
        self._arm()

    def kill(self) -> None:
        """Ends its turns, even in the middle of work."""
        self.alive = False
        if self._due is not None:
            self._due.cancel()
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]

    def _on_fault(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        exc = context.get("exception")
        self.faults.append(f"{self.name}: {context.get('message')}: {exc!r}")

    def bury(self) -> None:
        """Releases objects of its tasks after the world has ended. Their cleanup has no effect."""
        self.kill()
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            # Some tasks await in a `finally`, which raises an error when the coroutine is closed.
            with suppress(BaseException):
                task.get_coro().close()
        self.close()

    # -- the interface of an event loop ----------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self, callback: Call, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """See `asyncio.AbstractEventLoop`."""
        if self.alive:
            handle = asyncio.Handle(callback, args, self, context)
            self._ready.append(handle)  # type: ignore[attr-defined]
            if self.world.current is not self:  # called from outside, so nothing else wakes this process
                self._be_due(self.world.now_ns)
            return handle
        return asyncio.Handle(callback, args, self, context)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Call, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """See `asyncio.AbstractEventLoop`; there is one thread."""
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, _executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """See `asyncio.AbstractEventLoop`: the function runs a little later, in zero time."""
        future = self.create_future()
        # Called in the caller's context, as in `asyncio.to_thread`.
        self.call_later(0.0003, self._execute, future, func, args)
        return future

    def _execute(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if future.cancelled():
            return
        try:
            result = func(*args)
        except Exception as exc:
            if isinstance(exc, StopIteration):
                raise
            future.set_exception(exc)
        else:
            future.set_result(result)
