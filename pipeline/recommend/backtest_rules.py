"""The rules that a backtest compares, and how they are judged on the following days. Pure numpy.

A rule gets `DAY_NUMBERS` of each client on up to seven days and returns a quota. The first rule is the product's own:
the function that makes plans (`pipeline.recommend.recommendation.entry_of`), which also gets the quota that it set
before.

Quotas stay unchanged for a *horizon*: one day if `recommend` runs each night, seven if it runs each week. Two
conflicting numbers judge them on these days: the share of units that wait (the mean over clients, and how many
clients are above twice the target), and the allocated quotas relative to the *oracle*, which knows the rate that the
day itself required. A rule can always improve one at the cost of the other. So each rule is also shown at equal harm:
its quotas are multiplied by the one factor at which the mean share equals the target, found in hindsight on the test
days.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.recommend.recommendation import HISTORY_DAYS
from pipeline.replay.kernels.ragged import Floats

DAY_NUMBERS: Final = (
    "required_rate",  # least quota that meets the target (`pipeline.replay.kernels.deferral.required_rates`)
    "units",
    "mean",  # of all seconds of the day
    "p95_active",  # percentiles of the seconds with use
    "p99_active",
    "peak_1s",
    "peak_10s",
    "peak_60s",
    "p90_minute",  # percentiles of the rate of each minute of the day, including idle ones
    "p99_minute",
)
"""The numbers of a client's day that a rule may use."""

RECORDED: Final = ("active_s", "censored_s", "throttle_ms", "beside_ms", "quota", "observed")
"""Further numbers that the product's own rule uses: columns of `pipeline.recommend.required_rates.REQUIRED`."""

_FACTORS: Final = (0.02, 0.1, 0.3, 0.7, 1.2, 2.0, 5.0, 20.0)  # tried first for equal harm
_STEPS: Final = 6
_DECAY_DAYS: Final = 1.0  # half-life, as in Kubernetes' vertical pod autoscaler

Known = Mapping[str, Floats]
"""Numbers by name, each over (client, day), the latest day last; NaN if the client was not seen."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A way to choose quotas. A rule without a function is the product's own."""

    name: str
    quota: Callable[[Known], Floats] | None
    margin: float = 1.15


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of a rule over all test days and clients.

    Attributes:
        mean_throttled: mean of the shares of units that waited.
        above: share of client-days with more than twice the target.
        of_units: share of all units that waited.
        geometric, by_sum: allocated quotas relative to the oracle's: geometric mean of the clients' ratios, and the
            ratio of the sums.
        factor: factor on the rule's quotas. The product's own rule includes its margin.
    """

    name: str
    mean_throttled: float
    above: float
    of_units: float
    geometric: float
    by_sum: float
    factor: float
    horizon: int = 1
    """For how many days quotas stay unchanged."""


def _largest(name: str) -> Callable[[Known], Floats]:
    return lambda known: np.nanmax(known[name], axis=1)


def _average(name: str) -> Callable[[Known], Floats]:
    return lambda known: np.nanmean(known[name], axis=1)


def _yesterday(known: Known) -> Floats:
    latest: Floats = known["required_rate"][:, -1]
    return latest


def _decayed(name: str, quantile: float) -> Callable[[Known], Floats]:
    """A percentile of the days' numbers; each day counts half as much as the next one."""

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


