"""The offset index: which lines of which gateway have been read.

It makes ingest exactly-once, and shows what is missing. A line is (gateway, boot, seq), and a gateway numbers its
lines without holes, empty seconds included. So the lines of a run that have been read are a few intervals of `seq`;
whatever lies between them was written and never arrived. Lines may come in any order and any number of times: the
offset index ends the same. Pure.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

FIRST_SEQ: Final = 0
"""What a gateway numbers its first line with; see `quotas.usage_record`."""
DAY_S: Final = 86_400
JUMP_S: Final = 60
"""Neighbours in number that are further apart in time than this were written before and after the clock was set."""


class Run(NamedTuple):
    """A gateway from one start to its end."""

    gw: str
    boot: int
    """When it started, ms since the epoch."""


class Interval(NamedTuple):
    """Lines without a hole, in number and in time."""

    first: int
    last: int
    first_ts: int
    """Second that line `first` covers, since the epoch."""
    last_ts: int

    @property
    def lines(self) -> int:
        """How many."""
        return self.last - self.first + 1


class Gap(NamedTuple):
    """Lines that were written and never arrived."""

    gw: str
    boot: int
    first: int
    last: int
    from_ts: int
    """Second of the last line before, or of the gateway's start."""
    to_ts: int
    """Second of the first line after."""

    @property
    def lines(self) -> int:
        """How many."""
        return self.last - self.first + 1


class Entry(NamedTuple):
    """A line that a batch holds."""

    run: Run
    seq: int
    ts: int


Intervals: TypeAlias = tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class OffsetIndex:
    """What has been read. Never changes: `add` gives the next one."""

    runs: Mapping[Run, Intervals] = field(default_factory=dict)

    def add(self, entries: Iterable[Entry]) -> tuple[OffsetIndex, list[int]]:
        """The offset index with a batch's lines.

        Args:
            entries: the lines, in any order, with repetitions.

        Returns:
            The offset index after it, and the indices of entries that had been read before or came earlier in this
            batch.
        """
        new: dict[Run, dict[int, int]] = {}
        duplicates = []
        for index, (run, seq, ts) in enumerate(entries):
            fresh = new.setdefault(run, {})
            if seq in fresh or _holds(self.runs.get(run, ()), seq):
                duplicates.append(index)
            else:
                fresh[seq] = ts
        runs = dict(self.runs)
        for run, fresh in new.items():
            if fresh:
                runs[run] = _joined(runs.get(run, ()), fresh)
        return OffsetIndex(runs), duplicates

    def holds(self, run: Run, seq: int) -> bool:
        """Whether a line has been read."""
        return _holds(self.runs.get(run, ()), seq)

    def gaps(self) -> Iterator[Gap]:
        """Every hole, by gateway, start and number.

        What a gateway wrote after the last line that is here cannot be known.
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
        """As JSON keeps it: [gw, boot, [[first, last, first_ts, last_ts], ...]] for each run."""
        return [
            [run.gw, run.boot, [list(interval) for interval in intervals]]
            for run, intervals in sorted(self.runs.items())
        ]

    @classmethod
    def from_json(cls, runs: Iterable[Iterable[Any]]) -> OffsetIndex:
        """The inverse of `to_json`."""
        return cls(
            {
                Run(gw, boot): tuple(Interval(*interval) for interval in intervals)
                for gw, boot, intervals in runs
            }
        )


def _holds(intervals: Intervals, seq: int) -> bool:
    at = bisect.bisect_right(intervals, seq, key=lambda interval: interval.first)
    return at > 0 and intervals[at - 1].last >= seq


def _joined(intervals: Intervals, fresh: Mapping[int, int]) -> Intervals:
    """Intervals with single lines that lie in none of them."""
    pieces = sorted([*intervals, *(Interval(seq, seq, ts, ts) for seq, ts in fresh.items())])
    joined = [pieces[0]]
    for piece in pieces[1:]:
        last = joined[-1]
        if piece.first == last.last + 1 and abs(piece.first_ts - last.last_ts) <= JUMP_S:
            joined[-1] = Interval(last.first, piece.last, last.first_ts, piece.last_ts)
        else:
            joined.append(piece)
    return tuple(joined)
