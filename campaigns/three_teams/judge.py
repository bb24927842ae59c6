"""Compares three teams' use of a capacity with the promises to them. Pure.

Bytes are counted in slots of a tenth of a second from the beginning of the run. A window lasts ten seconds, and a new
one begins at each slot.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from simulation.shares import jain

SLOTS_PER_S: Final = 10
WINDOW_S: Final = 10
_KNOWN_S: Final = 3
"""Seconds until divisions know all clients of a phase."""

_SETTLED_S: Final = 10
"""Seconds after a step of the offer until use has settled: ten windows of a second."""

_SHORT_S: Final = 5
"""Length of windows after settling. Longer windows would hide an oscillation."""

_BACK_S: Final = 2
"""Seconds in which a lender must get its guarantee back: two windows of the quota."""


@dataclass(frozen=True, slots=True)
class Client:
    """One client's bytes.

    Attributes:
        user: user of the client.
        guarantee: bytes per second; 0 for none.
        passed: bytes passed in each slot.
        offered: bytes offered in each slot.
    """

    user: str
    guarantee: float
    passed: Sequence[float]
    offered: Sequence[float]


@dataclass(frozen=True, slots=True)
class Phase:
    """A time in which the clients' offers are constant, in seconds from the beginning of the run.

    Attributes:
        name: name of the phase.
        begin_s: when its offers began.
        end_s: when the next offers began.
        more: whether a client wants more than it gets.
    """

    name: str
    begin_s: int
    end_s: int
    more: bool


@dataclass(frozen=True, slots=True)
class Figure:
    """One promise with its measured value.

    Attributes:
        promise: the promise in words, with its bound.
        value: the measured value.
        bound: bound of the value.
        at_most: whether the bound is an upper bound; otherwise it is a lower bound.
        where: where the value was measured.
    """

    promise: str
    value: float
    bound: float
    at_most: bool
    where: str = ""

    @property
    def kept(self) -> bool:
        """Whether the promise was kept. NaN does not keep it."""
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    def text(self) -> str:
        """One line."""
        verdict = "kept" if self.kept else "MISSED"
        sign = "<=" if self.at_most else ">="
        where = f" ({self.where})" if self.where else ""
        return f"{self.promise}: {self.value:.3f} {sign} {self.bound:g} {verdict}{where}"


def averages(slots: Sequence[float], begin_s: float, end_s: float, window_s: int = WINDOW_S) -> list[float]:
    """Bytes per second in each window within a time."""
    sums = [0.0, *itertools.accumulate(slots)]
    length = window_s * SLOTS_PER_S
    first, last = round(begin_s * SLOTS_PER_S), round(end_s * SLOTS_PER_S) - length
    return [(sums[at + length] - sums[at]) / window_s for at in range(first, last + 1)]


def total(clients: Iterable[Client]) -> list[float]:
    """Bytes that all clients passed, slot by slot."""
    return [sum(each) for each in zip(*(client.passed for client in clients), strict=True)]


def offered(clients: Iterable[Client]) -> list[float]:
    """Bytes that all clients offered, slot by slot."""
    return [sum(each) for each in zip(*(client.offered for client in clients), strict=True)]


def conservation(clients: Sequence[Client], phases: Sequence[Phase], capacity: float) -> list[Figure]:
    """Used part of the capacity while a client wanted more: in each window, and over the whole time.

    Windows with the first seconds after a step count only for the second figure.
    """
    passed = total(clients)
    steady = [
        (average / capacity, phase.begin_s + _KNOWN_S + at / SLOTS_PER_S)
        for phase in phases
        if phase.more
        for at, average in enumerate(averages(passed, phase.begin_s + _KNOWN_S, phase.end_s))
    ]
    spans = list(_wanting(phases))
    seconds = sum(end_s - begin_s for begin_s, end_s in spans)
    used = sum(sum(passed[begin_s * SLOTS_PER_S : end_s * SLOTS_PER_S]) for begin_s, end_s in spans)
    windows = [each / capacity for span in spans for each in averages(passed, *span)]
    worst = f"{min(windows):.3f} in the lowest window" if windows else ""
    whole = used / seconds / capacity if seconds else math.nan
    return [
        _least("capacity in use while a client wants more, in each window", 0.95, steady),
        Figure("the same with all steps, on average", whole, 0.95, at_most=False, where=worst),
    ]


def guarantees(clients: Sequence[Client], phases: Sequence[Phase]) -> Figure:
    """The least part of its guarantee, or of a smaller offer, that a client passed in a window.

    After a step the client's offer determines the value. A lender has two windows to get its guarantee back.
    """
    found = []
    for client in clients:
        if not client.guarantee:
            continue
        for phase in phases:
            begin_s = phase.begin_s + _BACK_S
            pairs = zip(
                averages(client.passed, begin_s, phase.end_s),
                averages(client.offered, begin_s, phase.end_s),
                strict=True,
            )
            for at, (passed, offered) in enumerate(pairs):
                if wanted := min(client.guarantee, offered):
                    found.append((passed / wanted, f"{client.user}, {begin_s + at / SLOTS_PER_S:.1f} s"))
    return _least("part of its guarantee that each client has in each window", 0.98, found)


def fairness(equals: Sequence[Client], phases: Sequence[Phase]) -> Figure:
    """The lowest Jain's fairness index of a window."""
    found = []
    for begin_s, end_s in _wanting(phases):
        windows = zip(*(averages(client.passed, begin_s, end_s) for client in equals), strict=True)
        found += [(jain(list(each)), begin_s + at / SLOTS_PER_S) for at, each in enumerate(windows)]
    return _least("Jain's index among equals in each window", 0.98, found)


