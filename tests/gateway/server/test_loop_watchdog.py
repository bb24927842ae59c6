"""The loop's watchdog: late ticks are counted, and the code that blocked the loop is named."""

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, FunctionType, SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from gateway.server.loop_watchdog import QUIET_TICKS, TICK_S, LoopWatchdog, frame_of


def named(module: str) -> FunctionType:
    """A function of this module's that works for so many seconds, and until something has happened."""
    # Of CPU: where others have the cores, less work than waiting is logged as no fault of the loop's.
    space: dict[str, object] = {"__name__": module, "thread_time": time.thread_time}
    text = (
        "def hold(seconds, over, begin):\n    begin()\n    end = thread_time() + seconds\n"
        "    while thread_time() < end or not over(): pass\n"
    )
    exec(text, space)
    hold = space["hold"]
    assert isinstance(hold, FunctionType)
    return hold


async def watched(
    hold: FunctionType | None, seconds: float, *, until_seen: bool = False
) -> tuple[CollectorRegistry, list[dict[str, object]]]:
    registry = CollectorRegistry()
    watchdog = LoopWatchdog(asyncio.get_running_loop())
    registry.register(watchdog)
    with capture_logs() as lines:
        watchdog.start()
        await asyncio.sleep(0.05)
        if hold is not None:
            give_up = time.monotonic() + 60  # the watchdog's thread may have to wait for a core
            # On a busy machine the tick before may be late itself, and the place before this one would be seen.
            hold(
                seconds,
                lambda: not until_seen or watchdog.overdue_in is not None or time.monotonic() > give_up,
                watchdog._tick,
            )
        await asyncio.sleep(0.05)
        watchdog.stop()
    return registry, [line for line in lines if line["event"] == "event_loop_stalled"]  # type: ignore[misc]


@pytest.mark.slow
def test_a_handler_that_holds_the_loop_is_counted_and_named() -> None:
    registry, lines = asyncio.run(watched(named("gateway.handlers.metadata"), 0.3, until_seen=True))
    name = "gateway_event_loop_stall_seconds"
    over = registry.get_sample_value(f"{name}_count") - registry.get_sample_value(  # type: ignore[operator]
        f"{name}_bucket", {"le": "0.2"}
    )
    assert over >= 1
    assert registry.get_sample_value(f"{name}_sum") >= 0.24  # type: ignore[operator]
    told = [line for line in lines if line["handler"] == "gateway.handlers.metadata:hold"]
    assert told
    assert int(str(told[0]["stall_ms"])) >= 240
    assert int(str(told[0]["cpu_ms"])) > 0


def test_code_of_others_is_counted_but_not_named() -> None:
    registry, lines = asyncio.run(watched(named("elsewhere"), 0.15))
    assert registry.get_sample_value("gateway_event_loop_stall_seconds_sum") >= 0.08  # type: ignore[operator]
    assert not [line for line in lines if "elsewhere" in str(line["handler"])]


class Loop:
    """Keeps what the watchdog sets its timer to."""

    def __init__(self) -> None:
        self.set_to_s: list[float] = []

    def call_later(self, after_s: float, _call: Callable[[], None]) -> None:
        self.set_to_s.append(after_s)


@pytest.mark.parametrize(("cpu_s", "ticks"), [(0.0, QUIET_TICKS), (0.0009, QUIET_TICKS), (0.002, 1), (0.01, 1)])
def test_an_idle_loop_is_woken_more_rarely_than_a_busy_one(
    monkeypatch: pytest.MonkeyPatch, cpu_s: float, ticks: int
) -> None:
    clock_s = {"monotonic": 100.0, "thread_time": 7.0}
    clocks = {name: lambda name=name: clock_s[name] for name in clock_s}
    monkeypatch.setattr("gateway.server.loop_watchdog.time", SimpleNamespace(**clocks))
    loop = Loop()
    watchdog = LoopWatchdog(cast("asyncio.AbstractEventLoop", loop))
    watchdog._arm(TICK_S)
    clock_s["monotonic"] += TICK_S
    clock_s["thread_time"] += cpu_s
    watchdog._tick()
    assert loop.set_to_s == [TICK_S, ticks * TICK_S]


def test_no_collection_begins_while_the_list_of_threads_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    collects: list[bool] = []
    look = sys._current_frames

    def looked() -> dict[int, FrameType]:
        collects.append(gc.isenabled())
        return look()

    monkeypatch.setattr(sys, "_current_frames", looked)
    assert frame_of(threading.get_ident()) is not None
    assert collects == [False]
    assert gc.isenabled()
