"""The deferral model in closed form: units beyond a bucket's tokens wait.

With the bucket full at first, its debt below full before record i is W[i] = S[i] - min(S[k], k <= i), where
S[i] = (units before i) - R * t[i] (Lindley). W does not depend on the burst B, so one pass over a client's records
gives the result for every burst at one rate: of record i, max(0, W[i] + n[i] - B) units wait. The waiting share never
rises with the rate (each S falls, and B grows), so the quota for a wanted share is found by bisection.

Sums are in floating point. They equal the bucket's own arithmetic if all numbers are exact; otherwise about twelve
digits agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from pipeline.replay.kernels.compiled import LOOPS, Loops, plain
from pipeline.replay.kernels.ragged import Floats, Ints, Outcome, Ragged, candidates_of

PRECISION: Final = 1e-3
"""A required rate is above the least sufficient quota by at most this fraction."""


def debts(t_ms: Ints, units: Floats, rate_per_s: float) -> Floats:
    """How far a bucket of any size is below full right after each record of one client."""
    after = np.cumsum(units)
    return _debts(t_ms / 1000, after - units, units, rate_per_s)


def deferred(
    ragged: Ragged, candidates: Floats, *, burst_s: float = 11.0, loops: Loops | None = LOOPS
) -> Outcome:
    """Units that would have waited, for candidate limits.

    Args:
        ragged: units by client.
        candidates: limits in units per second, over (client, candidate) or one row for all.
        burst_s: the bucket's size, in seconds of quota.
        loops: None: numpy is used.

    Returns:
        `throttled_units` alone; a record is not throttled as a whole here.
    """
    rates = candidates_of(candidates, len(ragged))
    outcome = Outcome.zeros(*rates.shape)
    if loops is not None:
        records = (plain(values) for values in (ragged.offsets, ragged.t_ms, ragged.units, rates))
        loops.deferred(*records, float(burst_s), outcome.throttled_units)
        return outcome
    for i in range(len(ragged)):
        curve = _Curve(*ragged.of(i))
        for j, rate in enumerate(rates[i]):
            outcome.throttled_units[i, j] = curve.deferred(float(rate), burst_s)
    return outcome


def required_rates(ragged: Ragged, target: float, *, burst_s: float = 11.0) -> Floats:
    """As `required_rates_on`, for one target and one burst: one rate per client."""
    rates: Floats = required_rates_on(ragged, [target], [burst_s])[:, 0, 0]
    return rates


def required_rates_on(
    ragged: Ragged, targets: Sequence[float], bursts_s: Sequence[float], *, loops: Loops | None = LOOPS
) -> Floats:
    """The least quota of each client with which at most a share of its units would have waited.

    Args:
        ragged: units by client.
        targets: shares, 0 to 1. A rate that was tried for one of them narrows the search for all.
        bursts_s: sizes of buckets, in seconds of quota.
        loops: None: numpy is used.

    Returns:
        Over (client, burst, target): 0 without records. Otherwise a sufficient rate that exceeds the least one by at
        most the fraction `PRECISION`.

    Raises:
        ValueError: a target or burst is out of range.
    """
    shares, bursts = np.array(targets, np.float64), np.array(bursts_s, np.float64)
    if not np.all((shares >= 0) & (shares < 1)):
        raise ValueError(f"target is a share in [0, 1), not {shares.tolist()}")
    if not np.all((bursts > 0) & np.isfinite(bursts)):
        raise ValueError(f"burst_s is a finite number > 0, not {bursts.tolist()}")
    found = np.zeros((len(ragged), len(bursts), len(shares)))
    if loops is not None:
        records = (plain(values) for values in (ragged.offsets, ragged.t_ms, ragged.units))
        loops.required(*records, shares, bursts, PRECISION, found)
        return found
    for i in range(len(ragged)):
        curve = _Curve(*ragged.of(i))
        if curve.total > 0:
            for b, burst_s in enumerate(bursts.tolist()):
                found[i, b] = _required_rates(curve, shares, burst_s)
    return found


class _Curve:
    """One client's records, prepared for many rates."""

    def __init__(self, t_ms: Ints, units: Floats) -> None:
        self.t_s = t_ms / 1000
        self.units = units
        self.before = np.cumsum(units)
        self.total = float(self.before[-1]) if len(units) else 0.0
        self.before -= units
        self._scratch = np.empty_like(units)
        self._lowest = np.empty_like(units)

    def deferred(self, rate_per_s: float, burst_s: float) -> float:
        if not len(self.units):
            return 0.0
        level, lowest = self._scratch, self._lowest
        np.multiply(self.t_s, -rate_per_s, out=level)
        level += self.before
        np.minimum.accumulate(level, out=lowest)
        level -= lowest
        level += self.units
        level -= rate_per_s * burst_s
        np.maximum(level, 0.0, out=level)
        np.minimum(level, self.units, out=level)
        return float(level.sum())


def _debts(t_s: Floats, before: Floats, units: Floats, rate_per_s: float) -> Floats:
    level = before - rate_per_s * t_s
    return level - np.minimum.accumulate(level) + units


def _required_rates(curve: _Curve, targets: Floats, burst_s: float) -> Floats:
    allowed = targets * curve.total
    span_s = float(curve.t_s[-1] - curve.t_s[0])
    # Lower end: a full bucket and its refill over the whole time pass at most this. Upper end: the bucket holds all.
    low = (curve.total - allowed) / (burst_s + span_s)
    # The product with the burst must not round below the total.
    high = np.full(len(targets), curve.total / burst_s * (1 + 1e-9))
    fails = np.zeros(len(targets), bool)
    for j in range(len(targets)):
        while high[j] > low[j] * (1 + PRECISION):
            rate = float(np.sqrt(low[j] * high[j]) if fails[j] else low[j])
            enough = curve.deferred(rate, burst_s) <= allowed
            high[enough] = np.minimum(high[enough], rate)
            closer = ~enough & (rate >= low)
            low[closer] = rate
            fails |= closer
    return high
