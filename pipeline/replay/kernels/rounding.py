"""The rounding of throttle times (`quotas.rate`), for arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.replay.kernels.ragged import Floats
from quotas.rate import MAX_THROTTLE_MS


def clamp_throttles_ms(values_ms: Floats) -> Floats:
    """`clamp_throttle_ms` of each value; whole numbers in a float64 array."""
    with np.errstate(invalid="ignore"):
        rounded = np.floor(values_ms + 0.5)
    rounded = np.where(values_ms >= MAX_THROTTLE_MS, MAX_THROTTLE_MS, rounded)
    return np.where(values_ms > 0, rounded, 0.0)


def lowest_paid_tokens(rates_per_s: Floats) -> Floats:
    """The fewest tokens of a bucket (below zero: debt) whose throttle time is still 0 ms, for each limit.

    A debt that rounds to no wait counts as paid. Comparing with this number gives the same decision as the bucket's
    own division, multiplication and rounding, without these operations for every record.

    Args:
        rates_per_s: limits, finite and > 0.
    """

    def waits(debts: Floats) -> NDArray[np.bool_]:
        return clamp_throttles_ms(debts / rates_per_s * 1000) > 0

    # Half a millisecond of quota, plus or minus the rounding of three operations. The wait is monotone in the debt.
    debts = rates_per_s * 0.0005
    while (early := waits(debts)).any():
        debts = np.where(early, np.nextafter(debts, 0.0), debts)
    while (paid := ~waits(above := np.nextafter(debts, np.inf))).any():
        debts = np.where(paid, above, debts)
    return -debts
