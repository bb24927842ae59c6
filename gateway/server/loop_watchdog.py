"""Measures how long events block the loop, and which code did it.

A timer in the loop measures how late it is called. When it is overdue, a thread looks at the loop's stack. The data
path pays nothing. While hardly anything happens, the timer is called less often, because waking an idle process a
hundred times a second takes 1.8 % of a core. The first stall after a quiet time may then be reported as shorter by up
to that interval. If C code keeps the interpreter's lock, the thread sees the stack only afterwards, and names the
frame that called the C code.

A machine whose cores are busy with other work delays the timer too; `cpu_ms` in the log line distinguishes the two.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Final

import structlog
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

TICK_S: Final = 0.01
QUIET_TICKS: Final = 5
"""The interval, in `TICK_S`, if the loop's thread worked less than `_QUIET` of the last interval."""

_QUIET: Final = 0.1
STALL_S: Final = 0.02
"""How late the timer must be to count as a stall."""

_LONG_S: Final = 0.5

BUCKETS_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_OURS: Final = ("gateway.", "protocol.", "quotas.", "config.")
_HANDLERS: Final = "gateway.handlers."

_log = structlog.get_logger("gateway.loop")


class LoopWatchdog(Collector):
    """See the module."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, tick_s: float = TICK_S) -> None:
        """Make it; nothing is measured before `start`.

        Args:
            loop: the running loop, in its own thread.
            tick_s: the interval of the timer.
        """
        self._loop = loop
        self._tick_s = tick_s
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self._sum_s = 0.0
        self._armed_s = self._due_s = 0.0
        self._cpu_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._seen: tuple[float, str | None] = (0.0, None)  # when it was due; the place
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; to be called in the loop's thread."""
        self._arm(self._tick_s)
        # A daemon: a loop that hangs must not keep the process from ending.
        self._thread = threading.Thread(
            target=self._watch, args=(threading.get_ident(),), name="loop-watchdog", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread and the timer."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join()

    def describe(self) -> Iterable[Metric]:
        """Nothing: tests check the names, not the registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The histogram of the timer's lateness."""
        family = HistogramMetricFamily(
            "gateway_event_loop_stall_seconds", "How late the event loop came back to its timer."
        )
        total = 0
        buckets = []
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric([], buckets, self._sum_s)
        yield family

    @property
    def overdue_in(self) -> str | None:
        """Where the loop was when it was overdue; None: it is not overdue, or the place is not known yet."""
        due_s, place = self._seen
        return place if due_s == self._due_s else None

    def _arm(self, after_s: float) -> None:
        self._cpu_s = time.thread_time()
        self._armed_s = time.monotonic()
        self._due_s = self._armed_s + after_s
        self._timer = self._loop.call_later(after_s, self._tick)

    def _tick(self) -> None:
        now_s = time.monotonic()
        late_s = max(0.0, now_s - self._due_s)
        self._counts[bisect_left(BUCKETS_S, late_s)] += 1
        self._sum_s += late_s
        place = self.overdue_in
        if late_s >= STALL_S and place is not None:
            stall_ms, cpu_ms = round(late_s * 1000), round((time.thread_time() - self._cpu_s) * 1000)
            # Without CPU time the loop waited: for a core, which is no fault of ours, or for the kernel.
            log = _log.warning if 2 * cpu_ms >= stall_ms or late_s >= _LONG_S else _log.debug
            log("event_loop_stalled", stall_ms=stall_ms, cpu_ms=cpu_ms, handler=place)
        quiet = time.thread_time() - self._cpu_s < _QUIET * (now_s - self._armed_s)
        self._arm(self._tick_s * QUIET_TICKS if quiet else self._tick_s)

    def _watch(self, loop_thread: int) -> None:
        wait_s = self._tick_s
        while not self._stopped.wait(wait_s):
            due_s = self._due_s
            wait_s = due_s + STALL_S - time.monotonic()
            if wait_s > 0:
                continue
            wait_s = self._tick_s
            if self.overdue_in is None:
                frame = frame_of(loop_thread)
                # With the due time, so that a late look is not taken for the place of a later stall.
                self._seen = (due_s, None if frame is None else place_of(frame))


def frame_of(thread: int) -> FrameType | None:
    """The present frame of a thread.

    CPython up to 3.11.8 allocates while it keeps the list of its threads locked. An allocation may start a garbage
    collection, whose finalizers may release the interpreter's lock. Another thread that then starts a thread, for
    example, waits for the list forever (python/cpython issue 106883).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread)
    finally:
        if collects:
            gc.enable()


def place_of(frame: FrameType) -> str | None:
    """``module:function`` of the running handler, else of our innermost function; None: no frame is ours."""
    innermost = None
    each: FrameType | None = frame
    while each is not None:
        module = str(each.f_globals.get("__name__", ""))
        if module.startswith(_HANDLERS):
            return f"{module}:{each.f_code.co_name}"
        if innermost is None and module.startswith(_OURS) and module != __name__:
            innermost = f"{module}:{each.f_code.co_name}"
        each = each.f_back
    return innermost
