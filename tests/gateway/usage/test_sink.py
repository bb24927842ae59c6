"""The queue and the thread: nothing blocks, and the counts are exact whatever fails (hazard I13)."""

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.usage.line import Line, Tally
from gateway.usage.sink import ThreadedSink
from tests.gateway.usage.files import line

WAIT_S = 60.0


class FaultyWriter:
    """Fails as often as asked before it takes a line; every line it took is delivered at the end."""

    def __init__(self, failures: list[int] | None = None) -> None:
        self.delivered = Tally()
        self.lost = Tally()
        self.seqs: list[int] = []
        self.opened = 0
        self.closed = False
        self.fail_open = 0
        self.broken = False
        self.fail_maintain = False
        self.blocked = threading.Event()
        self.blocked.set()
        self.taking = threading.Event()
        self._failures = list(failures or [])

    def open(self) -> None:
        self.opened += 1
        if self.opened <= self.fail_open:
            raise OSError(28, "No space left on device")

    def write(self, line: Line) -> None:
        self.taking.set()
        self.blocked.wait(WAIT_S)
        if self.broken:
            raise OSError(30, "Read-only file system")
        if self._failures and self._failures[0] > 0:
            self._failures[0] -= 1
            raise OSError(28, "No space left on device")
        if self._failures:
            self._failures.pop(0)
        self.seqs.append(line.seq)
        self.delivered.add(line)

    def maintain(self) -> None:
        if self.fail_maintain:
            raise OSError(13, "Permission denied")

    def close(self, deadline_s: float) -> None:
        self.closed = True


def balanced(sink: ThreadedSink) -> bool:
    dropped, delivered = sink.dropped(), sink.writer.delivered
    return all(
        getattr(sink.made, what) == getattr(delivered, what) + getattr(dropped, what)
        for what in ("lines", "rows", "events")
    )


def started(writer: FaultyWriter, **options: Any) -> ThreadedSink:
    sink = ThreadedSink(writer, **{"max_queued_bytes": 1 << 20, **options})
    sink.start()
    return sink


def test_i13_a_line_that_could_not_be_written_is_written_later_and_none_is_skipped() -> None:
    writer = FaultyWriter([0, 3, 1])
    sink = started(writer, retry_s=0.001)
    for seq in range(5):
        sink.offer(line(seq))
    while len(writer.seqs) < 5:
        sink._stopping.wait(0.01)
    assert sink.stop(WAIT_S)
    assert writer.seqs == [0, 1, 2, 3, 4]
    assert sink.failures == 4
    assert not sink.failing
    assert balanced(sink)


def test_i13_what_the_queue_can_not_hold_is_dropped_and_counted() -> None:
    writer = FaultyWriter()
    writer.blocked.clear()
    size = len(line(0).data)
    sink = started(writer, max_queued_bytes=3 * size)
    taken = [sink.offer(line(seq, rows=seq)) for seq in range(10)]
    assert taken == [True] * 3 + [False] * 7
    assert sink.queued_bytes == 3 * size
    assert (sink.refused.lines, sink.refused.rows) == (7, sum(range(3, 10)))
    writer.blocked.set()
    assert sink.stop(WAIT_S)
    assert writer.seqs == [0, 1, 2]
    assert balanced(sink)


def test_i13_a_sink_that_stays_broken_ends_and_counts_what_waited() -> None:
    writer = FaultyWriter()
    writer.broken = True
    sink = started(writer, retry_s=60.0)
    for seq in range(4):
        sink.offer(line(seq))
    assert writer.taking.wait(WAIT_S)
    assert sink.stop(WAIT_S)
    assert sink.abandoned.lines == 4
    assert balanced(sink)


def test_lines_wait_until_the_writer_can_be_opened_and_are_counted_when_it_never_is() -> None:
    writer = FaultyWriter()
    writer.fail_open = 2
    sink = started(writer, retry_s=0.001)
    sink.offer(line(0))
    while not writer.seqs:
        sink._stopping.wait(0.01)
    assert sink.stop(WAIT_S)
    assert writer.seqs == [0]
    writer = FaultyWriter()
    writer.fail_open = 1_000_000
    sink = started(writer, retry_s=60.0)
    sink.offer(line(0))
    assert sink.stop(WAIT_S)
    assert not writer.closed
    assert sink.abandoned.lines == 1
    assert balanced(sink)


def test_a_writer_that_hangs_does_not_keep_the_gateway_from_stopping_and_then_lines_are_dropped() -> None:
    writer = FaultyWriter()
    writer.blocked.clear()
    sink = started(writer)
    sink.offer(line(0))
    assert writer.taking.wait(WAIT_S)
    assert not sink.stop(0.05)
    writer.blocked.set()
    assert sink.stop(WAIT_S)
    sink = started(FaultyWriter())
    sink.stop(WAIT_S)
    assert not sink.offer(line(0))
    assert balanced(sink)


class Log:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def error(self, event: str, **names: object) -> None:
        self.told.append((event, str(names.get("error", ""))))

    info = error


def test_a_failure_is_logged_once_and_its_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    monkeypatch.setattr("gateway.usage.sink._log", log)
    writer = FaultyWriter([50])
    sink = started(writer, retry_s=0.0005)
    sink.offer(line(0))
    while not writer.seqs:
        sink._stopping.wait(0.01)
    sink.stop(WAIT_S)
    assert [event for event, _ in log.told] == ["usage_sink_failing", "usage_sink_recovered"]
    assert "No space left on device" in log.told[0][1]


def test_g02_lines_of_a_file_that_can_not_be_completed_do_not_flood_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    monkeypatch.setattr("gateway.usage.sink._log", log)
    writer = FaultyWriter()
    writer.fail_maintain = True
    sink = started(writer)
    for seq in range(100):
        sink.offer(line(seq))
    sink.stop(WAIT_S)
    assert sink.failures == 100
    assert [event for event, _ in log.told] == ["usage_sink_failing", "usage_sink_recovered"]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=30), st.integers(1, 5), st.booleans())
def test_i13_made_is_delivered_plus_dropped(steps: list[tuple[int, int]], room: int, breaks: bool) -> None:
    writer = FaultyWriter([failures for failures, _ in steps])
    sink = started(writer, max_queued_bytes=room * len(line(0).data), retry_s=0.0001)
    for seq, (_, rows) in enumerate(steps):
        sink.offer(line(seq, rows=rows))
    writer.broken = breaks
    assert sink.stop(WAIT_S)
    assert balanced(sink)
    assert sink.made.lines == len(steps)
    assert writer.seqs == sorted(set(writer.seqs))
