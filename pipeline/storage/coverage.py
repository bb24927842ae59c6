"""How much of each gateway's time is covered, day by day, and which days are closed. Pure.

A hole between two lines is known from their numbers (`pipeline.storage.offset_index`). What a gateway wrote after its
last line is not: a gateway that fell silent at noon looks as one that was stopped. So time is expected of a gateway,
a line for each second, from its start on to the end of the day, and on the day after it was last seen; and again from
where a later start of it is. What is short of that was lost, or never was; quotas must not be made of it either way.

A day is closed some time after its end, when late files had their chance. Of a day that is open, time is expected up
to the newest line of any gateway. Lines that are ahead of the reader's clock cover nothing. Nor do those from before
there were gateways: a machine without a clock of its own begins in 1970, until it gets the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final, NamedTuple, TypeAlias

from pipeline.storage.offset_index import DAY_S, FIRST_S, JUMP_S, Interval, OffsetIndex, Run

COMPLETE_ENOUGH: Final = 0.95
"""The share of its time that a gateway, and all of them together, must have on a day, unless gaps are allowed."""
GRACE_S: Final = 3_600
AHEAD_S: Final = 3_600
"""By how much a gateway's clock may be ahead of the reader's."""
OVERLAP_S: Final = 600
"""At an upgrade the process before continues for one and a half `drain.timeout_ms`, beside the new one."""
_SPANS_SHOWN: Final = 3
_EPOCH: Final = date(1970, 1, 1)
_EVER: Final = 2**62


@dataclass(frozen=True, slots=True)
class Expectation:
    """What is expected to be there.

    Attributes:
        now_s: the reader's clock, s since the epoch.
        grace_s: how long after its end a day is closed.
        gateways: the gateways that are to be there, all day and every day; others are taken for stopped after their
            last line. Empty: not known, so each gateway that was seen is expected to continue.
    """

    now_s: int
    grace_s: int = GRACE_S
    gateways: frozenset[str] = frozenset()

    def is_open(self, day: str) -> bool:
        """Whether a day, written 2026-11-21, may still get lines; also one that lies ahead."""
        return self._is_open(day_number(day))

    def lies_ahead(self, day: str) -> bool:
        """Whether no clock that is right can have named this day yet."""
        return day_number(day) * DAY_S > self.now_s + AHEAD_S

    def _is_open(self, day: int) -> bool:
        return (day + 1) * DAY_S + self.grace_s > self.now_s


class Coverage(NamedTuple):
    """Of a gateway on a day."""

    covered_s: int
    expected_s: int
    silent: tuple[tuple[int, int], ...] = ()
    """Where it is below COMPLETE_ENOUGH, the longest spans without lines: from this second on, up to that one."""

    @property
    def share(self) -> float:
        """0 to 1; 1 where nothing was expected."""
        return min(1.0, self.covered_s / self.expected_s) if self.expected_s else 1.0


class Clash(NamedTuple):
    """Two runs of one name that both wrote lines for the same time: two gateways with one id."""

    gw: str
    boots: tuple[int, int]
    from_ts: int
    to_ts: int

    def __str__(self) -> str:
        """For people."""
        first, second = self.boots
        return (
            f"two gateways called {self.gw} were up at the same time, started {first} and {second} (or its clock was "
            f"set back by more than {OVERLAP_S} s)"
        )


@dataclass(frozen=True, slots=True)
class DayCoverage:
    """Of a day.

    Attributes:
        gateways: by name, those that were there or should have been.
        clashes: see `Clash`.
    """

    gateways: Mapping[str, Coverage]
    clashes: tuple[Clash, ...] = ()

    @property
    def covered_s(self) -> int:
        """Of all gateways."""
        return sum(each.covered_s for each in self.gateways.values())

    @property
    def expected_s(self) -> int:
        """Of all gateways."""
        return sum(each.expected_s for each in self.gateways.values())

    @property
    def share(self) -> float:
        """Of all gateways, 0 to 1."""
        return Coverage(self.covered_s, self.expected_s).share

    def shares(self) -> dict[str, float]:
        """By gateway, by name."""
        return {gw: each.share for gw, each in sorted(self.gateways.items())}

    def silent(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """Spans without lines of gateways that are below COMPLETE_ENOUGH."""
        return {gw: each.silent for gw, each in sorted(self.gateways.items()) if each.silent}

    def clash_texts(self) -> dict[str, str]:
        """For people, by gateway."""
        return {clash.gw: str(clash) for clash in self.clashes}


_Span: TypeAlias = tuple[int, int, Run]
"""From this second on, up to but without that; and the run that wrote the lines."""


def day_name(day: int) -> str:
    """A day, counted since the epoch, as 2026-11-21."""
    return (_EPOCH + timedelta(days=day)).isoformat()


def day_number(day: str) -> int:
    """A day, written 2026-11-21, counted since the epoch."""
    return (date.fromisoformat(day) - _EPOCH).days


def coverage(index: OffsetIndex, expectation: Expectation) -> dict[str, DayCoverage]:
    """Days from the first line to the last, by name; without those ahead of the clock.

    Args:
        index: which lines have been read.
        expectation: what should be there.
    """
    spans, starts = _spans(index, expectation.now_s + AHEAD_S)
    if not spans:
        return {}
    newest = max(end for own in spans.values() for _, end, _ in own)
    first_day, last_day = min(starts.values()) // DAY_S, (newest - 1) // DAY_S
    days: dict[int, dict[str, Coverage]] = {day: {} for day in range(first_day, last_day + 1)}
    clashes = [clash for own in spans.values() for clash in _clashes(own)]
    for gw in spans.keys() | expectation.gateways:
        own = spans.get(gw, [])
        covered = _covered(own)
        expected: dict[int, list[tuple[int, int]]] = {}
        for begin, end in _expected(gw, own, starts, expectation) if own else [(first_day * DAY_S, _EVER)]:
            for day in range(begin // DAY_S, min((end - 1) // DAY_S, last_day) + 1):
                closes = newest if expectation._is_open(day) else (day + 1) * DAY_S
                span = max(begin, day * DAY_S), min(end, closes, (day + 1) * DAY_S)
                if span[0] < span[1]:
                    expected.setdefault(day, []).append(span)
        for day, wanted in expected.items():
            found = Coverage(covered.get(day, 0), sum(end - begin for begin, end in wanted))
            if found.share < COMPLETE_ENOUGH:
                found = found._replace(silent=_silent(wanted, own))
            days[day][gw] = found
    return {
        day_name(day): DayCoverage(
            gateways,
            tuple(each for each in clashes if each.from_ts // DAY_S <= day <= (each.to_ts - 1) // DAY_S),
        )
        for day, gateways in days.items()
        if gateways
    }


def short_gateways(shares: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Gateways that are short on any of some days, with their least share."""
    least: dict[str, float] = {}
    for of_day in shares:
        for gw, share in of_day.items():
            least[gw] = min(share, least.get(gw, 1.0))
    return {gw: share for gw, share in sorted(least.items()) if share < COMPLETE_ENOUGH}


