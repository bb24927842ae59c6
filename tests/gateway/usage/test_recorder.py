"""The recorder: one line per second of the wall clock, whatever the clocks and the loop do."""

import json
from typing import Any

from gateway.usage.line import Line
from gateway.usage.recorder import ROWS_PER_TURN, Recorder
from gateway.usage.table import UsageTable
from quotas.usage_record import Event, Row, UsageApi
from testkit.clock import FakeClock
from testkit.fake_loop import FakeLoop, FakeTimer
from tests.gateway.usage.files import event

EPOCH_MS = 1_700_000_000_000


class Lines:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def offer(self, line: Line) -> bool:
        self.lines.append(line)
        return True

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line.data) for line in self.lines]


class Loop(FakeLoop):
    def call_soon(self, call: Any) -> FakeTimer:
        return self.call_later(0, call)


class Recording:
    """A recorder whose two clocks are moved apart at will."""

    def __init__(self, *, wall_ms: int = EPOCH_MS) -> None:
        self.clock = FakeClock(5_000_000)
        self.loop = Loop(self.clock)
        self.wall_offset_ms = wall_ms - self.clock.now_ms
        self.table = UsageTable()
        self.sink = Lines()
        self.scope = "gateway"
        self.recorder = Recorder(
            self.table,
            self.sink,
            gateway="a",
            boot=wall_ms,
            algorithm="token_bucket",
            scope=lambda: self.scope,
            loop=self.loop,  # type: ignore[arg-type]
            now_ms=lambda: self.clock.now_ms,
            wall_ms=lambda: self.clock.now_ms + self.wall_offset_ms,
        )
        self.recorder.start()

    def count(self, client_id: str = "app", units: int = 10) -> None:
        self.table.row("in", "alice", client_id, UsageApi.PRODUCE, 1).count(units)

    def facts(self, *names: str) -> list[tuple[Any, ...]]:
        return [tuple(line[name] for name in names) for line in self.sink.told]


def test_every_second_is_a_line_with_what_was_counted_in_it_also_an_empty_one() -> None:
    recording = Recording()
    recording.loop.advance(3_000)
    second = EPOCH_MS // 1_000
    assert recording.facts("seq", "ts", "dur_ms") == [
        (0, second, 1_000),
        (1, second + 1, 1_000),
        (2, second + 2, 1_000),
    ]
    recording = Recording()
    recording.loop.advance(500)
    recording.count()
    recording.loop.advance(1_000)
    recording.count(units=7)
    recording.loop.advance(1_000)
    assert [[row[Row.OFFERED] for row in line["rows"]] for line in recording.sink.told] == [[10], [7]]


def test_seconds_are_those_of_the_wall_clock_and_a_short_rest_is_part_of_the_next() -> None:
    recording = Recording(wall_ms=EPOCH_MS + 300)
    recording.loop.advance(2_700)
    second = EPOCH_MS // 1_000
    assert recording.facts("ts", "dur_ms") == [(second, 700), (second + 1, 1_000), (second + 2, 1_000)]
    recording = Recording(wall_ms=EPOCH_MS + 800)
    recording.loop.advance(2_200)
    second = EPOCH_MS // 1_000
    assert recording.facts("ts", "dur_ms") == [(second + 1, 1_200), (second + 2, 1_000)]


def test_a_loop_that_was_late_makes_one_long_line_and_no_second_twice() -> None:
    recording = Recording()
    recording.loop.advance(1_000)
    recording.clock.advance(2_600)
    recording.loop.advance(2_400)
    told = recording.facts("seq", "ts", "dur_ms")
    assert [seq for seq, _, _ in told] == list(range(len(told)))
    seconds = [ts for _, ts, _ in told]
    assert seconds == sorted(set(seconds))
    assert sum(dur_ms for _, _, dur_ms in told) == 6_000
    assert max(dur_ms for _, _, dur_ms in told) == 2_600


