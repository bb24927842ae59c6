"""Makes a usage line once a second. [io]: it reads both clocks and owns a timer.

Seconds are those of the wall clock. The loop's clock measures how long a line really lasts. If the loop is busy and
misses a second, the line before it covers that second too, as its `dur_ms` shows.

A line is put together from slices, so that no call of the loop takes long. Its layout is `quotas.usage_record`. Names
that clients choose are encoded as strings, so they can neither end a line nor add a field (hazard I14).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import orjson

from gateway.runtime.clock import NowMs, WallMs, wall_clock_ms
from gateway.usage.line import Line
from gateway.usage.row import RowValues, TopicValues
from gateway.usage.stored import StoredBytes, StoredValues
from gateway.usage.table import EventValues, UsageTable
from quotas.usage_record import VERSION

ROWS_PER_TURN: Final = 250
"""Rows taken and encoded within one turn of the loop: less than a millisecond."""

METERED_ROWS_PER_TURN: Final = 50
"""The same if each row may have a hundred topics."""

_SECOND_MS: Final = 1000
_JUMP_MS: Final = 100
"""In a second the clocks drift apart by less; a larger difference means that the wall clock was set."""


_EMPTY: Final = b"[]"


class LineBuilder:
    """Puts one line together: `add_rows` as often as needed, then `finish`."""

    def __init__(self) -> None:
        """An empty line."""
        self._slices: list[bytes] = []
        self._topics: list[bytes] = []
        self._stored: list[bytes] = []
        self._rows = 0

    def add_rows(self, rows: Sequence[RowValues]) -> None:
        """Encode a slice of the rows."""
        if rows:
            self._slices.append(orjson.dumps(rows)[1:-1])
            self._rows += len(rows)

    def add_topics(self, rows: Sequence[TopicValues]) -> None:
        """Encode a slice of the rows of topics."""
        if rows:
            self._topics.append(orjson.dumps(rows)[1:-1])

    def add_stored(self, part: StoredValues) -> None:
        """Encode a part of a broker's stored bytes."""
        self._stored.append(orjson.dumps(part))

    def finish(
        self,
        *,
        gateway: str,
        boot: int,
        seq: int,
        ts: int,
        dur_ms: int,
        algorithm: str,
        scope: str,
        events: Iterable[EventValues],
        clock_offset_ms: int,
        dropped: tuple[int, int],
        told: Iterable[Sequence[Any]] = (),
        jump_ms: int = 0,
    ) -> Line:
        """The whole line.

        Args:
            gateway, boot, seq: identify the line.
            ts: the second that it covers.
            dur_ms: the time that it covers.
            algorithm: of the controller mutation quota.
            scope: what one counter covers; empty: not known yet.
            events: those of the table.
            clock_offset_ms: the gateway's clock at the wall clock's `ts`.
            dropped: the numbers of clients in `~other` and of missing events.
            `told`: further events, in their written form.
            jump_ms: by how much the wall clock was set meanwhile.
        """
        shown: list[Sequence[Any]] = [(when_ms - clock_offset_ms, *rest) for when_ms, *rest in events]
        shown += told
        head = orjson.dumps(
            {
                "v": VERSION,
                "gw": gateway,
                "boot": boot,
                "seq": seq,
                "ts": ts,
                "dur_ms": dur_ms,
                "algo": algorithm,
                **({"scope": scope} if scope else {}),
                **({"jump_ms": jump_ms} if jump_ms else {}),
            }
        )
        parts = (
            head[:-1],
            b',"rows":[',
            b",".join(self._slices),
            b"]",
            b',"topics":[%b]' % b",".join(self._topics) if self._topics else b"",
            b',"stored":[%b]' % b",".join(self._stored) if self._stored else b"",
            b',"events":',
            orjson.dumps(shown) if shown else _EMPTY,
            b',"dropped_rows":%d,"dropped_events":%d}' % dropped,
        )
        return Line(seq, b"".join(parts), self._rows, len(shown))


class OtherRows(Protocol):
    """The counts of this gateway's other processes since the last line."""

    def take_rows(self) -> list[RowValues]:
        """The rows."""

    def take_topics(self) -> list[TopicValues]:
        """The rows of topics."""

    def take_events(self, ts: int) -> Sequence[Sequence[Any]]:
        """The events, with their times relative to this second."""

    def take_dropped(self) -> tuple[int, int]:
        """The numbers of clients in `~other` and of missing events."""


class LineSink(Protocol):
    """Takes lines; never blocks."""

    def offer(self, line: Line) -> bool:
        """Take a line; False when the queue is full and the line counts as dropped."""


