"""The offset index: which lines of which gateway have been read.

With it `ingest` counts each line exactly once and finds missing lines. A line is identified by (gateway, boot, seq).
A gateway numbers its lines without gaps, including those of empty seconds. So the lines of a run that have been read
are a few intervals of `seq`, and lines between these intervals were written but never arrived. Lines may come in any
order and any number of times: the resulting offset index is the same. Pure.

A run that ended long ago can be forgotten (`OffsetIndex.forget`). From then on no line from before that time is read,
since it is not known whether it was read already. So no line ever counts twice.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

FIRST_SEQ: Final = 0
"""The number of a gateway's first line; see `quotas.usage_record`."""
DAY_S: Final = 86_400
FIRST_S: Final = 1_577_836_800
"""2020: no gateway wrote a line before. A machine without a battery-backed clock starts in 1970."""
JUMP_S: Final = 60
"""Lines with neighbouring numbers that are further apart in time were written before and after a clock change."""


class Run(NamedTuple):
    """A gateway from one start to its end."""

    gw: str
    boot: int
    """When it started, ms since the epoch."""


class Interval(NamedTuple):
    """Lines without a gap, in number and in time."""

    first: int
    last: int
    first_ts: int
    """The second that line `first` covers, s since the epoch."""
    last_ts: int

    @property
    def lines(self) -> int:
        """The number of lines."""
        return self.last - self.first + 1


class Gap(NamedTuple):
    """Lines that were written and never arrived."""

    gw: str
    boot: int
    first: int
    last: int
    from_ts: int
    """Second of the last line before the gap, or of the gateway's start."""
    to_ts: int
    """Second of the first line after the gap."""

    @property
    def lines(self) -> int:
        """The number of missing lines."""
        return self.last - self.first + 1


class Entry(NamedTuple):
    """A line in a batch."""

    run: Run
    seq: int
    ts: int


Intervals: TypeAlias = tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class OffsetIndex:
    """The lines that have been read. Immutable: `add` returns a new index."""

    runs: Mapping[Run, Intervals] = field(default_factory=dict)
    forgotten_s: int = 0
    """Lines of earlier seconds (since the epoch) count as read. 0: nothing has been forgotten."""

    def add(self, entries: Iterable[Entry]) -> tuple[OffsetIndex, list[int]]:
        """The offset index with a batch's lines.

        Args:
            entries: the lines, in any order, with repetitions.

        Returns:
            The new offset index, and the indices of entries that had been read before or came earlier in this batch.
        """
        new: dict[Run, dict[int, int]] = {}
        duplicates = []
        for index, (run, seq, ts) in enumerate(entries):
            fresh = new.setdefault(run, {})
            if seq in fresh or self.holds(run, seq, ts):
                duplicates.append(index)
            else:
                fresh[seq] = ts
        runs = dict(self.runs)
        for run, fresh in new.items():
            if fresh:
                runs[run] = _joined(runs.get(run, ()), fresh)
        return OffsetIndex(runs, self.forgotten_s), duplicates

    def holds(self, run: Run, seq: int, ts: int) -> bool:
        """Whether a line of second `ts` has been read, or is too old for this to be known."""
        return FIRST_S <= ts < self.forgotten_s or _holds(self.runs.get(run, ()), seq)

    def forget(self, before_s: int) -> OffsetIndex:
        """The offset index without runs that ended before a second.

        A gateway is expected on the day after its last line. If a run of a gateway is kept, the run before it is kept
        too, because from its end on the gateway is expected (`pipeline.storage.coverage`).

        Args:
            before_s: a midnight, since the epoch. A time before `forgotten_s` changes nothing.
        """
        old = {
            run: last_ts
            for run, intervals in self.runs.items()
            if FIRST_S <= (last_ts := max(each.last_ts for each in intervals)) < before_s - DAY_S
        }
        there = {run.gw for run in self.runs if run not in old}
        newest: dict[str, Run] = {}
        for run in sorted(old, key=lambda run: old[run]):
            if run.gw in there:
                newest[run.gw] = run
        gone = old.keys() - newest.values()
        kept = {run: intervals for run, intervals in self.runs.items() if run not in gone}
        return OffsetIndex(kept, max(before_s, self.forgotten_s))

    def gaps(self) -> Iterator[Gap]:
        """All gaps, by gateway, start and number.

        Lines after the last one that was read cannot be known to be missing.
        """
        for run, intervals in sorted(self.runs.items()):
            before, before_ts = FIRST_SEQ - 1, run.boot // 1000
            for interval in intervals:
                if interval.first > before + 1:
                    yield Gap(*run, before + 1, interval.first - 1, before_ts, interval.first_ts)
                before, before_ts = interval.last, interval.last_ts

    def lines(self) -> int:
        """How many lines have been read."""
        return sum(interval.lines for intervals in self.runs.values() for interval in intervals)

    def to_json(self) -> list[list[Any]]:
        """The JSON form: [gw, boot, [[first, last, first_ts, last_ts], ...]] for each run."""
        return [
            [run.gw, run.boot, [list(interval) for interval in intervals]]
            for run, intervals in sorted(self.runs.items())
        ]

    @classmethod
    def from_json(cls, runs: Iterable[Iterable[Any]], forgotten_s: int = 0) -> OffsetIndex:
        """The inverse of `to_json`, whose result does not contain `forgotten_s`."""
        return cls(
            {
                Run(gw, boot): tuple(Interval(*interval) for interval in intervals)
                for gw, boot, intervals in runs
            },
            forgotten_s,
        )


def _holds(intervals: Intervals, seq: int) -> bool:
    at = bisect.bisect_right(intervals, seq, key=lambda interval: interval.first)
    return at > 0 and intervals[at - 1].last >= seq


def _joined(intervals: Intervals, fresh: Mapping[int, int]) -> Intervals:
    """Adds single lines that are in none of the intervals."""
    pieces = sorted([*intervals, *(Interval(seq, seq, ts, ts) for seq, ts in fresh.items())])
    joined = [pieces[0]]
    for piece in pieces[1:]:
        last = joined[-1]
        if piece.first == last.last + 1 and abs(piece.first_ts - last.last_ts) <= JUMP_S:
            joined[-1] = Interval(last.first, piece.last, last.first_ts, piece.last_ts)
        else:
            joined.append(piece)
    return tuple(joined)