def test_i15_a_wall_clock_set_back_is_flagged_and_drift_is_not() -> None:
    recording = Recording()
    recording.loop.advance(1_500)
    recording.wall_offset_ms -= 3_600_000
    recording.loop.advance(2_500)
    told = recording.sink.told
    assert [line["seq"] for line in told] == [0, 1, 2, 3]
    assert [line.get("jump_ms", 0) for line in told] == [0, -3_600_000, 0, 0]
    assert [line["dur_ms"] for line in told] == [1_000] * 4
    recording = Recording()
    for _ in range(5):
        recording.wall_offset_ms += 20
        recording.loop.advance(1_000)
    assert all("jump_ms" not in line for line in recording.sink.told)


def test_each_line_says_what_one_counter_covers_as_soon_as_it_is_known() -> None:
    recording = Recording()
    recording.scope = ""
    recording.loop.advance(1_000)
    recording.scope = "fleet:cluster/topic"
    recording.loop.advance(1_000)
    assert [line.get("scope") for line in recording.sink.told] == [None, "fleet:cluster/topic"]


def test_many_rows_are_taken_in_turns_told_once_and_are_one_line() -> None:
    recording = Recording()
    rows = 3 * ROWS_PER_TURN + 1
    for at in range(rows):
        recording.count(f"app-{at}")
    timers = []
    recording.loop.advance(999)
    for _ in range(20):
        timers.append(len(recording.sink.lines))
        recording.loop.advance(0 if timers[-1] else 1)
    (line,) = recording.sink.lines
    assert line.rows == rows
    recording = Recording()
    for at in range(ROWS_PER_TURN + 1):
        recording.count(f"app-{at}")
    between = recording.loop.call_later(1.0, lambda: recording.count("app-0"))
    recording.loop.advance(2_000)
    assert between.due_ms == recording.clock.now_ms - 1_000
    totals = [sum(row[Row.OFFERED] for row in line["rows"]) for line in recording.sink.told]
    assert sum(totals) == 10 * (ROWS_PER_TURN + 2)


def test_the_last_line_is_made_at_the_end() -> None:
    recording = Recording()
    recording.loop.advance(1_200)
    recording.count()
    recording.recorder.stop()
    recording.recorder.stop()
    assert recording.facts("seq", "dur_ms") == [(0, 1_000), (1, 200)]
    assert recording.sink.told[-1]["rows"][0][Row.OFFERED] == 10
    recording.loop.advance(5_000)
    assert len(recording.sink.lines) == 2


def test_a_stop_between_two_turns_finishes_the_line_and_tells_what_came_after_it() -> None:
    recording = Recording()
    for at in range(2 * ROWS_PER_TURN):
        recording.count(f"app-{at}")
    recording.clock.advance(1_000)
    recording.recorder._tick()
    assert recording.sink.lines == []
    recording.clock.advance(30)
    recording.count("app-0", units=7)  # its row has been taken
    recording.recorder.stop()
    line, rest = recording.sink.lines
    assert line.rows == 2 * ROWS_PER_TURN
    assert rest.rows == 1
    assert recording.sink.told[1]["rows"][0][Row.OFFERED] == 7
    second = EPOCH_MS // 1_000
    assert recording.facts("seq", "ts", "dur_ms") == [(0, second, 1_000), (1, second + 1, 30)]


def test_events_are_as_far_apart_as_they_were_decided_however_the_clocks_wobble() -> None:
    recording = Recording()
    row = recording.table.row("in", "alice", "app", UsageApi.MUTATION)
    recording.loop.advance(500)
    for wobble_ms in (1, -2, 30, -29, 3):
        event(recording.table, row, b"t", now_ms=recording.clock.now_ms)
        recording.wall_offset_ms += wobble_ms
        recording.loop.advance(1_000)
    times = [line["ts"] * 1_000 + each[Event.OFFSET_MS] for line in recording.sink.told for each in line["events"]]
    assert times == [EPOCH_MS + 500 + 1_000 * at for at in range(5)]
    recording.wall_offset_ms += 5_000
    recording.loop.advance(1_500)
    event(recording.table, row, b"t", now_ms=recording.clock.now_ms)
    recording.loop.advance(1_000)
    line = recording.sink.told[-1]
    now_ms = recording.clock.now_ms + recording.wall_offset_ms
    assert line["ts"] * 1_000 + line["events"][0][Event.OFFSET_MS] == now_ms - 1_000
