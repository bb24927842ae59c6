import asyncio

from gateway.runtime.clock import loop_clock


class Loop:
    """An event loop, as far as a clock is concerned."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def time(self) -> float:
        return self.seconds


def test_clock_tells_whole_milliseconds_of_the_loop() -> None:
    loop = Loop()
    now_ms = loop_clock(loop)
    loop.seconds = 12.3459
    assert now_ms() == 12_345
    loop.seconds = 12.346
    assert isinstance(now_ms(), int)
    assert now_ms() == 12_346


async def test_timer_that_was_armed_with_the_clock_is_never_early() -> None:
    loop = asyncio.get_running_loop()
    now_ms = loop_clock(loop)
    due_ms = now_ms() + 20
    rung = loop.create_future()
    loop.call_later((due_ms - now_ms()) / 1000, lambda: rung.set_result(now_ms()))
    # uvloop's timers count whole milliseconds, so the one before counts as the same.
    assert await rung >= due_ms - 1
