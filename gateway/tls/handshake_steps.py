"""Runs one step of a handshake per turn of the loop, so that connected clients wait for one at most (hazard H22).

A step is the part of a handshake that is possible with the bytes received so far. The long step, which answers a
client's hello, takes half a millisecond of cryptography, including a signature. OpenSSL does it without the
interpreter's lock. So with another core it runs in a thread, one step at a time, and the loop is free
(docs/decisions/0008-identity.md).
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
    """A step in two halves."""

    def compute(self) -> None:
        """Do the cryptography and no other work; perhaps in a thread."""

    def conclude(self) -> None:
        """Use the result, on the loop."""


def may_use_another_core() -> bool:
    """Whether a thread of this process could run while the loop does."""
    return len(os.sched_getaffinity(0)) > 1


class HandshakeSteps:
    """The steps of all connections of a loop. Each connection has at most one waiting step."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, threaded: bool) -> None:
        """Start without steps.

        Args:
            loop: runs the steps.
            threaded: whether long steps run in a thread.
        """
        self._loop = loop
        self._threaded = threaded
        self._due: deque[tuple[Step, bool]] = deque()
        self._busy = False
        self._thread: threading.Thread | None = None
        self._work: SimpleQueue[Step | None] = SimpleQueue()

    @property
    def waiting(self) -> int:
        """Number of steps that have not begun."""
        return len(self._due)

    def submit(self, step: Step, *, long: bool) -> None:
        """Run a step at once if this turn has had none, otherwise in a later turn, in the order of submission.

        Args:
            step: the step, not submitted again before `conclude`.
            long: whether the step would block the loop.
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
            # Before the step: even if it raises, the others still run.
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
            del step  # frees the connection to which it belongs

    def _compute_one(self, step: Step) -> None:
        fault: Exception | None = None
        try:
            step.compute()
        except Exception as exc:  # noqa: BLE001  (the thread has to run all other steps)
            fault = exc
        with suppress(RuntimeError):  # the loop is closed: no connection waits
            self._loop.call_soon_threadsafe(self._computed, step, fault)

    def _computed(self, step: Step, fault: Exception | None) -> None:
        self._loop.call_soon(self._next_turn)
        step.conclude()
        if fault is not None:
            raise fault

    def stop(self) -> None:
        """End the thread after its current step. Later steps run on the loop."""
        self._threaded = False
        thread, self._thread = self._thread, None
        if thread is not None:
            self._work.put(None)
            thread.join()
