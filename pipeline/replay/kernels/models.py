"""Models of throttled clients, over any kind of meter.

* `strict`: a record that comes while there is a debt is refused and costs nothing (KIP-599, new clients).
* `connections`: a record counts when it is decided, but not if it is refused (KIP-612).
* `permissive`: every record is accepted, and its client is throttled afterwards; no client sends later because of it.
* `recorded`: each record is strict or permissive, as its client was. The gateway does this with a mix of both.
* `closed_loop`: like the gateway's byte rates. A throttled connection waits. Requests that its client wanted to send
  meanwhile follow in order, on the connection that may send first.

All models process all clients at once, rank by rank (see `pipeline.replay.kernels.ragged`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np

from pipeline.replay.kernels.meters import MakeMeters, Meters
from pipeline.replay.kernels.ragged import Block, Floats, Ints, Outcome, Ragged, candidates_of

CAP_MS: Final = 2**31 - 1
_LONG_AGO_MS: Final = np.int64(-(2**62))
_NEVER_MS: Final = np.int64(2**62)
_BOUND_WINDOWS: Final = 2
"""The same value as in `quotas.rate_quotas`."""


def strict(
    ragged: Ragged, candidates: Floats, make: MakeMeters, *, window_num: int = 11, window_ms: int = 1_000
) -> Outcome:
    """What would have been refused, and the waits sent in these responses.

    Args:
        ragged: permits by client.
        candidates: limits per second, over (client, candidate) or one row for all clients.
        make: makes the meters.
        window_num, window_ms: the windows of the meters.
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
    """Connections that would have waited and then been closed, as `quotas.connections.ConnectionQuotas` decides.

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
    """How long clients would have been throttled if all records are accepted; see `strict` for the arguments."""
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
        `throttled` and `throttled_units` count both refused and delayed records, each as one.
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
    bounded: bool = False,
) -> Outcome:
    """What would have been throttled if clients wait as long as they are asked to.

    At the bound of a counter (`quotas.rate_quotas.RateTracker`) a request waits until it may pass, and counts as
    throttled. The limit on the number of waiting requests is not modelled. If throttle times have a cap, the request
    waits for at most the time that is looked back, and this wait is not counted.

    Args:
        ragged: units by client; `pipeline.replay.kernels.split` makes requests of seconds. A record
            whose weight is above 1 stands for that many requests.
        candidates: limits per second, over (client, candidate) or one row for all clients.
        make: makes the meters.
        window_num, window_ms: the windows of the meters.
        cap_ms: the longest throttle time in one response.
        bounded: whether counters have a bound.
    """
    outcome = Outcome.zeros(*(rates := candidates_of(candidates, len(ragged))).shape)
    lookback_ms = window_num * window_ms
    for block in ragged.blocks(rates.shape[1]):
        meters, part = _start(block, rates, make, window_num, window_ms)
        flat = np.ascontiguousarray(rates[block.rows]).ravel()
        turns = _Turns(block, flat)
        bound = _Bound(flat, _BOUND_WINDOWS * lookback_ms) if bounded else None
        for j, (at, came_ms, units, weights) in enumerate(_ranks(block, rates.shape[1])):
            now_ms, unheld_ms = turns.next(j, at, came_ms)
            held_ms = None if bound is None else bound.held_ms(at, now_ms)
            if held_ms is not None:
                now_ms += held_ms if cap_ms == CAP_MS else np.minimum(held_ms, lookback_ms)
            waits_ms = np.minimum(meters.record_and_check(units, at, now_ms), cap_ms)
            blocked_ms = None if bound is None else bound.pour(units, at, now_ms)
            if blocked_ms is not None and cap_ms == CAP_MS:
                waits_ms = np.maximum(waits_ms, np.minimum(blocked_ms, CAP_MS))
            turns.wait(at, now_ms, waits_ms)
            if held_ms is not None and cap_ms == CAP_MS:
                waits_ms = waits_ms + held_ms
            part.late_ms[0, at] += (now_ms - unheld_ms) * weights
            # A stand-in gets in one wait what its requests would have got one after the other. Those of its requests
            # count as throttled that came after the limit was reached.
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
    """Rank by rank: the meters (by series, then candidate), and time, units and weight of each one's record."""
    meters = np.arange(len(block.rows) * candidates)
    starts = block.starts.tolist()
    for begin, end in pairwise(starts):
        yield (
            meters[: (end - begin) * candidates],
            np.repeat(block.t_ms[begin:end], candidates),
            np.repeat(block.units[begin:end], candidates),
            np.repeat(block.weights[begin:end], candidates),
        )