def _spans(index: OffsetIndex, latest: int) -> tuple[dict[str, list[_Span]], dict[Run, int]]:
    """By gateway, in the order of their times: what its lines cover; and when each run began."""
    spans: dict[str, list[_Span]] = {}
    starts: dict[Run, int] = {}
    for run, intervals in index.runs.items():
        there = [interval for interval in intervals if FIRST_S <= interval.first_ts <= latest]
        if there:
            spans.setdefault(run.gw, []).extend((*_span(interval), run) for interval in there)
            starts[run] = _start(run, there[0])
    return {gw: sorted(own) for gw, own in spans.items()}, starts


def _span(interval: Interval) -> tuple[int, int]:
    end = interval.last_ts + 1
    if not 0 < end - interval.first_ts <= 2 * interval.lines + JUMP_S:
        # The clock was set in between: an index of an older release has joined such lines.
        end = interval.first_ts + interval.lines
    return interval.first_ts, end


def _start(run: Run, first: Interval) -> int:
    """When a run began: with its first line, else by its name, unless its clock was wrong then, as its lines show."""
    boot_s = run.boot // 1000
    if first.first and boot_s >= FIRST_S and 0 <= first.first_ts - boot_s <= 2 * first.first + JUMP_S:
        return boot_s
    begun = first.first_ts - first.first
    return begun if begun >= FIRST_S else first.first_ts


def _expected(
    gw: str, own: list[_Span], starts: Mapping[Run, int], expectation: Expectation
) -> list[tuple[int, int]]:
    """From when to when a gateway should be there."""
    begin, last = min(starts[run] for *_, run in own), own[0][1]
    if gw in expectation.gateways:
        return [(begin, _EVER)]
    found = []
    seen = {own[0][2]}
    for _, end, run in own[1:]:
        if run not in seen and starts[run] >= _given_up(last):
            found.append((begin, last if expectation.gateways else _given_up(last)))
            begin = starts[run]
        seen.add(run)
        last = max(last, end)
    return [*found, (begin, last if expectation.gateways else _given_up(last))]


def _given_up(last: int) -> int:
    """The end of the day after the one on which a gateway was last seen: then it is taken for stopped."""
    return ((last - 1) // DAY_S + 2) * DAY_S


def _covered(own: list[_Span]) -> dict[int, int]:
    """Seconds of each day that some span covers."""
    found: dict[int, int] = {}
    done = 0
    for begin, end, _ in own:
        span = max(begin, done), end
        done = max(done, end)
        for day in range(span[0] // DAY_S, (end - 1) // DAY_S + 1):
            found[day] = found.get(day, 0) + _overlap(span, day)
    return found


def _silent(wanted: list[tuple[int, int]], own: list[_Span]) -> tuple[tuple[int, int], ...]:
    """The longest parts of some spans that no line covers, by time."""
    found = []
    for begin, end in wanted:
        done = begin
        for first, last, _ in own:
            if last > done and first < end:
                found.append((done, first))
                done = last
        found.append((done, end))
    longest = sorted((span for span in found if span[0] < span[1]), key=lambda span: span[0] - span[1])
    return tuple(sorted(longest[:_SPANS_SHOWN]))


def _clashes(own: list[_Span]) -> Iterator[Clash]:
    together: dict[tuple[int, int], list[tuple[int, int]]] = {}
    widest = own[0]
    for span in own[1:]:
        begin, end, run = span
        until = min(end, widest[1])
        if run != widest[2] and until > begin:
            first, second = sorted((run.boot, widest[2].boot))
            together.setdefault((first, second), []).append((begin, until))
        widest = max(widest, span, key=lambda each: each[1])
    for boots, overlaps in together.items():
        # Less is a restart, an upgrade or a clock that was put right. Lines that were lost divide it.
        if sum(until - begin for begin, until in overlaps) > OVERLAP_S:
            yield Clash(own[0][2].gw, boots, overlaps[0][0], max(until for _, until in overlaps))


def _overlap(span: tuple[int, int], day: int) -> int:
    return max(0, min(span[1], (day + 1) * DAY_S) - max(span[0], day * DAY_S))