class Recorder:
    """See the module.

    Attributes:
        seq: number of the next line.
    """

    def __init__(
        self,
        table: UsageTable,
        sink: LineSink,
        *,
        gateway: str,
        boot: int,
        algorithm: str,
        scope: Callable[[], str],
        loop: asyncio.AbstractEventLoop,
        now_ms: NowMs,
        wall_ms: WallMs = wall_clock_ms,
        others: OtherRows | None = None,
        late_ms: int = 0,
        stored: StoredBytes | None = None,
    ) -> None:
        """Nothing is timed yet.

        Args:
            table: has the counts.
            sink: takes the lines.
            gateway: name of this gateway.
            boot: when it was started, ms since the epoch.
            algorithm: of the controller mutation quota.
            scope: what one counter covers, as `quotas.usage_record` writes it; empty: not known yet.
            loop: for the timer.
            now_ms: its clock, for durations.
            wall_ms: the wall clock, for seconds.
            others: counts of other processes, for the same lines; None: there are none.
            late_ms: how long after its second a line is made.
            stored: the brokers' stored bytes; None: they are not sampled.
        """
        self._stored = stored
        self._others = others
        self._late_ms = late_ms
        self._table = table
        self._sink = sink
        self._gateway = gateway
        self._algorithm = algorithm
        self._scope = scope
        self._loop = loop
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._timer: asyncio.Handle | None = None
        self._taking: Iterator[None] | None = None
        self._boot = boot
        self.seq = 0
        self._begin()

    def start(self) -> None:
        """Begin the first line now."""
        self._begin()
        self._wait()

    def stop(self) -> None:
        """Write the counts since the last line, then no more lines."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        # A line under way lacks the counts that were added after its rows were taken: they become one more line.
        for taking in (self._taking or iter(()), self._take()):
            for _ in taking:
                pass
        self._taking = None

    def _begin(self) -> None:
        self._begin_wall_ms, self._begin_ms = self._wall_ms(), self._now_ms()
        self._ahead_ms = self._begin_wall_ms - self._begin_ms

    def _wait(self) -> None:
        """Wait for the wall clock's next second, but at least half a second: a late loop skips a second."""
        half_ms = _SECOND_MS // 2
        delay_ms = half_ms + (self._late_ms - self._wall_ms() - half_ms) % _SECOND_MS
        self._timer = self._loop.call_later(delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._taking = self._take()
        self._go_on()

    def _go_on(self) -> None:
        assert self._taking is not None
        if next(self._taking, self) is self:
            self._taking = None
            self._wait()
        else:
            self._timer = self._loop.call_soon(self._go_on)

    def _take(self) -> Iterator[None]:
        """Make one line and offer it; stops after each slice of rows."""
        now_ms, wall_ms = self._now_ms(), self._wall_ms()
        begin_ms, begin_wall_ms = self._begin_ms, self._begin_wall_ms
        self._begin_ms, self._begin_wall_ms = now_ms, wall_ms
        duration_ms = now_ms - begin_ms
        jump_ms = wall_ms - begin_wall_ms - duration_ms
        # The distance of the clocks differs by some milliseconds at each reading. Events keep the distances of the
        # clock that quotas use: a mutation admitted a millisecond after a debt was paid must not precede that.
        ahead_ms = self._ahead_ms
        if abs(wall_ms - now_ms - ahead_ms) >= _JUMP_MS:
            self._ahead_ms = wall_ms - now_ms
        ts = (begin_wall_ms + _SECOND_MS // 2) // _SECOND_MS
        second_ms = ts * _SECOND_MS - ahead_ms
        listed = self._table.take_listed(now_ms=now_ms)
        events = self._table.take_events()
        dropped = self._table.take_dropped()
        builder = LineBuilder()
        metered = self._table.topics is not None
        turn_rows = METERED_ROWS_PER_TURN if metered else ROWS_PER_TURN
        for at in range(0, len(listed), turn_rows):
            if at:
                yield None
            turn = listed[at : at + turn_rows]
            builder.add_rows([self._table.values(row, begin_ms=second_ms, now_ms=now_ms) for row in turn])
            if metered:
                builder.add_topics([each for row in turn for each in row.take_topics()])
        told: Sequence[Sequence[Any]] = ()
        if self._others is not None:
            rows, told = self._others.take_rows(), self._others.take_events(ts)
            folded, missing = self._others.take_dropped()
            dropped = (dropped[0] + folded, dropped[1] + missing)
            for at in range(0, len(rows), ROWS_PER_TURN):
                yield None
                builder.add_rows(rows[at : at + ROWS_PER_TURN])
            topics = self._others.take_topics()
            for at in range(0, len(topics), ROWS_PER_TURN):
                yield None
                builder.add_topics(topics[at : at + ROWS_PER_TURN])
        if self._stored is not None:
            for part in self._stored.take():
                builder.add_stored(part)
                yield None
        line = builder.finish(
            gateway=self._gateway,
            boot=self._boot,
            seq=self.seq,
            ts=ts,
            dur_ms=duration_ms,
            algorithm=self._algorithm,
            scope=self._scope(),
            events=events,
            clock_offset_ms=second_ms,
            dropped=dropped,
            told=told,
            jump_ms=jump_ms if abs(jump_ms) >= _JUMP_MS else 0,
        )
        self.seq += 1
        self._sink.offer(line)
