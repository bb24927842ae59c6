"""How complete each gateway's lines are, day by day, and which days are closed. Pure.

The numbers of two lines show whether there is a gap between them (`pipeline.storage.offset_index`). They do not show
what a gateway wrote after its last line that was read: a gateway whose lines stopped arriving at noon looks like one
that was stopped. So one line per second is expected of each gateway: from its start until the end of the day, on the
day after its last line, and again from its next start. If there are fewer lines, either lines were lost or the
gateway did not run. Quotas must not be calculated from such a day in either case.

A day is closed some time after its end, so that late files can arrive. On an open day, lines are expected up to the
newest line of any gateway. Lines ahead of the reader's clock cover nothing. Nor do lines from before gateways
existed: a machine without a battery-backed clock starts in 1970, until it gets the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final, NamedTuple, TypeAlias

from pipeline.storage.offset_index import DAY_S, FIRST_S, JUMP_S, Interval, OffsetIndex, Run

COMPLETE_ENOUGH: Final = 0.95
"""The covered share of a day that each gateway, and all together, must reach, unless gaps are allowed."""
GRACE_S: Final = 3_600
AHEAD_S: Final = 3_600
"""How far a gateway's clock may be ahead of the reader's."""
OVERLAP_S: Final = 600
"""At an upgrade the old process runs beside the new one for one and a half times `drain.timeout_ms`."""
_SPANS_SHOWN: Final = 3
_EPOCH: Final = date(1970, 1, 1)
_EVER: Final = 2**62


@dataclass(frozen=True, slots=True)
class Expectation:
    """Which gateways and days are expected.

    Attributes:
        now_s: the reader's clock, s since the epoch.
        grace_s: time from the end of a day until it is closed.
        gateways: the gateways that must be there all day, every day. Others count as stopped after their last line.
            Empty: not known, so each gateway that was ever seen is expected to continue.
    """

    now_s: int
    grace_s: int = GRACE_S
    gateways: frozenset[str] = frozenset()

    def is_open(self, day: str) -> bool:
        """Whether a day (2026-11-21) may still get lines. True for days in the future."""
        return self._is_open(day_number(day))

    def lies_ahead(self, day: str) -> bool:
        """Whether the day begins so late that only a wrong clock can have named it."""
        return day_number(day) * DAY_S > self.now_s + AHEAD_S

    def _is_open(self, day: int) -> bool:
        return (day + 1) * DAY_S + self.grace_s > self.now_s


class Coverage(NamedTuple):
    """Coverage of one gateway on one day."""

    covered_s: int
    expected_s: int
    silent: tuple[tuple[int, int], ...] = ()
    """If `share` is below COMPLETE_ENOUGH, the longest spans without lines, as [first second, end)."""

    @property
    def share(self) -> float:
        """0 to 1; 1 if nothing was expected."""
        return min(1.0, self.covered_s / self.expected_s) if self.expected_s else 1.0


class Clash(NamedTuple):
    """Two runs of one name whose lines are from the same time: two gateways with the same id."""

    gw: str
    boots: tuple[int, int]
    from_ts: int
    to_ts: int

    def __str__(self) -> str:
        """The clash as text for the operator."""
        first, second = self.boots
        return (
            f"two gateways called {self.gw} were up at the same time, started {first} and {second} (or its clock was "
            f"set back by more than {OVERLAP_S} s)"
        )


@dataclass(frozen=True, slots=True)
class DayCoverage:
    """Coverage of one day.

    Attributes:
        gateways: by name; gateways that were there or were expected.
        clashes: see `Clash`.
    """

    gateways: Mapping[str, Coverage]
    clashes: tuple[Clash, ...] = ()

    @property
    def covered_s(self) -> int:
        """Sum of all gateways."""
        return sum(each.covered_s for each in self.gateways.values())

    @property
    def expected_s(self) -> int:
        """Sum of all gateways."""
        return sum(each.expected_s for each in self.gateways.values())

    @property
    def share(self) -> float:
        """Share of all gateways together, 0 to 1."""
        return Coverage(self.covered_s, self.expected_s).share

    def shares(self) -> dict[str, float]:
        """The share of each gateway, ordered by name."""
        return {gw: each.share for gw, each in sorted(self.gateways.items())}

    def silent(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """The longest spans without lines, of gateways below COMPLETE_ENOUGH."""
        return {gw: each.silent for gw, each in sorted(self.gateways.items()) if each.silent}

    def clash_texts(self) -> dict[str, str]:
        """The clash of each gateway as text for the operator."""
        return {clash.gw: str(clash) for clash in self.clashes}


_Span: TypeAlias = tuple[int, int, Run]
"""First second, end (exclusive), and the run that wrote the lines."""


def day_name(day: int) -> str:
    """The name (2026-11-21) of a day that is given as its number since the epoch."""
    return (_EPOCH + timedelta(days=day)).isoformat()


def day_number(day: str) -> int:
    """The number since the epoch of a day that is given as 2026-11-21."""
    return (date.fromisoformat(day) - _EPOCH).days


def coverage(index: OffsetIndex, expectation: Expectation) -> dict[str, DayCoverage]:
    """Coverage of each day from the first line to the last, by name, without days ahead of the clock.

    Args:
        index: the lines that have been read.
        expectation: the gateways and the time that are expected.
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


