"""Runs one step of a handshake per turn of the loop, so that connected clients wait for one at most (hazard H22).

A step is what a handshake can do with the bytes that are here. The long one, which answers a client's hello, is half
a millisecond of cryptography, a signature among it: OpenSSL does it without the interpreter's lock, so where there is
another core it is done in a thread, one at a time, and the loop is free (docs/decisions/0008-identity.md).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol


class Step(Protocol):
    """In two halves."""

    def compute(self) -> None:
        """The cryptography, and nothing else; perhaps in a thread."""

    def conclude(self) -> None:
        """What follows from it; on the loop."""


def may_use_another_core() -> bool:
    """Whether a thread of this process could run while the loop does."""
    return len(os.sched_getaffinity(0)) > 1


class HandshakeSteps:
    """Shared by all connections of a loop, and bounded by them: each waits for one step at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, threaded: bool) -> None:
        """None is due.

        Args:
            loop: runs the steps.
            threaded: whether long steps are done in a thread.
        """
        self._loop = loop
        self._threaded = threaded
        self._due: deque[tuple[Step, bool]] = deque()
        self._busy = False
        self._thread: threading.Thread | None = None
        self._work: SimpleQueue[Step | None] = SimpleQueue()

    @property
    def waiting(self) -> int:
        """How many are due and have not begun."""
        return len(self._due)

    def submit(self, step: Step, *, long: bool) -> None:
        """Do this step: at once if this turn has had none, else in one of the next turns, in the order of submission.

        Args:
            step: submitted once until it is concluded.
            long: whether it would hold up the loop.
        """
        if self._busy:
            self._due.append((step, long))
        else:
            self._busy = True
            self._begin(step, long)

    def _begin(self, step: Step, long: bool) -> None:
        if long and self._has_thread():
            self._work.put(step)
        else:
            # Before the step: whatever becomes of it, the others are still due.
            self._loop.call_soon(self._next_turn)
            step.compute()
            step.conclude()

    def _next_turn(self) -> None:
        self._busy = bool(self._due)
        if self._busy:
            self._begin(*self._due.popleft())

    def _has_thread(self) -> bool:
        if self._threaded and self._thread is None:
            thread = threading.Thread(target=self._compute, name="handshakes", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the limit of threads is reached
                self._threaded = False
            else:
                self._thread = thread
        return self._threaded

    def _compute(self) -> None:
        while (step := self._work.get()) is not None:
            self._compute_one(step)
            del step  # and the connection that it belongs to

    def _compute_one(self, step: Step) -> None:
        fault: Exception | None = None
        try:
            step.compute()
        except Exception as exc:  # noqa: BLE001  (the thread is there for all the others too)
            fault = exc
        with suppress(RuntimeError):  # the loop is closed: nothing waits
            self._loop.call_soon_threadsafe(self._computed, step, fault)

    def _computed(self, step: Step, fault: Exception | None) -> None:
        self._loop.call_soon(self._next_turn)
        step.conclude()
        if fault is not None:
            raise fault

    def stop(self) -> None:
        """End the thread, after the step that it is at; what comes now is done on the loop."""
        self._threaded = False
        thread, self._thread = self._thread, None
        if thread is not None:
            self._work.put(None)
            thread.join()
