"""The two slowest kernels as loops that numba compiles, if it is installed (extra `kernels`).

They compute the same results as `pipeline.replay.kernels.token_bucket` and `deferral` do with numpy, bit for bit: the
same operations on the same numbers in the same order, sums included. No option is used that lets a compiler change
them (no fastmath, no fused multiplication). Tests compare both. Without numba `LOOPS` is None, and numpy is used.

Compiling takes some seconds. The result is cached beside this file or in the user's cache. If neither can be written,
or this file is in an archive, each worker compiles again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from pipeline.replay.kernels.ragged import Floats, Ints

try:
    import numba
except ImportError:  # the extra is not installed
    numba = None

_F = TypeVar("_F", bound=Callable[..., Any])


def _compiled(function: _F) -> _F:
    if numba is None:
        return function
    try:
        made: _F = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder for the cache can be written
        made = numba.njit(nogil=True)(function)
    return made


@_compiled
def _take(
    offsets: Ints,
    units: Floats,
    since_ms: Floats,
    rows: Ints,
    ends: Ints,
    rates: Floats,
    bursts: Floats,
    below: Floats,
    tokens: Floats,
    taken_units: Floats,
    taken: Floats,
) -> None:
    """Lets buckets take the records that they accept, client by client. The inner loop is over candidates.

    Args:
        offsets, units, since_ms: records of all clients; `since_ms` is the time since the client's previous record.
        rows: indices of the clients.
        ends: client k has the pairs [ends[k], ends[k + 1]) of the arrays below.
        rates, bursts, below, tokens: see `token_bucket._Pairs`.
        taken_units, taken: results, which are added to.
    """
    for k in range(len(rows)):
        begin, end = ends[k], ends[k + 1]
        # Views, so that the loop below is over contiguous memory from index 0: only such a loop is vectorised.
        rate, full, least = rates[begin:end], bursts[begin:end], below[begin:end]
        now, sums, counts = tokens[begin:end], taken_units[begin:end], taken[begin:end]
        gains = np.empty(end - begin)
        same_ms = -1.0
        for i in range(offsets[rows[k]], offsets[rows[k] + 1]):
            amount = units[i]
            if since_ms[i] != same_ms:
                same_ms = since_ms[i]
                for p in range(end - begin):
                    gains[p] = rate[p] * same_ms / 1000
            for p in range(end - begin):
                there = min(gains[p] + now[p], full[p])
                paid = there > least[p]
                cost = amount if paid else 0.0
                now[p] = there - cost
                sums[p] += cost
                counts[p] += 1.0 if paid else 0.0


@_compiled
def _pairwise_sum(values: Floats, count: int) -> float:
    """The sum in the order in which numpy adds contiguous floats (`pairwise_sum` in its loops_utils.h).

    The range is halved down to 128 values, each summed by `_block_sum`. It uses a stack of its own, because the
    cached code of a function that calls itself crashes the process that loads it from numba's cache.
    """
    begins, counts, stages = np.empty(64, np.int64), np.empty(64, np.int64), np.empty(64, np.int64)
    lefts = np.empty(64)
    begins[0], counts[0], stages[0] = 0, count, 0
    depth, total = 0, 0.0
    while depth >= 0:
        half = counts[depth] // 2
        half -= half % 8
        if counts[depth] <= 128:
            total = _block_sum(values, begins[depth], counts[depth])
            depth -= 1
        elif stages[depth] == 0:
            stages[depth] = 1
            begins[depth + 1], counts[depth + 1], stages[depth + 1] = begins[depth], half, 0
            depth += 1
        elif stages[depth] == 1:
            stages[depth], lefts[depth] = 2, total
            begins[depth + 1], counts[depth + 1] = begins[depth] + half, counts[depth] - half
            stages[depth + 1] = 0
            depth += 1
        else:
            total = lefts[depth] + total
            depth -= 1
    return total


@_compiled
def _block_sum(values: Floats, begin: int, count: int) -> float:
    if count < 8:
        total: float = 0.0
        for i in range(begin, begin + count):
            total += values[i]
        return total
    s0, s1, s2, s3 = values[begin], values[begin + 1], values[begin + 2], values[begin + 3]
    s4, s5, s6, s7 = values[begin + 4], values[begin + 5], values[begin + 6], values[begin + 7]
    whole = begin + count - count % 8
    for i in range(begin + 8, whole, 8):
        s0 += values[i]
        s1 += values[i + 1]
        s2 += values[i + 2]
        s3 += values[i + 3]
        s4 += values[i + 4]
        s5 += values[i + 5]
        s6 += values[i + 6]
        s7 += values[i + 7]
    total = ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))
    for i in range(whole, begin + count):
        total += values[i]
    return total


@_compiled
def _deferred(
    t_s: Floats, before: Floats, units: Floats, scratch: Floats, rate_per_s: float, burst_s: float
) -> float:
    """`deferral._Curve.deferred`."""
    most = rate_per_s * burst_s
    lowest = np.inf
    for i in range(len(units)):
        level = t_s[i] * -rate_per_s + before[i]
        lowest = min(lowest, level)
        scratch[i] = min(max(level - lowest + units[i] - most, 0.0), units[i])
    total: float = _pairwise_sum(scratch, len(units))
    return total


@_compiled
def _deferred_of_each(
    offsets: Ints, t_ms: Ints, units: Floats, rates: Floats, burst_s: float, found: Floats
) -> None:
    """`deferral.deferred`, into `found`, over (client, candidate)."""
    longest = 0
    for k in range(len(offsets) - 1):
        longest = max(longest, offsets[k + 1] - offsets[k])
    t_s, before, scratch = np.empty(longest), np.empty(longest), np.empty(longest)
    for k in range(len(offsets) - 1):
        begin, count = offsets[k], offsets[k + 1] - offsets[k]
        own = units[begin : begin + count]
        _curve(t_ms[begin : begin + count], own, t_s, before)
        for j in range(rates.shape[1]):
            found[k, j] = _deferred(t_s[:count], before[:count], own, scratch, rates[k, j], burst_s)


@_compiled
def _curve(t_ms: Ints, units: Floats, t_s: Floats, before: Floats) -> float:
    """Fills in the units before each record, and returns the sum of all."""
    after = 0.0
    for i in range(len(units)):
        after += units[i]
        t_s[i] = t_ms[i] / 1000
        before[i] = after - units[i]
    return after


@_compiled
def _required(
    offsets: Ints,
    t_ms: Ints,
    units: Floats,
    targets: Floats,
    bursts_s: Floats,
    precision: float,
    found: Floats,
) -> None:
    """`deferral.required_rates_on`, into `found`, over (client, burst, target)."""
    longest = 0
    for k in range(len(offsets) - 1):
        longest = max(longest, offsets[k + 1] - offsets[k])
    t_s, before, scratch = np.empty(longest), np.empty(longest), np.empty(longest)
    low, high, allowed = np.empty(len(targets)), np.empty(len(targets)), np.empty(len(targets))
    fails = np.empty(len(targets), np.bool_)
    for k in range(len(offsets) - 1):
        begin, count = offsets[k], offsets[k + 1] - offsets[k]
        own = units[begin : begin + count]
        total = _curve(t_ms[begin : begin + count], own, t_s, before)
        if total <= 0:
            continue
        span_s = t_s[count - 1] - t_s[0]
        for b in range(len(bursts_s)):
            burst_s = bursts_s[b]
            for j in range(len(targets)):
                allowed[j] = targets[j] * total
                low[j] = (total - allowed[j]) / (burst_s + span_s)
                high[j] = total / burst_s * (1 + 1e-9)
                fails[j] = False
            for j in range(len(targets)):
                while high[j] > low[j] * (1 + precision):
                    rate = np.sqrt(low[j] * high[j]) if fails[j] else low[j]
                    waits = _deferred(t_s[:count], before[:count], own, scratch, rate, burst_s)
                    for other in range(len(targets)):
                        if waits <= allowed[other]:
                            high[other] = min(high[other], rate)
                        elif rate >= low[other]:
                            low[other] = rate
                            fails[other] = True
                found[k, b, j] = high[j]


@dataclass(frozen=True, slots=True)
class Loops:
    """The compiled functions."""

    take: Callable[..., None]
    deferred: Callable[..., None]
    required: Callable[..., None]


LOOPS: Final = None if numba is None else Loops(_take, _deferred_of_each, _required)
"""The compiled functions; None: numpy is used."""


def plain(values: Any) -> Any:
    """An array as the loops take it: for another layout, or a read-only one, each would be compiled once more."""
    return np.require(values, requirements=["C", "W"])
