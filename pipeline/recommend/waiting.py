"""The required rate of a client's day, and the waiting share under a quota, from `client_day`.

The table has required rates for the shares in `TARGETS`. They are points of a curve of the waiting share, which falls
from 1 to 0 as the quota rises. Between two points the share is interpolated.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from pipeline.client_tables.rows import BURSTS_S, TARGETS
from pipeline.errors import ArgumentError
from pipeline.replay.algorithms import Algorithm
from pipeline.replay.demand import BUCKETS
from pipeline.replay.kernels.ragged import Floats
from quotas.entities import API_BURST_S
from quotas.usage_record import UsageApi

_SHARES: Final = np.array(TARGETS)


def burst_s(
    api: UsageApi, window_num: int, window_ms: int, mutations: Algorithm = Algorithm.TOKEN_BUCKET
) -> float:
    """Seconds of quota that can be used at once. A bucket holds all its windows, a Rate passes all but one.

    Args:
        api: the API.
        window_num, window_ms: number and length of a rate's samples.
        mutations: the algorithm for mutations.
    """
    if api in BUCKETS:
        return API_BURST_S
    bucket = api is UsageApi.MUTATION and mutations is Algorithm.TOKEN_BUCKET
    windows = window_num if bucket else max(1, window_num - 1)
    return windows * window_ms / 1000


def kept_burst_s(api: UsageApi, wanted_s: float) -> int:
    """The table's largest burst that is not above the wanted one. A rate that suffices for it suffices for both.

    Raises:
        ArgumentError: all bursts of the table are above it.
    """
    kept = [burst for burst in BURSTS_S if burst <= wanted_s and (burst != 11 or api is UsageApi.MUTATION)]
    if not kept:
        raise ArgumentError(
            f"quotas that let {wanted_s:g} s of use pass at once: client_day has required rates for "
            f"{', '.join(map(str, BURSTS_S))} s"
        )
    return max(kept)


def kept_target(wanted: float) -> int:
    """The index of the largest of `TARGETS` that is not above the wanted one."""
    return int(np.searchsorted(_SHARES, wanted, side="right")) - 1


def shares_waiting(required: Floats, quotas: Floats) -> Floats:
    """Shares of units that would have waited.

    Args:
        required: rates for `TARGETS`, over (client's day, target).
        quotas: > 0, over (client's day, candidate).

    Returns:
        Over (client's day, candidate); NaN if the rate or the quota is NaN.
    """
    rows = np.arange(len(required))[:, None]
    above = np.zeros(quotas.shape, np.int64)
    for rates in required.T:
        above += quotas < rates[:, None]
    # A quota lies below the rates of the first `above` targets, and not below that of the next one.
    over, under = np.minimum(above, len(_SHARES) - 1), np.maximum(above - 1, 0)
    low, high = required[rows, over], required[rows, under]
    with np.errstate(divide="ignore", invalid="ignore"):
        between = np.log(quotas / low) / np.log(high / low)
        between = np.clip(np.where(high > low, between, 0.0), 0.0, 1.0)
        upper, lower = _SHARES[over], _SHARES[under]
        geometric = upper * (lower / upper) ** between
        shares = np.where(lower > 0, geometric, upper * (1 - between))
        # Without any quota the whole use would wait.
        shares = np.where(above == len(_SHARES), 1 - (1 - _SHARES[-1]) * quotas / required[rows, -1], shares)
    shares = np.where(above == 0, 0.0, shares)
    found: Floats = np.where(np.isnan(quotas) | np.isnan(required[:, :1]), np.nan, shares)
    return found
