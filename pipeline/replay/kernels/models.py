"""What clients do when they are throttled, over any kind of meter.

* `strict`: a record that comes while there is a debt is refused and costs nothing (KIP-599, new clients).
* `connections`: a record counts when it is decided, and no more when it is refused (KIP-612).
* `permissive`: every record is taken and afterwards its client told to wait; no client comes later for it.
* `recorded`: each record as its client was, strict or permissive: what the gateway does with a mix of both.
* `closed_loop`: as the gateway's byte rates. A client is told to wait and does; what it wanted meanwhile comes, in
  order, when the wait is over. One connection: a client with many is muted on one and goes on with the others.

All go rank by rank over all clients at once (see `pipeline.replay.kernels.ragged`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np

from pipeline.replay.kernels.meters import MakeMeters, Meters
from pipeline.replay.kernels.ragged import Block, Floats, Ints, Outcome, Ragged, candidates_of

CAP_MS: Final = 2**31 - 1
_LONG_AGO_MS: Final = np.int64(-(2**62))


def strict(
    ragged: Ragged, candidates: Floats, make: MakeMeters, *, window_num: int = 11, window_ms: int = 1_000
) -> Outcome:
    """What would have been refused, and the waits told with it.

    Args:
        ragged: permits by client.
        candidates: limits per second, over (client, candidate) or one row for all.
        make: the kind of meter.
        window_num, window_ms: how it measures.
    """
    outcome = Outcome.zeros(*(rates := candidates_of(candidates, len(ragged))).shape)
    for block in ragged.blocks(rates.shape[1]):
        meters, part = _start(block, rates, make, window_num, window_ms)
        for at, now_ms, units, weights in _ranks(block, rates.shape[1]):
            waits_ms = meters.throttles_ms(at, now_ms)
            taken = np.flatnonzero(waits_ms == 0)
            meters.record(units[taken], at[taken], now_ms[taken])
            _count(part, at, waits_ms, units, weights)
        _merge(outcome, block, part)
    return outcome


def connections(
    ragged: Ragged, candidates: Floats, make: MakeMeters, *, window_num: int = 11, window_ms: int = 1_000
) -> Outcome:
    """What would have been held and then closed, as `quotas.connections.ConnectionQuotas` decides.

    Args:
        ragged: connections by address or group of addresses.
        candidates, make, window_num, window_ms: see `strict`.
    """
    outcome = Outcome.zeros(*(rates := candidates_of(candidates, len(ragged))).shape)
    for block in ragged.blocks(rates.shape[1]):
        meters, part = _start(block, rates, make, window_num, window_ms)
        for at, now_ms, units, weights in _ranks(block, rates.shape[1]):
            waits_ms = np.minimum(meters.record_and_check(units, at, now_ms), window_ms)
            held = np.flatnonzero(waits_ms)
            meters.record(-units[held], at[held], now_ms[held])
            _count(part, at, waits_ms, units, weights)
        _merge(outcome, block, part)
    return outcome


def permissive(
    ragged: Ragged, candidates: Floats, make: MakeMeters, *, window_num: int = 11, window_ms: int = 1_000
) -> Outcome:
    """What would have been throttled and how long, when all is taken; see `strict` for the arguments."""
    outcome = Outcome.zeros(*(rates := candidates_of(candidates, len(ragged))).shape)
    for block in ragged.blocks(rates.shape[1]):
        meters, part = _start(block, rates, make, window_num, window_ms)
        for at, now_ms, units, weights in _ranks(block, rates.shape[1]):
            meters.record(units, at, now_ms)
            _count(part, at, meters.throttles_ms(at, now_ms), units, weights)
        _merge(outcome, block, part)
    return outcome


def recorded(
    ragged: Ragged, candidates: Floats, make: MakeMeters, *, window_num: int = 11, window_ms: int = 1_000
) -> Outcome:
    """What would have been refused or throttled, as `quotas.mutations.MutationQuotas.charge` decides.

    Args:
        ragged: permits by client; a record's weight is 1 when it is strict, and 0 when it is permissive.
        candidates, make, window_num, window_ms: see `strict`.

    Returns:
        `throttled` and `throttled_units` count refused and slowed records alike, each as one.
    """
    outcome = Outcome.zeros(*(rates := candidates_of(candidates, len(ragged))).shape)
    for block in ragged.blocks(rates.shape[1]):
        meters, part = _start(block, rates, make, window_num, window_ms)
        for at, now_ms, units, strictness in _ranks(block, rates.shape[1]):
            waits_ms = np.zeros(len(at))
            is_strict = np.flatnonzero(strictness)
            waits_ms[is_strict] = meters.throttles_ms(at[is_strict], now_ms[is_strict])
            taken = np.flatnonzero(waits_ms == 0)
            meters.record(units[taken], at[taken], now_ms[taken])
            slowed = np.flatnonzero(strictness == 0)
            waits_ms[slowed] = meters.throttles_ms(at[slowed], now_ms[slowed])
            _count(part, at, waits_ms, units, np.ones(len(at)))
        _merge(outcome, block, part)
    return outcome


def closed_loop(
    ragged: Ragged,
    candidates: Floats,
    make: MakeMeters,
    *,
    window_num: int = 11,
    window_ms: int = 1_000,
    cap_ms: int = CAP_MS,
) -> Outcome:
    """What would have been throttled when clients wait as they are told.

    Args:
        ragged: units by client; `pipeline.replay.kernels.split` makes requests of seconds. A record
            whose weight is above 1 stands for that many requests.
        candidates: limits per second, over (client, candidate) or one row for all.
        make: the kind of meter.
        window_num, window_ms: how it measures.
        cap_ms: the longest wait told at once.
    """
    outcome = Outcome.zeros(*(rates := candidates_of(candidates, len(ragged))).shape)
    for block in ragged.blocks(rates.shape[1]):
        meters, part = _start(block, rates, make, window_num, window_ms)
        # When each client may send again, and when it would have if it had never been told to wait.
        free_ms = np.full(len(part.wait_ms[0]), _LONG_AGO_MS)
        unheld_ms = free_ms.copy()
        flat = np.ascontiguousarray(rates[block.rows]).ravel()
        thinks_ms = _thinks_ms(block, rates.shape[1])
        for (at, wanted_ms, units, weights), think_ms in zip(
            _ranks(block, rates.shape[1]), thinks_ms, strict=True
        ):
            now_ms = np.maximum(wanted_ms, free_ms[at] + think_ms)
            waits_ms = np.minimum(meters.record_and_check(units, at, now_ms), cap_ms)
            free_ms[at] = now_ms + waits_ms.astype(np.int64)
            unheld_ms[at] = np.maximum(wanted_ms, unheld_ms[at] + think_ms)
            part.late_ms[0, at] += (now_ms - unheld_ms[at]) * weights
            # A stand-in is told at once what its requests would have been told one after the other, and of them those
            # would have been told something that came after the limit was reached.
            beyond = np.minimum(waits_ms * flat[at] / 1000 / units, 1.0)
            throttled = np.where(weights > 1, np.minimum(1 + (weights - 1) * beyond, weights), weights)
            throttled *= waits_ms > 0
            part.throttled[0, at] += throttled
            part.throttled_units[0, at] += throttled / weights * units
            part.wait_ms[0, at] += waits_ms
        _merge(outcome, block, part)
    return outcome


def _start(
    block: Block, rates: Floats, make: MakeMeters, window_num: int, window_ms: int
) -> tuple[Meters, Outcome]:
    candidates = rates.shape[1]
    flat = np.ascontiguousarray(rates[block.rows]).ravel()
    first_ms = np.repeat(block.t_ms[: len(block.rows)], candidates)
    return make(flat, first_ms, window_num=window_num, window_ms=window_ms), Outcome.zeros(1, len(flat))


def _ranks(block: Block, candidates: int) -> Iterator[tuple[Ints, Ints, Floats, Floats]]:
    """Rank by rank: which meters (series by series, candidates within), and time, units and weight for each."""
    meters = np.arange(len(block.rows) * candidates)
    starts = block.starts.tolist()
    for begin, end in pairwise(starts):
        yield (
            meters[: (end - begin) * candidates],
            np.repeat(block.t_ms[begin:end], candidates),
            np.repeat(block.units[begin:end], candidates),
            np.repeat(block.weights[begin:end], candidates),
        )


def _thinks_ms(block: Block, candidates: int) -> Iterator[Ints | int]:
    """Rank by rank, as `_ranks`: how long clients think."""
    for begin, end in pairwise(block.starts.tolist()):
        yield np.repeat(block.think_ms[begin:end], candidates) if len(block.think_ms) else 0


def _count(part: Outcome, at: Ints, waits_ms: Floats, units: Floats, weights: Floats) -> None:
    throttled = waits_ms > 0
    part.throttled[0, at] += throttled * weights
    part.throttled_units[0, at] += throttled * units
    part.wait_ms[0, at] += waits_ms * weights


def _merge(outcome: Outcome, block: Block, part: Outcome) -> None:
    for name in ("throttled", "throttled_units", "wait_ms", "late_ms"):
        whole = getattr(outcome, name)
        whole[block.rows] = getattr(part, name).reshape(len(block.rows), whole.shape[1])