OURS: Final = "recommend"
RULES: Final = (
    Rule(OURS, None, 1.0),
    Rule("decayed p90 of daily required rates", _decayed("required_rate", 0.9), 1.25),
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
"""The product's own rule first, then similar rules, then common ones."""


Evaluate = Callable[[Floats], Floats]
"""Maps quotas over (client, test day, candidate) to shares of units that would have waited; NaN stays NaN."""

Ships = Callable[[int, int, Floats], Floats]
"""The product's own rule. Maps the first day, the end (exclusive) and its previous quotas (NaN: none) to quotas of
all clients."""


def backtest(
    known: Known,
    tested: int,
    target: float,
    evaluate: Evaluate,
    ships: Ships,
    *,
    horizons: Sequence[int] = (1,),
) -> tuple[list[Judged], list[Judged]]:
    """Judges all rules on the test days, and again at equal harm.

    Args:
        known: numbers of all days; at least one day before the first test day.
        tested: the number of test days, which are the last ones.
        target: the share of units that may wait.
        evaluate: the replay.
        ships: see `Ships`.
        horizons: for how many days quotas stay unchanged; all rules are judged for each.

    Returns:
        The oracle, followed by `RULES` for each horizon; and the same rules at equal harm, without those that never
        reach the target.
    """
    chosen = choose(known, tested, ships, horizons)
    units = known["units"][:, -tested:]
    return judge(chosen, units, target, evaluate, horizons=horizons)


def choose(known: Known, tested: int, ships: Ships, horizons: Sequence[int]) -> Floats:
    """Quotas of the oracle and of `RULES` for each horizon, without margins. Clients are independent of each other.

    Args:
        known, tested, ships, horizons: see `backtest`.

    Returns:
        Over (client, test day, rule); NaN if a client is not judged.
    """
    choice = _Choice(known, tested, ships)
    found = (choice.quotas(rule, horizon) for rule, horizon in _of_horizons(horizons))
    return np.stack([choice.oracle, *found], axis=2)


def judge(
    chosen: Floats, units: Floats, target: float, evaluate: Evaluate, *, horizons: Sequence[int]
) -> tuple[list[Judged], list[Judged]]:
    """Judges quotas; see `backtest`.

    Args:
        chosen: the result of `choose`, for all clients.
        units: the units that they used, over (client, test day).
        target, evaluate, horizons: see `backtest`.
    """
    rules = _of_horizons(horizons)
    of_judged = _Judge(chosen[:, :, 0], units, target)
    margins = np.array([1.0, *(rule.margin for rule, _ in rules)])
    shares = evaluate(chosen * margins)
    names = [("oracle", 1), *((rule.name, horizon) for rule, horizon in rules)]
    plain = [
        of_judged.judged(name, horizon, chosen[:, :, i], float(margins[i]), shares[:, :, i])
        for i, (name, horizon) in enumerate(names)
    ]
    bare = chosen[:, :, 1:]
    factors = _equal_harm(bare, target, evaluate)
    shares = evaluate(bare * np.where(np.isfinite(factors), factors, 1.0))
    equal = [
        of_judged.judged(rule.name, horizon, bare[:, :, i], float(factors[i]), shares[:, :, i])
        for i, (rule, horizon) in enumerate(rules)
        if np.isfinite(factors[i])
    ]
    return plain, equal


def _of_horizons(horizons: Sequence[int]) -> list[tuple[Rule, int]]:
    return [(rule, horizon) for horizon in horizons for rule in RULES]


class _Choice:
    """Chooses quotas of clients for the test days on which they were seen, if they were seen before too."""

    def __init__(self, known: Known, tested: int, ships: Ships) -> None:
        self._known = known
        self._ships = ships
        required = known["required_rate"]
        days = required.shape[1]
        self._days = range(days - tested, days)
        self.oracle = self._where_judged(required[:, days - tested :])

    def quotas(self, rule: Rule, horizon: int) -> Floats:
        """A rule's quotas without its margin, over (client, test day)."""
        required = self._known["required_rate"]
        columns = np.full((len(required), len(self._days)), np.nan)
        held = np.full(len(required), np.nan)
        for i, day in enumerate(self._days):
            if i % horizon == 0:
                first = max(0, day - HISTORY_DAYS)
                seen = np.isfinite(required[:, first:day]).any(axis=1)
                if rule.quota is None:
                    chosen = self._ships(first, day, held)
                    held = np.where(seen & np.isfinite(chosen), chosen, held)
                else:
                    before = {name: self._known[name][seen, first:day] for name in DAY_NUMBERS}
                    quotas = rule.quota(before)
                    # A client that was not seen yesterday: uses the mean of its known days.
                    mean = np.nanmean(before["required_rate"], axis=1)
                    held[seen] = np.where(np.isfinite(quotas), quotas, mean)
            columns[:, i] = held
        return self._where_judged(columns)

    def _where_judged(self, quotas: Floats) -> Floats:
        """Quotas of clients that were seen on the day and in the days before it; NaN for others."""
        required = self._known["required_rate"]
        there = [
            np.isfinite(required[:, day])
            & np.isfinite(required[:, max(0, day - HISTORY_DAYS) : day]).any(axis=1)
            for day in self._days
        ]
        found: Floats = np.where(np.stack(there, axis=1), quotas, np.nan)
        return found


class _Judge:
    """Judges quotas by the oracle's quotas and the clients' units, over (client, test day)."""

    def __init__(self, oracle: Floats, units: Floats, target: float) -> None:
        self._oracle = oracle
        self._units = units
        self._target = target

    def judged(self, name: str, horizon: int, quotas: Floats, factor: float, shares: Floats) -> Judged:
        """The result for quotas that are multiplied by a factor."""
        seen = np.isfinite(shares)
        waited, units = shares[seen], self._units[seen]
        given, oracle = quotas[seen] * factor, self._oracle[seen]
        return Judged(
            name=name,
            mean_throttled=float(waited.mean()),
            above=float((waited > 2 * self._target).mean()),
            of_units=float((waited * units).sum() / units.sum()),
            geometric=float(np.exp(np.log(np.maximum(given, 1e-9) / oracle).mean())),
            by_sum=float(given.sum() / oracle.sum()),
            factor=factor,
            horizon=horizon,
        )


def _equal_harm(quotas: Floats, target: float, evaluate: Evaluate) -> Floats:
    """For each rule the factor at which the mean share is the target; NaN if there is none."""
    rules = quotas.shape[2]
    tried = np.array(_FACTORS)
    # Rule by rule, because all factors of all rules at once would take most of the memory.
    harms = np.stack(
        [np.nanmean(evaluate(quotas[:, :, rule, None] * tried), axis=(0, 1)) for rule in range(rules)]
    )
    factors = np.full(rules, np.nan)
    possible = np.flatnonzero((harms[:, -1] <= target) & (harms[:, 0] > target))
    right = np.argmax(harms <= target, axis=1)
    low, high = np.log(tried[right - 1]), np.log(tried[right])
    at_low, at_high = harms[np.arange(rules), right - 1], harms[np.arange(rules), right]
    for _ in range(_STEPS):
        # Harm falls about exponentially. A guess very close to one end would not move the other end.
        over, under = np.log(at_low / target), np.log(np.maximum(at_high, 1e-9) / target)
        middle = low + (high - low) * np.clip(over / np.maximum(over - under, 1e-12), 0.1, 0.9)
        harm = np.nanmean(evaluate(quotas * np.exp(middle)), axis=(0, 1))
        above = harm > target
        low, at_low = np.where(above, middle, low), np.where(above, harm, at_low)
        high, at_high = np.where(above, high, middle), np.where(above, at_high, harm)
        factors[possible] = np.exp(high)[possible]
    return factors
