"""Handshakes begin evenly, in the order of accepted, and cost nothing before it is their turn."""

from __future__ import annotations

import asyncio
from typing import cast

from gateway.tls.handshake_rate import HandshakeRateLimiter
from testkit.clock import FakeClock
from testkit.fake_loop import FakeLoop


class Loop(FakeLoop):
    """Time in seconds, as loops have it."""

    def time(self) -> float:
        return self.clock.now_ms / 1000


class Crowd:
    """Clients that want to begin.

    Attributes:
        began: who has, in order.
        gone: who has left without a word.
    """

    def __init__(self, per_second: int | None, *, max_waiting: int = 1_000) -> None:
        self.loop = Loop(FakeClock(5_000))
        loop = cast("asyncio.AbstractEventLoop", self.loop)
        self.handshake_limiter = HandshakeRateLimiter(loop, per_second=per_second, max_waiting=max_waiting)
        self.began: list[int] = []
        self.gone: set[int] = set()

    def come(self, *numbers: int) -> list[bool]:
        return [
            self.handshake_limiter.request(number, lambda _, number=number: self._begin(number))
            for number in numbers
        ]  # type: ignore[misc]

    def _begin(self, number: int) -> bool:
        if number in self.gone:
            return False
        self.began.append(number)
        return True


def test_one_after_the_other_at_the_rate() -> None:
    crowd = Crowd(100)
    crowd.come(*range(200))
    assert crowd.began == [0]
    for _ in range(100):
        before = len(crowd.began)
        crowd.loop.advance(10)
        assert len(crowd.began) - before == 1
    assert crowd.began == list(range(101))
    assert crowd.handshake_limiter.delayed == 199
    assert crowd.handshake_limiter.waiting == 99


def test_a_rate_above_the_timers_grain_is_kept_too() -> None:
    crowd = Crowd(5_000, max_waiting=20_000)
    crowd.come(*range(12_000))
    crowd.loop.advance(1_000)
    assert 5_000 <= len(crowd.began) <= 5_020


def test_what_a_late_timer_has_lost_is_made_good_little_by_little() -> None:
    crowd = Crowd(200)
    crowd.come(*range(400))
    crowd.loop.clock.advance(100)  # the loop was busy
    began = len(crowd.began)
    crowd.loop.advance(1)
    assert len(crowd.began) - began <= 2
    crowd.loop.advance(899)
    assert 198 <= len(crowd.began) <= 204


def test_none_waits_below_the_rate() -> None:
    crowd = Crowd(100)
    for number in range(50):
        crowd.come(number)
        assert crowd.began[-1] == number
        crowd.loop.advance(20)
    assert crowd.handshake_limiter.delayed == 0


def test_a_cancelled_connection_takes_no_permit() -> None:
    crowd = Crowd(100)
    crowd.come(*range(10))
    for number in range(1, 9):
        crowd.handshake_limiter.cancel(number)
    crowd.handshake_limiter.cancel(77)
    crowd.loop.advance(10)
    assert crowd.began == [0, 9]


def test_a_connection_that_is_gone_leaves_its_permit_to_the_next() -> None:
    crowd = Crowd(100)
    crowd.gone = {1, 2, 3}
    crowd.come(*range(6))
    crowd.loop.advance(10)
    assert crowd.began == [0, 4]


def test_too_many_are_refused() -> None:
    crowd = Crowd(100, max_waiting=2)
    assert crowd.come(0, 1, 2, 3) == [True, True, True, False]
    crowd.loop.advance(100)
    assert crowd.began == [0, 1, 2]
    assert crowd.come(4) == [True]


def test_another_rate_holds_from_the_next_permit_on() -> None:
    crowd = Crowd(10)
    crowd.come(*range(50))
    crowd.handshake_limiter.per_second = 100
    crowd.loop.advance(300)
    assert 18 <= len(crowd.began) <= 31


def test_no_rate_is_no_wait() -> None:
    crowd = Crowd(None)
    crowd.come(*range(50))
    assert crowd.began == list(range(50))


def test_after_the_stop_none_begins() -> None:
    crowd = Crowd(100)
    crowd.come(0, 1)
    crowd.handshake_limiter.stop()
    crowd.loop.advance(1_000)
    assert crowd.began == [0]
    assert crowd.handshake_limiter.waiting == 0
