"""Makes a usage line once a second. [io]: it reads both clocks and owns a timer.

Seconds are those of the wall clock; how long a line really lasted is measured by the loop's clock. A second that the
loop missed because it was busy is part of the line before it, which then says so.

A line is put together from slices, so that no call of the loop takes long. Its layout is `quotas.usage_record`. What
clients choose goes through the encoder as a string and so can neither end a line nor add a field (hazard I14).
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
"""Taken and encoded within one turn of the loop: less than a millisecond."""

METERED_ROWS_PER_TURN: Final = 50
"""The same where each may have a hundred topics."""

_SECOND_MS: Final = 1000
_JUMP_MS: Final = 100
"""The clocks drift apart by less in a second; whatever is more was set."""


_EMPTY: Final = b"[]"


class LineBuilder:
    """Puts one line together: `add_rows` as often as needed, then `finish`."""

    def __init__(self) -> None:
        """Begin with nothing."""
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
        """Encode a part of what a broker stores."""
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
            gateway, boot, seq: its name.
            ts: the second it covers.
            dur_ms: the time it covers.
            algorithm: of the controller mutation quota.
            scope: what one counter covers; empty: not known yet.
            events: as the table has them.
            clock_offset_ms: the gateway's clock at the wall clock's `ts`.
            dropped: clients in `~other` and events that are missing.
            `told`: more events, as they are written.
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
    """What other processes of this gateway have counted since it was taken last."""

    def take_rows(self) -> list[RowValues]:
        """The rows."""

    def take_topics(self) -> list[TopicValues]:
        """The rows of topics."""

    def take_events(self, ts: int) -> Sequence[Sequence[Any]]:
        """The events, as of a line of this second."""

    def take_dropped(self) -> tuple[int, int]:
        """Clients in `~other` and events that are missing."""


class LineSink(Protocol):
    """Takes lines away; never blocks."""

    def offer(self, line: Line) -> bool:
        """Take a line; False when the queue was full and it is counted as dropped."""


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
        """Make it; nothing is timed yet.

        Args:
            table: what was counted.
            sink: where lines go.
            gateway: name of this gateway.
            boot: when it was started, ms since the epoch.
            algorithm: of the controller mutation quota.
            scope: what one counter covers, as `quotas.usage_record` writes it; empty: not known yet.
            loop: has the timer.
            now_ms: its clock, which counts time.
            wall_ms: the clock that names seconds.
            others: go into the same lines; None: there are none.
            late_ms: how long after its second a line is made.
            stored: what brokers store; None: they are not asked.
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
        """Write what was counted since the last line, and no more lines."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        # A line under way lacks what was counted in its rows after they were taken: that is one more line.
        for taking in (self._taking or iter(()), self._take()):
            for _ in taking:
                pass
        self._taking = None

    def _begin(self) -> None:
        self._begin_wall_ms, self._begin_ms = self._wall_ms(), self._now_ms()
        self._ahead_ms = self._begin_wall_ms - self._begin_ms

    def _wait(self) -> None:
        """Until the wall clock's next second; not the one that begins at once, where the loop was late."""
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
        # Each look finds the clocks some milliseconds apart. Events have the distances of the clock that quotas
        # are counted by: what was let in a millisecond after a debt was paid must not stand before that.
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
