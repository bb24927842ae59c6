"""How quotas would be chosen from earlier days, and how they would have done on the next. Pure numpy.

A rule sees `DAY_NUMBERS` of each client on up to seven days and gives a quota. It is judged on the day after by two
numbers that pull against each other: the share of units that wait (the mean over clients, and how many clients are
above twice the target), and how much is allocated beside the *oracle*, which knows the rate that the day itself
required. Since a rule can always buy one with the other, each is also shown at equal harm: its quotas times the one
factor, found in hindsight on the test days, with which the mean share is the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.replay.kernels.ragged import Floats

DAY_NUMBERS: Final = (
    "required_rate",  # least quota that meets the target (`pipeline.replay.kernels.deferral.required_rates`)
    "units",
    "mean",  # per second of the day
    "p95_active",  # percentiles of the seconds in which there was something
    "p99_active",
    "peak_1s",
    "peak_10s",
    "peak_60s",
    "p90_minute",  # percentiles of the rate of each minute of the day, idle ones as well
    "p99_minute",
)
"""What a rule may know of a client's day."""

HISTORY_DAYS: Final = 7
_FACTORS: Final = (0.02, 0.1, 0.3, 0.7, 1.2, 2.0, 5.0, 20.0)  # tried first for equal harm
_STEPS: Final = 6
_DECAY_DAYS: Final = 1.0  # half-life, as Kubernetes' vertical pod autoscaler has it

Bools = NDArray[np.bool_]
Known = Mapping[str, Floats]
"""`DAY_NUMBERS` by name, each over (client, day), the latest day last; NaN where the client was not seen."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A way to choose quotas."""

    name: str
    quota: Callable[[Known], Floats]
    margin: float = 1.15


@dataclass(frozen=True, slots=True)
class Judged:
    """How a rule did, over all test days and clients.

    Attributes:
        mean_throttled: of the shares of units that waited.
        above: share of client-days with more than twice the target.
        of_units: share of all units.
        geometric, by_sum: allocated over what the oracle allocates: geometric mean of the clients' ratios, and the
            ratio of the sums.
        factor: what the rule's quotas were multiplied with.
    """

    name: str
    mean_throttled: float
    above: float
    of_units: float
    geometric: float
    by_sum: float
    factor: float


def _largest(name: str) -> Callable[[Known], Floats]:
    return lambda known: np.nanmax(known[name], axis=1)


def _average(name: str) -> Callable[[Known], Floats]:
    return lambda known: np.nanmean(known[name], axis=1)


def _yesterday(known: Known) -> Floats:
    latest: Floats = known["required_rate"][:, -1]
    return latest


def _decayed(name: str, quantile: float) -> Callable[[Known], Floats]:
    """A percentile of the days' numbers in which a day counts half as much as the next one."""

    def quota(known: Known) -> Floats:
        values = known[name]
        ages = np.arange(values.shape[1])[::-1]
        weights = np.where(np.isnan(values), 0.0, 0.5 ** (ages / _DECAY_DAYS))
        order = np.argsort(values, axis=1)  # NaN last
        ordered = np.take_along_axis(values, order, axis=1)
        reached = np.cumsum(np.take_along_axis(weights, order, axis=1), axis=1)
        first = np.argmax(reached >= quantile * reached[:, -1:], axis=1)
        chosen: Floats = ordered[np.arange(len(values)), first]
        return chosen

    return quota


OURS: Final = "decayed p90 of daily required rates"
RULES: Final = (
    Rule(OURS, _decayed("required_rate", 0.9), 1.25),
    Rule("largest daily required rate", _largest("required_rate")),
    Rule("yesterday's required rate", _yesterday),
    Rule("p95 of active seconds", _average("p95_active")),
    Rule("p99 of active seconds", _average("p99_active")),
    Rule("1 s peak", _largest("peak_1s"), 1.0),
    Rule("10 s peak", _largest("peak_10s"), 1.0),
    Rule("1 min peak", _largest("peak_60s")),
    Rule("p90 of minutes, decayed", _decayed("p90_minute", 0.9)),
    Rule("p99 of minutes, decayed", _decayed("p99_minute", 0.9)),
    Rule("daily mean", _average("mean")),
)
"""What `recommend` does by default first; then its kin; then what is commonly done."""


Evaluate = Callable[[Floats], Floats]
"""Quotas over (client, test day, candidate) to shares of units that would have waited; NaN stays NaN."""


