"""The world's clock and queue of events, and the processes that live in it.

Processes run in turns. Each has its own loop, so one that is killed just has no more turns, and each is busy for as
long as its turn cost: others continue meanwhile.
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
"""The wall clock when a world begins."""

_START_NS: Final = 1_000 * NS_PER_S
"""The monotonic clock then: far from the wall clock, so that one taken for the other shows."""

_COSTS: Final = 256
_CLEAN_CANCELLED: Final = 100

Call = Callable[..., object]


class Stuck(Exception):
    """A world that makes no progress: its events follow each other without end and without time."""


class Event:
    """Something that is due."""

    __slots__ = ("args", "call")

    def __init__(self, call: Call, args: tuple[Any, ...]) -> None:
        self.call: Call | None = call
        self.args = args

    def cancel(self) -> None:
        """It does not happen."""
        self.call = None
        self.args = ()


class World:
    """See the module.

    Attributes:
        now_ns: the monotonic clock.
        wall_offset_ns: by how much the wall clock is ahead of it.
        current: the process whose turn it is; None: it is the turn of a broker, a client or the network.
        digest: of everything that crossed any socket.
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
        """Dice of one part of the world: what others throw does not change what they show."""
        return random.Random(f"{self.seed}/{name}")

    @property
    def now_ms(self) -> int:
        """The monotonic clock."""
        return self.now_ns // NS_PER_MS

    def at(self, when_ns: int, call: Call, *args: Any) -> Event:
        """Call it then."""
        event = Event(call, args)
        self._number += 1
        heapq.heappush(self._queue, (max(when_ns, self.now_ns), self._number, event))
        return event

    def after(self, delay_ns: int, call: Call, *args: Any) -> Event:
        """Call it after so long."""
        return self.at(self.now_ns + delay_ns, call, *args)

    def run(self, until_ns: int, done: Callable[[], bool] | None = None) -> None:
        """Let time pass until then, or until this is so."""
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
        """Bytes have come to the other end of a link; 0: of one between processes of one gateway.

        What these send each other is pickled, sets among it, whose order is another one in each run.
        """
        digest = self.digest
        digest.update(b"%d %d %d:" % (self.now_ns, link, len(data)))
        if link:
            digest.update(data)

    def next_pid(self) -> int:
        """Of a process that begins."""
        self._pids += 1
        return 1_000 + self._pids


class Process(asyncio.BaseEventLoop):
    """A process of the world: its loop.

    Attributes:
        name: for reports.
        pid: see `World.next_pid`.
        alive: False: it has no more turns.
        local_ns: its clock, which is ahead of the world's by what its turn has cost.
        descriptors: those that it has open.
        faults: what its code has raised and nothing has caught.
        paused_until_ns: it stood still until then.
    """

    def __init__(self, world: World, name: str, *, most_cost_ns: int = 60_000) -> None:
        """Nothing is to be done yet.

        Args:
            world: see above.
            name: see above; its dice are distinguished by it.
            most_cost_ns: of one callback.
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
        """The present callback takes so long."""
        self.local_ns += cost_ns

    def cpu_clock_ns(self) -> int:
        """What a clock of high resolution shows; each look costs a little."""
        self._calls += 1
        self.local_ns += self._costs_ns[self._calls % _COSTS]
        return self.local_ns

    # -- turns -----------------------------------------------------------------------------------------------

    def post(self, call: Call, *args: Any) -> None:
        """Call it in one of its next turns; from outside."""
        if self.alive:
            self.call_soon(call, *args)
            self._be_due(self.world.now_ns)

    def run_task(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a task; from outside."""
        task = asyncio.Task(coroutine, loop=self)
        self._be_due(self.world.now_ns)
        return task

    def enter(self, call: Call, *args: Any) -> Any:
        """Call it now, as if it were its turn."""
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
            self._be_due(int(scheduled[0]._when * 1e9) + 1)  # not before it, whatever a float rounds to

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
        """It stands still for so long, as if one callback took that time."""
        self.local_ns = self.paused_until_ns = max(self.local_ns, self.world.now_ns) + for_ns
        if self._due is not None:
            self._due.cancel()
            self._due = None
        self._arm()

    def kill(self) -> None:
        """It has no more turns, whatever it was about to do."""
        self.alive = False
        if self._due is not None:
            self._due.cancel()
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]

    def _on_fault(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        exc = context.get("exception")
        self.faults.append(f"{self.name}: {context.get('message')}: {exc!r}")

    def bury(self) -> None:
        """Let go of what its tasks hold, once the world has ended: what they do on their way out has no effect."""
        self.kill()
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            # Some wait in a `finally`, which a closed coroutine must not.
            with suppress(BaseException):
                task.get_coro().close()
        self.close()

    # -- what an event loop is asked for ---------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self, callback: Call, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """See `asyncio.AbstractEventLoop`."""
        if self.alive:
            handle = asyncio.Handle(callback, args, self, context)
            self._ready.append(handle)  # type: ignore[attr-defined]
            if self.world.current is not self:  # from outside: nothing else would wake it
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
        """See `asyncio.AbstractEventLoop`: it is done a little later, at once."""
        future = self.create_future()
        # Called in the context that asked for it, as `asyncio.to_thread` has it.
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