def newest_second(index: OffsetIndex, now_s: int) -> int | None:
    """The newest second (since the epoch) that lines cover, at most `AHEAD_S` after `now_s`; None: there is none."""
    spans, _ = _spans(index, now_s + AHEAD_S)
    newest = max((end - 1 for own in spans.values() for _, end, _ in own), default=None)
    return None if newest is None else min(newest, now_s + AHEAD_S)


def short_gateways(shares: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Gateways that are below COMPLETE_ENOUGH on at least one of some days, with their least share."""
    least: dict[str, float] = {}
    for of_day in shares:
        for gw, share in of_day.items():
            least[gw] = min(share, least.get(gw, 1.0))
    return {gw: share for gw, share in sorted(least.items()) if share < COMPLETE_ENOUGH}


def _spans(index: OffsetIndex, latest: int) -> tuple[dict[str, list[_Span]], dict[Run, int]]:
    """The spans that each gateway's lines cover, in order of time, and the start of each run."""
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
        # The clock was set between these lines; the index of an older release joins such lines.
        end = interval.first_ts + interval.lines
    return interval.first_ts, end


def _start(run: Run, first: Interval) -> int:
    """When a run began: the time in its name if that fits its first line, otherwise counted back from that line."""
    boot_s = run.boot // 1000
    if first.first and boot_s >= FIRST_S and 0 <= first.first_ts - boot_s <= 2 * first.first + JUMP_S:
        return boot_s
    begun = first.first_ts - first.first
    return begun if begun >= FIRST_S else first.first_ts


def _expected(
    gw: str, own: list[_Span], starts: Mapping[Run, int], expectation: Expectation
) -> list[tuple[int, int]]:
    """The spans of time in which a gateway is expected to run."""
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
    """The end of the day after the one with a gateway's last line. From then on the gateway counts as stopped."""
    return ((last - 1) // DAY_S + 2) * DAY_S


def _covered(own: list[_Span]) -> dict[int, int]:
    """How many seconds of each day any span covers."""
    found: dict[int, int] = {}
    done = 0
    for begin, end, _ in own:
        span = max(begin, done), end
        done = max(done, end)
        for day in range(span[0] // DAY_S, (end - 1) // DAY_S + 1):
            found[day] = found.get(day, 0) + _overlap(span, day)
    return found


def _silent(wanted: list[tuple[int, int]], own: list[_Span]) -> tuple[tuple[int, int], ...]:
    """The longest parts of `wanted` that no line covers, in order of time."""
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
        # A shorter overlap is a restart, an upgrade or a corrected clock. Lost lines divide an overlap into several.
        if sum(until - begin for begin, until in overlaps) > OVERLAP_S:
            yield Clash(own[0][2].gw, boots, overlaps[0][0], max(until for _, until in overlaps))


def _overlap(span: tuple[int, int], day: int) -> int:
    return max(0, min(span[1], (day + 1) * DAY_S) - max(span[0], day * DAY_S))