def backtest(
    known: Known, tested: int, target: float, evaluate: Evaluate
) -> tuple[list[Judged], list[Judged]]:
    """All rules on the test days, and all of them again at equal harm.

    Args:
        known: of all days; at least one before the first test day.
        tested: how many of the last days are test days.
        target: the share of units that may wait.
        evaluate: the replay.

    Returns:
        The oracle first, then `RULES`; and `RULES` with the factor at which the mean share is the target, without
        those that never get there.
    """
    judge = _Judge(known, tested, target)
    chosen = np.stack([judge.oracle, *(judge.quotas(rule) for rule in RULES)], axis=2)
    margins = np.array([1.0, *(rule.margin for rule in RULES)])
    shares = evaluate(chosen * margins)
    names = ["oracle", *(rule.name for rule in RULES)]
    plain = [
        judge.judged(name, chosen[:, :, i], float(margins[i]), shares[:, :, i])
        for i, name in enumerate(names)
    ]
    bare = chosen[:, :, 1:]
    factors = _equal_harm(bare, target, evaluate)
    shares = evaluate(bare * np.where(np.isfinite(factors), factors, 1.0))
    equal = [
        judge.judged(rule.name, bare[:, :, i], float(factors[i]), shares[:, :, i])
        for i, rule in enumerate(RULES)
        if np.isfinite(factors[i])
    ]
    return plain, equal


class _Judge:
    """The test days of all clients that were seen on them and before."""

    def __init__(self, known: Known, tested: int, target: float) -> None:
        self._known = known
        self._target = target
        days = known["required_rate"].shape[1]
        self._days = range(days - tested, days)
        self.oracle = self._by_day(lambda before, day, chosen: known["required_rate"][chosen, day])
        self._units = known["units"][:, days - tested :]

    def quotas(self, rule: Rule) -> Floats:
        """A rule's quotas without its margin, over (client, test day)."""

        def quota(before: Known, _day: int, _chosen: Bools) -> Floats:
            quotas = rule.quota(before)
            # Not there yesterday: the mean of what is known stands in.
            return np.where(np.isfinite(quotas), quotas, np.nanmean(before["required_rate"], axis=1))

        return self._by_day(quota)

    def judged(self, name: str, quotas: Floats, factor: float, shares: Floats) -> Judged:
        """The verdict on quotas that were multiplied with a factor."""
        seen = np.isfinite(shares)
        waited, units = shares[seen], self._units[seen]
        given, oracle = quotas[seen] * factor, self.oracle[seen]
        return Judged(
            name=name,
            mean_throttled=float(waited.mean()),
            above=float((waited > 2 * self._target).mean()),
            of_units=float((waited * units).sum() / units.sum()),
            geometric=float(np.exp(np.log(np.maximum(given, 1e-9) / oracle).mean())),
            by_sum=float(given.sum() / oracle.sum()),
            factor=factor,
        )

    def _by_day(self, quota: Callable[[Known, int, Bools], Floats]) -> Floats:
        required = self._known["required_rate"]
        columns = np.full((len(required), len(self._days)), np.nan)
        for i, day in enumerate(self._days):
            first = max(0, day - HISTORY_DAYS)
            chosen = np.isfinite(required[:, day]) & np.isfinite(required[:, first:day]).any(axis=1)
            before = {name: values[chosen, first:day] for name, values in self._known.items()}
            whole = np.full(len(required), np.nan)
            whole[chosen] = quota(before, day, chosen)
            columns[:, i] = whole
        return columns


def _equal_harm(quotas: Floats, target: float, evaluate: Evaluate) -> Floats:
    """By rule the factor with which the mean share is the target; NaN where none does."""
    rules = quotas.shape[2]
    tried = np.array(_FACTORS)
    harms = np.nanmean(evaluate((quotas[:, :, :, None] * tried).reshape(*quotas.shape[:2], -1)), axis=(0, 1))
    harms = harms.reshape(rules, len(tried))
    factors = np.full(rules, np.nan)
    possible = np.flatnonzero((harms[:, -1] <= target) & (harms[:, 0] > target))
    right = np.argmax(harms <= target, axis=1)
    low, high = np.log(tried[right - 1]), np.log(tried[right])
    at_low, at_high = harms[np.arange(rules), right - 1], harms[np.arange(rules), right]
    for _ in range(_STEPS):
        # Harm falls about exponentially; a guess too near to an end would not move the other.
        over, under = np.log(at_low / target), np.log(np.maximum(at_high, 1e-9) / target)
        middle = low + (high - low) * np.clip(over / np.maximum(over - under, 1e-12), 0.1, 0.9)
        harm = np.nanmean(evaluate(quotas * np.exp(middle)), axis=(0, 1))
        above = harm > target
        low, at_low = np.where(above, middle, low), np.where(above, harm, at_low)
        high, at_high = np.where(above, high, middle), np.where(above, at_high, harm)
        factors[possible] = np.exp(high)[possible]
    return factors
