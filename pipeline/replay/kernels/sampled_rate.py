"""KIP-13's sampled Rate for many clients and quotas (`quotas.rate.SampledRate`, bit by bit).

Sums are updated and corrected in the same order as in the class, because its running total carries rounding errors.
Unused slots of a ring have times in an infinite future, so they are never the oldest and never expire.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.replay.kernels.meters import rate_throttles_ms
from pipeline.replay.kernels.ragged import Floats, Ints

_NEVER_MS: Final = np.int64(2**62)


class SampledRates:
    """Rates over rings of ``window_num`` + 1 samples, each with a limit."""

    def __init__(self, rates_per_s: Floats, now_ms: Ints, *, window_num: int, window_ms: int) -> None:
        """Empty meters; the arguments are those of one, as arrays."""
        meters = len(rates_per_s)
        self._limits = rates_per_s
        self._allowances = rates_per_s * ((window_num - 1) * window_ms / 1000)
        self._window_num, self._window_ms = window_num, window_ms
        self._expiry_ms = window_num * window_ms
        slots = (meters, window_num + 1)
        self._starts_ms, self._lasts_ms = np.full(slots, _NEVER_MS), np.full(slots, _NEVER_MS)
        self._starts_ms[:, 0] = self._lasts_ms[:, 0] = now_ms
        self._values = np.zeros(slots)
        self._slot = np.zeros(meters, np.int64)
        self._last_ms, self._looked_ms = now_ms.copy(), now_ms.copy()
        self._next_ms = now_ms + window_ms
        self._total, self._past = np.zeros(meters), np.zeros(meters)

    def record_raw(self, units: Floats, at: Ints, now_ms: Ints) -> None:
        """`SampledRate.record`: adds units without resetting samples."""
        self._advance(at, now_ms)
        self._total[at] += units
        self._last_ms[at] = now_ms

    def record_and_check(self, units: Floats, at: Ints, now_ms: Ints) -> Floats:
        """See `Meters`: as `RateTracker.record`, before its cap."""
        self._advance(at, now_ms)
        total = self._total[at] + units
        self._total[at] = total
        self._last_ms[at] = self._looked_ms[at] = now_ms
        waits_ms = np.zeros(len(at))
        over = np.flatnonzero(total > self._allowances[at])
        if len(over):
            waits_ms[over] = self.throttles_ms(at[over], now_ms[over])
        return waits_ms

    def record(self, units: Floats, at: Ints, now_ms: Ints) -> None:
        """See `Meters`. As the mutation quota's meter, which never returns more than was recorded."""
        self.record_raw(np.maximum(units, -self.totals(at, now_ms)), at, now_ms)

    def totals(self, at: Ints, now_ms: Ints) -> Floats:
        """The sums of the samples that have not expired."""
        self._purge(at, now_ms)
        totals: Floats = self._total[at]
        return totals

    def throttles_ms(self, at: Ints, now_ms: Ints) -> Floats:
        """See `Meters`."""
        self._purge(at, now_ms)
        windows_ms = now_ms - self._starts_ms[at].min(axis=1)
        missing = self._window_num - 1 - windows_ms // self._window_ms
        windows_ms = np.maximum(windows_ms + np.maximum(missing, 0) * self._window_ms, 1)
        return rate_throttles_ms(self._total[at] / (windows_ms / 1000), self._limits[at], windows_ms)

    def _advance(self, at: Ints, now_ms: Ints) -> None:
        due = np.flatnonzero(now_ms >= self._next_ms[at])
        if not len(due):
            return
        at, now_ms = at[due], now_ms[due]
        slot = self._slot[at]
        self._lasts_ms[at, slot] = self._last_ms[at]
        self._values[at, slot] = self._total[at] - self._past[at]
        slot = np.where(slot == self._window_num, 0, slot + 1)
        self._starts_ms[at, slot] = self._lasts_ms[at, slot] = now_ms
        self._total[at] -= self._values[at, slot]
        self._values[at, slot] = 0.0
        self._slot[at] = slot
        self._past[at] = self._total[at]
        self._last_ms[at] = now_ms
        self._next_ms[at] = now_ms + self._window_ms

    def _purge(self, at: Ints, now_ms: Ints) -> None:
        self._lasts_ms[at, self._slot[at]] = self._last_ms[at]
        due = np.flatnonzero(self._lasts_ms[at].min(axis=1) <= now_ms - self._expiry_ms)
        if len(due):
            old, moments_ms = at[due], now_ms[due]
            self._reset_due(old, self._looked_ms[old])
            self._reset_due(old, moments_ms)
            bare = old[~self._values[old].any(axis=1)]
            self._total[bare] -= self._past[bare]
            self._past[bare] = 0.0
        self._looked_ms[at] = now_ms

    def _reset_due(self, at: Ints, moments_ms: Ints) -> None:
        while len(at):
            oldest = self._lasts_ms[at].argmin(axis=1)
            due: NDArray[np.bool_] = self._lasts_ms[at, oldest] <= moments_ms - self._expiry_ms
            at, oldest, moments_ms = at[due], oldest[due], moments_ms[due]
            self._starts_ms[at, oldest] = self._lasts_ms[at, oldest] = moments_ms
            current = oldest == self._slot[at]
            now = at[current]
            self._last_ms[now] = moments_ms[current]
            self._next_ms[now] = moments_ms[current] + self._window_ms
            self._total[now] = self._past[now]
            past, slot = at[~current], oldest[~current]
            gone = self._values[past, slot]
            self._past[past] -= gone
            self._total[past] -= gone
            self._values[past, slot] = 0.0
