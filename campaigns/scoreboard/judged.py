"""Compares rows of the scoreboard with kept results: which goals are met. Pure; the day is an argument."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum
from typing import Any, Final

from campaigns.peers.page import RESULT, beside
from campaigns.scoreboard.kept import Result
from campaigns.scoreboard.rows import Quantity, Row

FRESH: Final = timedelta(days=30)
"""Older figures are stale."""


class State(StrEnum):
    """The state of a goal on the scoreboard."""

    MET = "met"
    IN_PART = "in part"
    MISSED = "missed"
    STALE = "stale"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Judged:
    """A row with its figures.

    Attributes:
        row: the promise.
        state: whether it is kept.
        figures: each quantity with its value.
        misses: the quantities that are outside their bounds, and the campaigns that failed.
        reasons: the reasons of these quantities.
        explained: whether there are such quantities and each has a reason.
        beside: the same figures without Sluice, or with another proxy.
        n: number of trials.
        seconds: how long they took.
        day: the first day of its results.
        commits: the commits of its results.
    """

    row: Row
    state: State
    figures: tuple[str, ...] = ()
    misses: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    explained: bool = False
    beside: tuple[str, ...] = ()
    n: str = ""
    seconds: float | None = None
    day: date | None = None
    commits: tuple[str, ...] = ()


def judge_all(
    rows: Iterable[Row], results: Mapping[str, Result], *, today: date, released: date | None
) -> tuple[Judged, ...]:
    """All rows, in their order."""
    return tuple(judge(row, results, today=today, released=released) for row in rows)


def judge(row: Row, results: Mapping[str, Result], *, today: date, released: date | None) -> Judged:
    """Judge one row.

    Args:
        row: the promise.
        results: results by name; missing ones were not measured.
        today: figures more than 30 days older are stale.
        released: the day since which the last release was measured; older figures are stale. None if there was no
            release.
    """
    if not row.quantities or any(source not in results for source in row.sources):
        return Judged(row, State.NOT_MEASURED)
    found = [results[source] for source in row.sources]
    data = [each.data for each in found]
    values = [(quantity, _read(quantity, data)) for quantity in row.quantities]
    missed = [(quantity, value) for quantity, value in values if not quantity.holds(value)]
    reasons = tuple(quantity.reason for quantity, _ in missed if quantity.reason)
    misses = [quantity.shown(value) for quantity, value in missed]
    misses += [
        f"the campaign {source} is a finding"
        for source, each in zip(row.sources, found, strict=True)
        if not each.passed
    ]
    days = [each.day for each in found]
    first = None if None in days else min(day for day in days if day is not None)
    seconds = [each.seconds for each in found]
    return Judged(
        row,
        _state(row, first, failed=bool(misses), today=today, released=released),
        tuple(quantity.shown(value) for quantity, value in values),
        tuple(misses),
        reasons,
        len(reasons) == len(missed) > 0,
        tuple(quantity.shown(_read(quantity, data)) for quantity in row.beside)
        + (beside(results[RESULT].data, row.number) if RESULT in results else ()),
        "" if row.n is None else row.n.counted(_read(row.n, data)),
        None if None in seconds else sum(each for each in seconds if each is not None),
        first,
        tuple(dict.fromkeys(each.commit for each in found if each.commit)),
    )


def exit_code(judged: Iterable[Judged]) -> int:
    """1 when a goal is missed and the page does not give the reason of each figure."""
    return int(any(each.state is State.MISSED and not each.explained for each in judged))


def _read(quantity: Quantity, data: Sequence[Any]) -> float:
    """The quantity's value; NaN if the result is too old to contain it."""
    try:
        return quantity.read(*data)
    except (KeyError, IndexError, ZeroDivisionError):
        return math.nan


def _state(row: Row, day: date | None, *, failed: bool, today: date, released: date | None) -> State:
    if failed:
        return State.MISSED
    if day is None or today - day > FRESH or (released is not None and day < released):
        return State.STALE
    return State.IN_PART if row.without else State.MET
