"""Forecasts when a cluster is full: a line through the logarithms of daily peaks, with weekdays. Pure numpy.

The peak of a day is the most that all clients together used in ten seconds, the window of Kafka's rates (KIP-13). Its
logarithm is *a + b · day + weekday*, by ordinary least squares, so growth, weekends and noise are factors. The
interval is the usual prediction interval (Hyndman, Athanasopoulos: *Forecasting: Principles and Practice*, section
7.5). It widens with the distance from the days to which the line was fitted. Hours of the week show when on a day its
peak comes.

`walk_forward` measures how wrong the method was on these days: it forecasts each of them from earlier days only. It
cannot know whether growth continues, and how much more clients wanted than throttling allowed.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST_DAYS: Final = 7
"""With fewer days there is no forecast."""
DAYS_FOR_WEEKDAYS: Final = 21
"""With at least this many days each weekday has a value of its own: three days of each."""
INTERVAL: Final = 0.9
"""The share of days that should be within the interval."""

_WEEK: Final = 7
_MOST: Final = 600.0
"""A logarithm above that of any peak, so that all numbers stay finite."""
_HOURS: Final = 24


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected peak of a day, per second, and the interval around it."""

    date: str
    peak: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of forecasts that were made a number of days ahead.

    Attributes:
        ahead_days: from the last known day to the forecast day.
        days: the number of forecasts; 0: there are too few days, and the other values are NaN.
        mape: the mean of |forecast - seen| / seen.
        held: the share of days whose peak was within the interval.
    """

    ahead_days: int
    days: int
    mape: float
    held: float


class Line:
    """The line through the logarithms of the peaks of some days.

    Attributes:
        by_weekday: whether weekdays have values of their own.
        growth_per_week: growth of the peaks, as a fraction.
    """

    def __init__(self, days: Sequence[int], peaks: Sequence[float]) -> None:
        """Fits the line.

        Args:
            days: numbers of days (`datetime.date.toordinal`), rising; gaps are allowed.
            peaks: the peak of each day, per second, > 0.

        Raises:
            ValueError: there are fewer than `LEAST_DAYS`.
        """
        if len(days) < LEAST_DAYS:
            raise ValueError(f"{len(days)} days are fewer than {LEAST_DAYS}")
        self._origin = days[0]
        counts = np.bincount([day % _WEEK for day in days], minlength=_WEEK)
        self.by_weekday = len(days) >= DAYS_FOR_WEEKDAYS and bool(np.all(counts >= 2))
        rows = self._rows(days)
        values: Floats = np.log(np.array(peaks, np.float64))
        self._found = np.linalg.lstsq(rows, values, rcond=None)[0]
        self._inverse = np.linalg.pinv(rows.T @ rows)
        free = len(days) - rows.shape[1]
        self._error = math.sqrt(float(np.sum((values - rows @ self._found) ** 2)) / free)
        self._width = quantile_of_t((1 + INTERVAL) / 2, free)
        self.growth_per_week = float(np.exp(min(_MOST, _WEEK * self._found[0]))) - 1

    def expected(self, days: Sequence[int]) -> list[Expected]:
        """The expected peaks of some days."""
        rows = self._rows(days)
        peaks = rows @ self._found
        wide = np.sqrt(1 + np.einsum("ij,jk,ik->i", rows, self._inverse, rows)) * self._error * self._width
        return [
            Expected(datetime.date.fromordinal(day).isoformat(), *np.exp(np.minimum(_MOST, ends)).tolist())
            for day, ends in zip(days, np.stack((peaks, peaks - wide, peaks + wide), axis=1), strict=True)
        ]

    def _rows(self, days: Sequence[int]) -> Floats:
        numbers = np.array(days)
        columns = [numbers - self._origin]
        if self.by_weekday:
            columns += [numbers % _WEEK == weekday for weekday in range(_WEEK)]
        else:
            columns.append(np.ones(len(days), bool))
        return np.stack([column.astype(np.float64) for column in columns], axis=1)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected peaks of one kind of use.

    Attributes:
        seen: the peak of each known day, per second.
        expected: expected peaks of the days after the last one.
        fitted: peaks on the line for the known days.
        growth_per_week: growth of the peak, as a fraction.
        by_weekday: whether weekdays have values of their own.
        full: the first day whose expected peak reaches the capacity; "": no day of `expected` does.
        earliest, latest: the same for the upper and the lower end of the interval.
        errors: of the same method on the known days.
    """

    seen: Mapping[str, float]
    expected: tuple[Expected, ...]
    fitted: tuple[Expected, ...]
    growth_per_week: float
    by_weekday: bool
    full: str
    earliest: str
    latest: str
    errors: tuple[Errors, ...]