def back(lender: Client, returned: Phase) -> Figure:
    """Seconds until a lender passed its guarantee in one second."""
    rates = averages(lender.passed, returned.begin_s, returned.end_s, 1)
    took_s = next(
        (1 + at / SLOTS_PER_S for at, rate in enumerate(rates) if rate >= 0.98 * lender.guarantee), math.inf
    )
    return Figure("seconds until a lender has its guarantee back", took_s, _BACK_S, at_most=True)


def overshoot(clients: Sequence[Client], phases: Sequence[Phase], capacity: float) -> Figure:
    """The highest part of the capacity that was used in a window, steps included."""
    passed = total(clients)
    begin_s, end_s = phases[0].begin_s, phases[-1].end_s
    rates = averages(passed, begin_s, end_s)
    value = max(rates) / capacity
    at_s = begin_s + rates.index(max(rates)) / SLOTS_PER_S
    promise = "highest part of the capacity in a window, steps included"
    return Figure(promise, value, 1.10, at_most=True, where=f"{at_s:.1f} s")


def settled(clients: Sequence[Client], phases: Sequence[Phase]) -> Figure:
    """The difference of a client's use from its mean, from ten windows after a step of the offer on."""
    found = []
    for phase in phases:
        begin_s = phase.begin_s + _SETTLED_S
        for client in clients:
            rates = averages(client.passed, begin_s, phase.end_s, _SHORT_S)
            for at, rate in enumerate(rates):
                if mean := sum(rates) / len(rates):
                    found.append((abs(rate / mean - 1), f"{client.user}, {begin_s + at / SLOTS_PER_S:.1f} s"))
    value, where = max(found, default=(math.nan, ""))
    return Figure(
        "most that a client strays ten windows after a step", value, 0.10, at_most=True, where=where
    )


def slower(
    alone_ms: Sequence[Sequence[float]],
    shared_ms: Sequence[Sequence[float]],
    arrivals_ms: Sequence[Sequence[float]],
) -> Figure:
    """The p99 of a client's latency among others, divided by its p99 alone; each is the median of several turns.

    Args:
        alone_ms: latencies of each turn alone.
        shared_ms: latencies of each turn among others, once each client has its share.
        arrivals_ms: latencies while the others begin; shown but not judged.
    """
    alone, shared, arrival = (
        statistics.median(p99(turn) for turn in turns) for turns in (alone_ms, shared_ms, arrivals_ms)
    )
    where = f"{shared:.1f} ms by {alone:.1f} ms; {arrival:.1f} ms in the two seconds in which others arrive"
    return Figure("p99 of tier 0, by its value alone", shared / alone, 1.3, at_most=True, where=where)


def p99(latencies: Iterable[float]) -> float:
    """The 99th percentile; NaN for fewer than a hundred values."""
    found = sorted(latencies)
    return found[math.ceil(0.99 * len(found)) - 1] if len(found) >= 100 else math.nan


def _wanting(phases: Sequence[Phase]) -> Iterator[tuple[int, int]]:
    """The times in which a client wants more, after divisions know the clients."""
    for more, group in itertools.groupby(phases, key=lambda phase: phase.more):
        joined = list(group)
        if more:
            yield joined[0].begin_s + _KNOWN_S, joined[-1].end_s


def _least(promise: str, bound: float, found: Sequence[tuple[float, object]]) -> Figure:
    value, where = min(found, default=(math.nan, ""), key=_value)
    place = f"{where:.1f} s" if isinstance(where, float) else str(where)
    return Figure(promise, value, bound, at_most=False, where=place)


def _value(found: tuple[float, object]) -> float:
    return found[0]
