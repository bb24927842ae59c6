from __future__ import annotations

from gateway.observability.log_limits import EventLimiter
from testkit.clock import FakeClock


def test_lines_up_to_the_limit_are_written_and_the_rest_is_counted(clock: FakeClock) -> None:
    limiter = EventLimiter(3)
    assert [limiter.admit("flood", now_ms=clock.now_ms) for _ in range(5)] == [0, 0, 0, None, None]
    clock.advance(999)
    assert limiter.admit("flood", now_ms=clock.now_ms) is None
    clock.advance(1)
    assert limiter.admit("flood", now_ms=clock.now_ms) == 3
    assert limiter.admit("flood", now_ms=clock.now_ms) == 0


def test_limit_holds_in_every_second_wherever_it_begins(clock: FakeClock) -> None:
    limiter = EventLimiter(20)
    written = []
    for _ in range(10_000):
        if limiter.admit("flood", now_ms=clock.now_ms) is not None:
            written.append(clock.now_ms)
        clock.advance(1)
    assert len(written) == 200
    assert all(later - earlier >= 1000 for earlier, later in zip(written, written[20:], strict=False))


def test_events_do_not_use_up_each_others_lines(clock: FakeClock) -> None:
    limiter = EventLimiter(1)
    assert limiter.admit("a", now_ms=clock.now_ms) == 0
    assert limiter.admit("a", now_ms=clock.now_ms) is None
    assert limiter.admit("b", now_ms=clock.now_ms) == 0


def test_names_beyond_the_bound_share_one_limit(clock: FakeClock) -> None:
    limiter = EventLimiter(1, max_events=2)
    answers = [limiter.admit(name, now_ms=clock.now_ms) for name in ("a", "b", "c", "d", "e")]
    assert answers == [0, 0, 0, None, None]
    assert limiter.take_suppressed() == {"other events": 2}


def test_no_line_is_lost_or_told_twice(clock: FakeClock) -> None:
    limiter = EventLimiter(2)
    answers = []
    for _ in range(500):
        answers.append(limiter.admit("flood", now_ms=clock.now_ms))
        clock.advance(7)
    told = sum(answer for answer in answers if answer is not None)
    written = sum(answer is not None for answer in answers)
    assert written + told + sum(limiter.take_suppressed().values()) == 500
    assert limiter.take_suppressed() == {}
