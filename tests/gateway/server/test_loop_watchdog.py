"""The loop's watchdog: late ticks are counted, and the code that held the loop is named."""

import asyncio
import gc
import sys
import threading
import time
from types import FrameType, FunctionType

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from gateway.server.loop_watchdog import LoopWatchdog, frame_of


def named(module: str) -> FunctionType:
    """A function of this module's that holds the thread for so many seconds."""
    space: dict[str, object] = {"__name__": module, "monotonic": time.monotonic}
    exec("def hold(seconds):\n    end = monotonic() + seconds\n    while monotonic() < end: pass\n", space)
    hold = space["hold"]
    assert isinstance(hold, FunctionType)
    return hold


async def watched(hold: FunctionType | None, seconds: float) -> tuple[CollectorRegistry, list[dict[str, object]]]:
    registry = CollectorRegistry()
    watchdog = LoopWatchdog(asyncio.get_running_loop())
    registry.register(watchdog)
    with capture_logs() as lines:
        watchdog.start()
        await asyncio.sleep(0.05)
        if hold is not None:
            hold(seconds)
        await asyncio.sleep(0.05)
        watchdog.stop()
    return registry, [line for line in lines if line["event"] == "event_loop_stalled"]  # type: ignore[misc]


def test_a_handler_that_holds_the_loop_is_counted_and_named() -> None:
    registry, lines = asyncio.run(watched(named("gateway.handlers.metadata"), 0.3))
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


def test_an_idle_loop_is_woken_more_rarely_than_a_busy_one() -> None:
    async def signs(hold: FunctionType | None) -> float:
        registry = CollectorRegistry()
        watchdog = LoopWatchdog(asyncio.get_running_loop())
        registry.register(watchdog)
        watchdog.start()
        end = time.monotonic() + 0.6
        while hold is not None and time.monotonic() < end:
            hold(0.005)
            await asyncio.sleep(0.001)
        if hold is None:
            await asyncio.sleep(0.6)
        watchdog.stop()
        return registry.get_sample_value("gateway_event_loop_stall_seconds_count") or 0

    assert 2 * asyncio.run(signs(None)) < asyncio.run(signs(named("busy")))


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
