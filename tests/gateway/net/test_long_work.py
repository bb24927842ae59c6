"""First steps of long work: as many in one turn of the loop as it has time for."""

import time

import pytest

from gateway.net.long_work import SMALL_BYTES, TURN_S, LongWork
from tests.gateway.net.test_batch_scheduler import Loop


@pytest.fixture(autouse=True)
def clock_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    return clock


def test_large_frames_that_come_together_begin_eight_in_a_turn() -> None:
    loop = Loop()
    work = LongWork(loop)  # type: ignore[arg-type]
    for _ in range(2):
        assert [work.begins_now(25_000) for _ in range(30)] == [True] * 8 + [False] * 22
        assert not work.begins_now(SMALL_BYTES)
        loop.turn()
    assert not loop.soon


def test_small_frames_that_wait_are_begun_in_order_while_a_turn_has_time() -> None:
    loop = Loop()
    work = LongWork(loop)  # type: ignore[arg-type]
    begun = sum(work.begins_now(30) for _ in range(1_000))
    assert begun == 128
    done: list[int] = []
    for number in range(300):
        work.add_small(lambda number=number: done.append(number), 30)  # type: ignore[misc]
    for expected in (128, 256, 300):
        assert not work.begins_now(30)  # others came before
        while len(done) < expected:
            loop.turn()
        assert done == list(range(expected))


def test_small_frames_begin_whatever_large_ones_take_of_each_turn() -> None:
    loop = Loop()
    work = LongWork(loop)  # type: ignore[arg-type]
    done: list[int] = []
    for number in range(40):
        work.add_small(lambda number=number: done.append(number), 30)  # type: ignore[misc]

    def greedy() -> None:
        while work.begins_now(600):
            pass
        loop.call_soon(greedy)

    greedy()
    for _ in range(4):
        loop.turn()
    assert done == list(range(40))


@pytest.mark.parametrize("step_s", [0.0004, 0.002])
def test_a_turn_ends_when_first_steps_took_its_time_however_small_their_frames(
    clock_s: list[float], step_s: float
) -> None:
    """Small requests that create topics, of forty clients at once, were one event of 33 ms."""
    loop = Loop()
    work = LongWork(loop)  # type: ignore[arg-type]
    done: list[int] = []

    def step(number: int) -> None:
        done.append(number)
        clock_s[0] += step_s

    for number in range(100):
        work.add_small(lambda number=number: step(number), 30)  # type: ignore[misc]
    while loop.soon:
        began_s = clock_s[0]
        loop.turn()
        assert clock_s[0] - began_s <= TURN_S + 1.1 * step_s
    assert done == list(range(100))


def test_after_the_time_of_a_turn_no_frame_begins_at_once(clock_s: list[float]) -> None:
    loop = Loop()
    work = LongWork(loop)  # type: ignore[arg-type]
    assert work.begins_now(30)
    clock_s[0] += TURN_S
    assert not work.begins_now(30)
    assert not work.begins_now(25_000)
    loop.turn()
    assert work.begins_now(25_000)
    assert work.begins_now(25_000)  # the time of a turn begins anew, too
