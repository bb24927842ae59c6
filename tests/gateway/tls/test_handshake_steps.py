"""One step of a handshake in a turn, in the order they were asked for; long ones in a thread, where there is one."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from gateway.tls.handshake_steps import HandshakeSteps
from testkit.tls_conversation import Loop

PATIENCE_S = 60


class ThreadedLoop(Loop):
    """One that threads report things to, too.

    Attributes:
        told: by a thread, and not done yet.
        open: whether it still takes anything.
    """

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[Any, ...]] = []
        self.open = True
        self._new = threading.Semaphore(0)

    def call_soon_threadsafe(self, *call: Any) -> None:
        if not self.open:
            raise RuntimeError("closed")
        self.told.append(call)
        self._new.release()

    def wait(self) -> None:
        """Until a thread has reported something; then it is done."""
        assert self._new.acquire(timeout=PATIENCE_S)
        call, *arguments = self.told.pop(0)
        call(*arguments)


class Numbered:
    """A step that reports when it was done, and where."""

    def __init__(self, steps: Steps, number: int, *, fails: bool, breaks: bool = False) -> None:
        self._steps, self._number, self._fails, self._breaks = steps, number, fails, breaks

    def compute(self) -> None:
        if self._breaks:
            raise MemoryError
        self._steps.threads.append(threading.current_thread().name)
        assert self._steps.may.wait(PATIENCE_S)
        self._steps.computed.append(self._number)

    def conclude(self) -> None:
        self._steps.done.append(self._number)
        if self._fails:
            raise ZeroDivisionError


class Steps:
    """What was done.

    Attributes:
        computed, done: numbers, in order.
        threads: names of those that have computed.
        may: whether a computation may end.
    """

    def __init__(self, *, threaded: bool = False) -> None:
        self.loop = ThreadedLoop()
        self.steps = HandshakeSteps(cast("asyncio.AbstractEventLoop", self.loop), threaded=threaded)
        self.computed: list[int] = []
        self.done: list[int] = []
        self.threads: list[str] = []
        self.may = threading.Event()
        self.may.set()

    def ask(self, *numbers: int, fails: bool = False, breaks: bool = False, long: bool = False) -> None:
        for number in numbers:
            self.steps.submit(Numbered(self, number, fails=fails, breaks=breaks), long=long)


def test_steps_have_a_turn_each_in_order() -> None:
    steps = Steps()
    for number in range(3):
        steps.ask(number)
        assert steps.done[-1] == number
        steps.loop.turn_once()
    assert steps.loop.soon == []
    steps = Steps()
    steps.ask(0, 1, 2)
    assert steps.done == [0]
    assert steps.steps.waiting == 2
    for count in (2, 3, 3):
        steps.loop.turn_once()
        assert len(steps.done) == count
    assert steps.done == [0, 1, 2]
    steps = Steps()
    steps.ask(0, 1)
    steps.loop.turn_once()
    steps.ask(2)
    assert steps.done == [0, 1]
    steps.loop.turn_once()
    assert steps.done == [0, 1, 2]


def test_a_step_that_fails_does_not_stop_the_others() -> None:
    steps = Steps()
    steps.ask(0)
    steps.ask(1, fails=True)
    steps.ask(2)
    with pytest.raises(ZeroDivisionError):
        steps.loop.turn_once()
    steps.loop.turn_once()
    assert steps.done == [0, 1, 2]
    steps = Steps(threaded=True)
    steps.ask(0, fails=True, long=True)
    steps.ask(1)
    with pytest.raises(ZeroDivisionError):
        steps.loop.wait()
    steps.loop.turn_once()
    assert steps.done == [0, 1]
    steps.steps.stop()


def test_the_loop_goes_on_while_a_long_step_is_computed_and_no_other_step_is() -> None:
    steps = Steps(threaded=True)
    steps.may.clear()
    steps.ask(0, 1, long=True)
    steps.ask(2)
    for _ in range(3):
        steps.loop.turn_once()
    assert (steps.computed, steps.steps.waiting) == ([], 2)
    steps.may.set()
    steps.loop.wait()
    assert steps.done == [0]
    steps.loop.turn_once()
    steps.loop.wait()
    steps.loop.turn_once()
    assert steps.done == steps.computed == [0, 1, 2]
    assert steps.threads == ["handshakes", "handshakes", threading.current_thread().name]
    steps.steps.stop()


def test_the_thread_outlives_a_step_that_can_not_be_computed() -> None:
    steps = Steps(threaded=True)
    steps.ask(0, breaks=True, long=True)
    steps.ask(1, long=True)
    with pytest.raises(MemoryError):
        steps.loop.wait()
    steps.loop.turn_once()
    steps.loop.wait()
    assert (steps.computed, steps.done) == ([1], [0, 1])
    assert steps.threads == ["handshakes"]
    steps.steps.stop()


def test_a_loop_that_is_closed_while_a_step_is_computed_is_told_nothing() -> None:
    steps = Steps(threaded=True)
    steps.may.clear()
    steps.ask(0, long=True)
    steps.loop.open = False
    steps.may.set()
    steps.steps.stop()
    assert (steps.computed, steps.done) == ([0], [])
    assert "handshakes" not in {thread.name for thread in threading.enumerate()}


def test_without_another_thread_to_be_had_steps_are_done_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    steps = Steps(threaded=True)
    steps.ask(0, long=True)
    assert steps.done == [0]