class _Turns:
    """Connections of each meter that take turns: the next record is sent on the one that may send first."""

    def __init__(self, block: Block, rates: Floats) -> None:
        """Args: block: the records. rates: of each meter."""
        self._pace = block.pace
        self._starts = block.starts
        self._rates = rates
        self._candidates = len(rates) // len(block.rows)
        self._most = 1 if block.pace is None else int(block.pace.connections.max())
        # When each connection may send again, and when it could if it had never been throttled.
        self._free_ms = np.full(len(rates) * self._most, _LONG_AGO_MS)
        self._unheld_ms = self._free_ms.copy()
        self._last_ms = np.full(len(rates), _LONG_AGO_MS)
        self._mine: Ints = np.arange(len(rates))

    def next(self, rank: int, at: Ints, came_ms: Ints) -> tuple[Ints, Ints]:
        """When the records of a rank are sent, and when they would be sent without any throttling."""
        pace, mine = self._pace, at
        think_ms: Any = 0
        if pace is not None:
            of_rank = pace.of(np.arange(self._starts[rank], self._starts[rank + 1]))
            think_ms, early_ms, quota, connections = (
                np.repeat(values, self._candidates) for values in of_rank
            )
            came_ms = np.where(self._rates[at] > quota, early_ms, came_ms)
            if self._most > 1:
                free_ms = self._free_ms.reshape(-1, self._most)[: len(at)]
                some = np.arange(self._most) < connections[:, None]
                mine = at * self._most + np.where(some, free_ms, _NEVER_MS).argmin(axis=1)
        now_ms = np.maximum(np.maximum(came_ms, self._free_ms[mine] + think_ms), self._last_ms[at])
        self._unheld_ms[mine] = np.maximum(came_ms, self._unheld_ms[mine] + think_ms)
        self._mine = mine
        return now_ms, self._unheld_ms[mine]

    def wait(self, at: Ints, now_ms: Ints, waits_ms: Floats) -> None:
        """Throttles the connections on which the rank's records were sent."""
        self._last_ms[at] = now_ms
        self._free_ms[self._mine] = now_ms + waits_ms.astype(np.int64)


class _Bound:
    """The leaky bucket of each meter, as in `quotas.rate_quotas.RateTracker`."""

    def __init__(self, rates: Floats, bound_ms: int) -> None:
        self._bound_ms = float(bound_ms)
        self._ms_per_unit = 1000 / rates
        self._blocked_ms = np.full(len(rates), -np.inf)

    def held_ms(self, at: Ints, now_ms: Ints) -> Ints:
        held: Ints = np.ceil(np.maximum(self._blocked_ms[at] - now_ms, 0)).astype(np.int64)
        return held

    def pour(self, units: Floats, at: Ints, now_ms: Ints) -> Floats:
        """Adds units. Returns for how long no request may pass after them."""
        blocked_ms = np.maximum(self._blocked_ms[at], now_ms - self._bound_ms) + units * self._ms_per_unit[at]
        self._blocked_ms[at] = blocked_ms
        waits: Floats = np.ceil(np.maximum(blocked_ms - now_ms, 0))
        return waits


def _count(part: Outcome, at: Ints, waits_ms: Floats, units: Floats, weights: Floats) -> None:
    throttled = waits_ms > 0
    part.throttled[0, at] += throttled * weights
    part.throttled_units[0, at] += throttled * units
    part.wait_ms[0, at] += waits_ms * weights


def _merge(outcome: Outcome, block: Block, part: Outcome) -> None:
    for name in ("throttled", "throttled_units", "wait_ms", "late_ms"):
        whole = getattr(outcome, name)
        whole[block.rows] = getattr(part, name).reshape(len(block.rows), whole.shape[1])