def forecast(seen: Mapping[str, float], capacity: float, horizon: int) -> Forecast | None:
    """Forecasts when a capacity is full.

    Args:
        seen: peaks of days, per second; in any order.
        capacity: in the same unit.
        horizon: the number of days after the last one.

    Returns:
        The forecast; None with fewer than `LEAST_DAYS`.
    """
    # A day without any use says nothing about other days.
    used = {date: seen[date] for date in sorted(seen) if seen[date] > 0}
    by_day = {datetime.date.fromisoformat(date).toordinal(): peak for date, peak in used.items()}
    if len(by_day) < LEAST_DAYS:
        return None
    days = list(by_day)
    line = Line(days, list(by_day.values()))
    expected = line.expected(range(days[-1] + 1, days[-1] + 1 + horizon))

    def first(end: str) -> str:
        return next((each.date for each in expected if getattr(each, end) >= capacity), "")

    return Forecast(
        seen=used,
        expected=tuple(expected),
        fitted=tuple(line.expected(days)),
        growth_per_week=line.growth_per_week,
        by_weekday=line.by_weekday,
        full=first("peak"),
        earliest=first("high"),
        latest=first("low"),
        errors=tuple(walk_forward(by_day, ahead) for ahead in _aheads(horizon)),
    )


def _aheads(horizon: int) -> list[int]:
    return sorted({min(ahead, horizon) for ahead in (1, _WEEK, 4 * _WEEK)})


def walk_forward(by_day: Mapping[int, float], ahead: int) -> Errors:
    """Forecasts each day from the days that were known `ahead` days before.

    Args:
        by_day: peaks by the number of the day, rising; > 0.
        ahead: 1: from all days up to the day before.
    """
    days = list(by_day)
    wrong, held = [], []
    for day in days:
        known = [each for each in days if each <= day - ahead]
        seen = by_day[day]
        if len(known) < LEAST_DAYS:
            continue
        (found,) = Line(known, [by_day[each] for each in known]).expected([day])
        wrong.append(abs(found.peak - seen) / seen)
        held.append(found.low <= seen <= found.high)
    if not wrong:
        return Errors(ahead, 0, math.nan, math.nan)
    return Errors(ahead, len(wrong), float(np.mean(wrong)), float(np.mean(held)))


def quantile_of_t(share: float, free: int) -> float:
    """A quantile of Student's t (Abramowitz and Stegun, 26.7.5); within 0.001 from five degrees of freedom on.

    Args:
        share: between 0 and 1.
        free: degrees of freedom, > 0.
    """
    z = float(NormalDist().inv_cdf(share))
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return math.fsum(term / free**power for power, term in enumerate(terms))


def hours_of_week(hours: Mapping[str, Any]) -> Floats:
    """How close each hour of the week comes to the peak of its day, from 0 to 1; NaN if no day is known.

    Args:
        hours: by date, the peaks of its 24 hours.

    Returns:
        Over (weekday, hour); Monday is 0. The mean over the weeks.
    """
    found = np.full((_WEEK, _HOURS), np.nan)
    for weekday in range(_WEEK):
        days = [own for date, own in hours.items() if datetime.date.fromisoformat(date).weekday() == weekday]
        if days:
            found[weekday] = np.mean(np.array(days, np.float64), axis=0)
    busiest = np.nanmax(found) if hours else 0.0
    return found / busiest if busiest > 0 else found
