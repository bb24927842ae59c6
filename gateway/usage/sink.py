"""The base of all usage sinks: a bounded queue from the loop to a thread, with exact counts of lines.

At every moment, for lines and for rows:  made = delivered + dropped + pending.  Each number has one writer, the
loop's thread or the sink's, so no lock is needed to read them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, Protocol

import structlog

from gateway.usage.line import Line, Tally

RETRY_S: Final = 1.0
"""After a failure, how long until the next attempt; a stop does not wait for it."""

_LOG_EVERY_S: Final = 60.0

_log = structlog.get_logger("gateway.usage")


class Writer(Protocol):
    """Writes lines for a sink. Only the thread of the sink calls it.

    Attributes:
        delivered: lines that are stored for good.
        lost: lines that `write` took, but that will never be stored.
    """

    delivered: Tally
    lost: Tally

    def open(self) -> None:
        """Prepare; raises OSError when that fails, and is called again later."""

    def write(self, line: Line) -> None:
        """Take one line; raises OSError when that fails, and is called again with the same line later."""

    def maintain(self) -> None:
        """Do what is due, at least every second; raises OSError when that fails."""

    def close(self, deadline_s: float) -> None:
        """Deliver the lines taken, until this time of the monotonic clock; raises OSError when that fails."""


class ThreadedSink:
    """A queue and a thread in front of a writer.

    Attributes:
        made: lines that were offered.
        refused: lines that did not fit into the queue.
        abandoned: lines that still waited when the sink had to end.
        failures: attempts that failed.
        failing: whether the last attempt failed.
    """

    def __init__(
        self,
        writer: Writer,
        *,
        max_queued_bytes: int,
        retry_s: float = RETRY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing runs before `start`.

        Args:
            writer: writes the lines.
            max_queued_bytes: the most bytes that wait for the writer; further lines are dropped.
            retry_s: see `RETRY_S`.
            clock: seconds, monotonic.
        """
        self.writer = writer
        self.made = Tally()
        self.refused = Tally()
        self.abandoned = Tally()
        self.failures = 0
        self.failing = False
        self._max_queued_bytes = max_queued_bytes
        self._retry_s = retry_s
        self._clock = clock
        self._queue: SimpleQueue[Line | None] = SimpleQueue()
        self._bytes_in = 0  # written by the loop
        self._bytes_out = 0  # written by the thread
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._deadline_s = 0.0
        self._logged_s = float("-inf")
        self._told_failing = False

    @property
    def queued_bytes(self) -> int:
        """The bytes of lines that wait for the thread."""
        return self._bytes_in - self._bytes_out

    def dropped(self) -> Tally:
        """The lines that will never be delivered."""
        total = Tally()
        for part in (self.refused, self.abandoned, self.writer.lost):
            total.add_all(part)
        return total

    def offer(self, line: Line) -> bool:
        """See `recorder.LineSink`."""
        self.made.add(line)
        size = len(line.data)
        if self.queued_bytes + size > self._max_queued_bytes or self._stopping.is_set():
            self.refused.add(line)
            return False
        self._bytes_in += size
        self._queue.put(line)
        return True

    def start(self) -> None:
        """Start the thread. It is a daemon: a write that hangs in the kernel cannot keep the process alive."""
        self._thread = threading.Thread(target=self._run, name="usage-sink", daemon=True)
        self._thread.start()

    def stop(self, within_s: float) -> bool:
        """Deliver the waiting lines, and end the thread. Blocks: must not be called in the loop's thread.

        Args:
            within_s: how long that may take; after that, remaining lines count as dropped.

        Returns:
            Whether the thread has ended in time.
        """
        if self._thread is None:
            return True
        self._deadline_s = self._clock() + within_s
        self._stopping.set()
        self._queue.put(None)
        self._thread.join(within_s)
        if self._thread.is_alive():
            _log.error("usage_sink_hangs", waited_s=within_s)
            return False
        return True

    # -- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        opened = self._until_done(self.writer.open)
        while opened:
            try:
                line = self._queue.get(timeout=1.0)
            except Empty:
                self._attempt(self.writer.maintain)
                continue
            if line is None:
                break
            if not self._write(line):
                self._abandon(line)
                break
            self._attempt(self.writer.maintain)
        if opened:
            self._attempt(lambda: self.writer.close(self._deadline_s))
        while True:
            try:
                left = self._queue.get_nowait()
            except Empty:
                break
            if left is not None:
                self._abandon(left)

    def _write(self, line: Line) -> bool:
        """Write a line, with as many attempts as that takes; False when the sink has to end before."""
        if not self._until_done(lambda: self.writer.write(line)):
            return False
        self._bytes_out += len(line.data)
        return True

    def _abandon(self, line: Line) -> None:
        self._bytes_out += len(line.data)
        self.abandoned.add(line)

    def _until_done(self, step: Callable[[], None]) -> bool:
        while not self._attempt(step):
            if self._stopping.wait(self._retry_s):
                return self._attempt(step)
        return True

    def _attempt(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except OSError as exc:
            self.failures += 1
            self.failing = True
            now_s = self._clock()
            if now_s - self._logged_s >= _LOG_EVERY_S:
                self._logged_s = now_s
                self._told_failing = True
                _log.error("usage_sink_failing", error=str(exc), queued_bytes=self.queued_bytes)
            return False
        if self.failing:
            self.failing = False
            if self._told_failing:
                self._told_failing = False
                _log.info("usage_sink_recovered", dropped_lines=self.dropped().lines)
        return True
