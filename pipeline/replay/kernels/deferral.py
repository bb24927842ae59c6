"""The deferral model: a bucket that takes everything and makes what exceeds its tokens wait, in closed form.

With the bucket full at first, its debt below full before record i is W[i] = S[i] - min(S[k], k <= i), where
S[i] = (units before i) - R * t[i] (Lindley). W does not depend on the burst B, so one pass over a client's records
answers every burst for one rate: of record i, max(0, W[i] + n[i] - B) units wait. The share that waits never rises
with the rate (each S falls more slowly, and B grows), so the quota for a wanted share is found by halving.

Sums are in floating point: equal to the bucket's own arithmetic wherever all numbers are exact, else to about twelve
digits.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from pipeline.replay.kernels.ragged import Floats, Ints, Outcome, Ragged, candidates_of

PRECISION: Final = 1e-3
"""How far above the least quota that suffices a required rate may be, relatively."""


def debts(t_ms: Ints, units: Floats, rate_per_s: float) -> Floats:
    """How much below full a bucket of any size is right after each record of one client."""
    after = np.cumsum(units)
    return _debts(t_ms / 1000, after - units, units, rate_per_s)


def deferred(ragged: Ragged, candidates: Floats, *, burst_s: float = 11.0) -> Outcome:
    """Units that would have waited, for candidate limits.

    Args:
        ragged: units by client.
        candidates: limits in units per second, over (client, candidate) or one row for all.
        burst_s: what can be saved up, in seconds of quota.

    Returns:
        `throttled_units` alone; a record is not throttled as a whole here.
    """
    rates = candidates_of(candidates, len(ragged))
    outcome = Outcome.zeros(*rates.shape)
    for i in range(len(ragged)):
        t_ms, units = ragged.of(i)
        curve = _Curve(t_ms, units)
        for j, rate in enumerate(rates[i]):
            outcome.throttled_units[i, j] = curve.deferred(float(rate), burst_s)
    return outcome


def required_rates(ragged: Ragged, target: float, *, burst_s: float = 11.0) -> Floats:
    """The least quota of each client with which at most a share of its units would have waited.

    Args:
        ragged: units by client.
        target: the share, 0 to 1.
        burst_s: what can be saved up, in seconds of quota.

    Returns:
        Per client: 0 without records; else enough, and at most `PRECISION` more than that.

    Raises:
        ValueError: target or burst is out of range.
    """
    if not 0 <= target < 1:
        raise ValueError(f"target is a share in [0, 1), not {target}")
    if not 0 < burst_s < np.inf:
        raise ValueError(f"burst_s is a finite number > 0, not {burst_s}")
    return np.array([_required_rate(_Curve(*ragged.of(i)), target, burst_s) for i in range(len(ragged))])


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


def _required_rate(curve: _Curve, target: float, burst_s: float) -> float:
    if curve.total <= 0:
        return 0.0
    allowed = target * curve.total
    span_s = float(curve.t_s[-1] - curve.t_s[0])
    # A full bucket and its refill over the whole time pass at most this much; a bucket of everything passes all.
    low = (curve.total - allowed) / (burst_s + span_s)
    high = curve.total / burst_s * (1 + 1e-9)  # the product with the burst may not round below the total
    if curve.deferred(low, burst_s) <= allowed:
        return low
    while high > low * (1 + PRECISION):
        middle = float(np.sqrt(low * high))
        if curve.deferred(middle, burst_s) <= allowed:
            high = middle
        else:
            low = middle
    return high
