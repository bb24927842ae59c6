"""The spread Rate of KIP-599's draft for many clients and quotas (`quotas.rate.SpreadRate`, bit by bit)."""

from __future__ import annotations

import math

import numpy as np

from pipeline.replay.kernels.meters import rate_throttles_ms
from pipeline.replay.kernels.ragged import Floats, Ints


class SpreadRates:
    """Windows on a grid that begins with the meter. A value fills the windows before it, each up to the limit."""

    def __init__(self, rates_per_s: Floats, now_ms: Ints, *, window_num: int, window_ms: int) -> None:
        """Empty meters; the arguments are those of one, as arrays."""
        self._limits = rates_per_s
        self._per_window = rates_per_s * window_ms / 1000
        self._window_num, self._window_ms = window_num, window_ms
        self._values = np.zeros((len(rates_per_s), window_num))  # oldest first, the current one last
        self._start_ms = now_ms.copy()

    def record(self, units: Floats, at: Ints, now_ms: Ints) -> None:
        """See `Meters`; units >= 0."""
        self._advance(at, now_ms)
        values, left = self._values[at], units.copy()
        for i in range(self._window_num - 1):
            poured = np.minimum(left, np.maximum(0.0, self._per_window[at] - values[:, i]))
            values[:, i] += poured
            left -= poured
        values[:, -1] += left
        self._values[at] = values

    def throttles_ms(self, at: Ints, now_ms: Ints) -> Floats:
        """See `Meters`."""
        self._advance(at, now_ms)
        window_ms = self._window_num * self._window_ms
        values, limits = self._values[at], self._limits[at]
        rates = exact_sums(values) / (window_ms / 1000)
        return rate_throttles_ms(rates, limits, np.full(len(at), window_ms))

    def record_and_check(self, units: Floats, at: Ints, now_ms: Ints) -> Floats:
        """See `Meters`."""
        self.record(units, at, now_ms)
        return self.throttles_ms(at, now_ms)

    def _advance(self, at: Ints, now_ms: Ints) -> None:
        passed = (now_ms - self._start_ms[at]) // self._window_ms
        moved = np.flatnonzero(passed > 0)
        if not len(moved):
            return
        at, passed = at[moved], passed[moved]
        self._start_ms[at] += passed * self._window_ms
        source = np.arange(self._window_num) + passed[:, None]
        within = source < self._window_num
        shifted = np.take_along_axis(self._values[at], np.where(within, source, 0), axis=1)
        self._values[at] = np.where(within, shifted, 0.0)


def exact_sums(values: Floats) -> Floats:
    """The correctly rounded sum of each row, as `math.fsum` has it.

    Two floats hold each sum with about 106 bits; where even those leave the last bit open, `math.fsum` is asked.
    """
    high, low = np.zeros(len(values)), np.zeros(len(values))
    for column in values.T:
        total = high + column
        back = total - high
        low += (high - (total - back)) + (column - back)
        high = total
    sums = high + low
    # `low` is itself a rounded sum: off by at most this, far more than it really is.
    doubt = np.abs(values).sum(axis=1) * 2.0**-98
    unsure = (high + (low - doubt) != sums) | (high + (low + doubt) != sums)
    for i in np.flatnonzero(unsure):
        sums[i] = math.fsum(values[i])
    result: Floats = sums
    return result
