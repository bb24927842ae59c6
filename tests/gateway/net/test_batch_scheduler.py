import time
from collections import deque
from collections.abc import Callable

import pytest

from gateway.net.batch_scheduler import STEPS_PER_TURN, BatchScheduler
from gateway.runtime.slices import SLICE_S


class Loop:
    """Runs what was called soon, one turn at a time."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def turn(self) -> None:
        for _ in range(len(self.soon)):
            self.soon.popleft()()


def test_what_is_due_together_is_done_in_small_bites_and_in_order() -> None:
    loop = Loop()
    turns = BatchScheduler(loop)  # type: ignore[arg-type]
    done: list[int] = []
    for number in range(2 * STEPS_PER_TURN + 1):
        turns.add(lambda number=number: done.append(number))  # type: ignore[misc]
    for expected in (STEPS_PER_TURN, 2 * STEPS_PER_TURN, 2 * STEPS_PER_TURN + 1):
        loop.turn()
        assert done == list(range(expected))
    assert not loop.soon


def test_a_step_that_adds_another_has_it_done_later() -> None:
    loop = Loop()
    turns = BatchScheduler(loop)  # type: ignore[arg-type]
    done: list[str] = []

    def first() -> None:
        done.append("first")
        turns.add(lambda: done.append("second"))

    turns.add(first)
    loop.turn()
    assert done == ["first"]
    loop.turn()
    assert done == ["first", "second"]
    turns.add(lambda: done.append("third"))
    loop.turn()
    assert done[-1] == "third"
    assert not loop.soon


def test_after_long_steps_the_others_wait_for_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Throttles that end together, each with a large request behind it, were one event of 26 ms."""
    loop, clock_s = Loop(), [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock_s[0])
    turns = BatchScheduler(loop)  # type: ignore[arg-type]
    done: list[float] = []

    def long() -> None:
        done.append(clock_s[0])
        clock_s[0] += 0.6 * SLICE_S

    for _ in range(5):
        turns.add(long)
    for expected in (2, 4, 5):
        loop.turn()
        assert len(done) == expected
    assert not loop.soon


def test_a_step_that_raises_does_not_stop_the_others() -> None:
    loop = Loop()
    turns = BatchScheduler(loop)  # type: ignore[arg-type]
    done: list[int] = []

    def broken() -> None:
        raise RuntimeError("bug")

    turns.add(broken)
    turns.add(lambda: done.append(1))
    with pytest.raises(RuntimeError):
        loop.turn()
    loop.turn()
    turns.add(lambda: done.append(2))
    loop.turn()
    assert done == [1, 2]
