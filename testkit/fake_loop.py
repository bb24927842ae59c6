"""A fake loop for code that watches sockets and sets timers: real sockets, simulated time."""

from __future__ import annotations

import heapq
import select
from collections.abc import Callable
from typing import Any

from testkit.clock import FakeClock


class FakeTimer:
    """A handle as `call_later` returns it."""

    def __init__(self, due_ms: int, call: Callable[[], None]) -> None:
        self.due_ms = due_ms
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop:
    """The part of an event loop that an acceptor uses.

    Attributes:
        clock: the loop's clock.
        watched: file descriptors with a reader.
        turns: calls of readers so far.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.scheduler = 0
        self._readers: dict[int, Callable[[], None]] = {}
        self._timers: list[tuple[int, int, FakeTimer]] = []  # a heap: due time, then order of setting
        self._timers_set = 0

    @property
    def watched(self) -> list[int]:
        return list(self._readers)

    @property
    def timers(self) -> int:
        """The number of timers that will fire."""
        return sum(not timer.cancelled for _, _, timer in self._timers)

    def now_ms(self) -> int:
        return self.clock.now_ms

    def time(self) -> float:
        return self.clock.now_ms / 1000

    def add_reader(self, fd: int, call: Callable[..., None], *args: Any) -> None:
        self._readers[fd] = lambda: call(*args)

    def remove_reader(self, fd: int) -> bool:
        return self._readers.pop(fd, None) is not None

    def call_later(self, delay_s: float, call: Callable[..., None], *args: Any) -> FakeTimer:
        timer = FakeTimer(self.clock.now_ms + round(delay_s * 1000), lambda: call(*args))
        self._timers_set += 1
        heapq.heappush(self._timers, (timer.due_ms, self._timers_set, timer))
        return timer

    def turn(self) -> None:
        """Calls each reader that has something to read, once."""
        if not self._readers:
            return
        poll = select.poll()
        for fd in self._readers:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(0):
            if fd in self._readers:
                self.scheduler += 1
                self._readers[fd]()

    def run(self, *, turns: int = 100) -> None:
        """Runs iterations until there is nothing to do, at most `turns`."""
        for _ in range(turns):
            before = self.scheduler
            self.turn()
            if self.scheduler == before:
                return

    def advance(self, ms: int) -> None:
        """Lets time pass. Timers fire at their times, and readable sockets are read then."""
        end_ms = self.clock.now_ms + ms
        while self._timers and self._timers[0][0] <= end_ms:
            timer = heapq.heappop(self._timers)[2]
            if timer.cancelled:
                continue
            self.clock.advance_to(max(timer.due_ms, self.clock.now_ms))
            timer.call()
            self.run()
        self.clock.advance_to(end_ms)
        self.run()
