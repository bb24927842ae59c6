"""KIP-599's token bucket for many clients and quotas (`quotas.token_bucket.TokenBucket`, bit by bit).

*Strict*: a record that comes while there is a debt is refused and costs nothing. *Permissive*: every record is
accepted, and its client is sent how long the debt lasts. In both models records keep their times: no client sends
later because it was throttled.

The strict kernel works on pairs of a client and one of its candidates, in flat arrays, longest clients first. So the
pairs that still have a record in a rank are the first ones, and each step is one operation on contiguous memory.
Pairs in which nothing can be refused are left out beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.replay.kernels.compiled import LOOPS, Loops, plain
from pipeline.replay.kernels.ragged import Block, Floats, Ints, Outcome, Ragged, candidates_of
from pipeline.replay.kernels.rounding import clamp_throttles_ms, lowest_paid_tokens

_PAIRS: Final = 12_288
"""Pairs that are replayed together: a dozen such arrays fit into a core's second-level cache."""
_ELEMENTS: Final = 32_768
"""Pairs times ranks whose units and gains are computed at once."""
_SURELY: Final = 1 + 1e-6
"""More than the rounding errors of a day's additions, and small enough to cost nothing."""


def strict_token_bucket(
    ragged: Ragged,
    candidates: Floats,
    *,
    window_num: int = 11,
    window_ms: int = 1_000,
    loops: Loops | None = LOOPS,
) -> Outcome:
    """Replays strict buckets: what they would have refused.

    The waits are not computed. For them see `pipeline.replay.kernels.models.strict`, which is slower.

    Args:
        ragged: permits by client.
        candidates: limits in permits per second, over (client, candidate) or one row for all clients.
        window_num, window_ms: the bucket's size is the quota of `window_num` windows.
        loops: None: numpy is used.

    Raises:
        ValueError: a candidate is not a quota, or their number does not fit.
    """
    rates = candidates_of(candidates, len(ragged))
    outcome = Outcome.zeros(*rates.shape)
    burst_s = window_num * window_ms / 1000
    # If no span as long as the bucket's has more units than the bucket's size, the bucket never goes into debt: each
    # further span adds at most as many units as were refilled meanwhile.
    some = rates * burst_s < busiest_windows(ragged, window_num * window_ms)[:, None] * _SURELY
    lengths, totals = ragged.lengths, ragged.total_units()
    since_ms = _since_ms(ragged)
    for rows in _groups(lengths, some):
        pairs = _Pairs.of(rows, rates, some, burst_s)
        if loops is None:
            _replay(pairs, _Ranks.of(ragged, rows, since_ms))
        else:
            pairs.take(loops, ragged, rows, since_ms)
        refused = lengths[pairs.rows] - pairs.taken
        outcome.throttled[pairs.rows, pairs.candidates] = refused
        # Sums in another order may differ in their last digits; without a refused record the difference is 0.
        outcome.throttled_units[pairs.rows, pairs.candidates] = (totals[pairs.rows] - pairs.units) * (
            refused > 0
        )
    return outcome


def busiest_windows(ragged: Ragged, window_ms: int) -> Floats:
    """Each client's most units within any span of this length, its end excluded; 0 without records."""
    most = np.zeros(len(ragged))
    for i in range(len(ragged)):
        t_ms, units = ragged.of(i)
        if len(units):
            # Summed client by client, so that sums of large clients do not cost small ones precision.
            sums = np.concatenate(([0.0], np.cumsum(units)))
            begins = np.searchsorted(t_ms, t_ms - window_ms, side="right")
            most[i] = (sums[1:] - sums[begins]).max()
    return most


def _since_ms(ragged: Ragged) -> Floats:
    """Time since the client's previous record; 0 for the first one."""
    since_ms = np.zeros(len(ragged.t_ms))
    since_ms[1:] = np.diff(ragged.t_ms)
    since_ms[ragged.offsets[:-1][ragged.lengths > 0]] = 0
    return since_ms


def _groups(lengths: Ints, some: NDArray[np.bool_]) -> Iterator[Ints]:
    """Clients with any pair to replay, longest first, about `_PAIRS` at a time."""
    order = np.argsort(-lengths, kind="stable")
    order = order[some[order].any(axis=1) & (lengths[order] > 0)]
    ends = np.cumsum(some[order].sum(axis=1))
    begin = 0
    while begin < len(order):
        done = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + _PAIRS, side="right")))
        yield order[begin:end]
        begin = end


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Clients and candidates, flat; those of the longest client first.

    Attributes:
        rows, candidates: indices of client and candidate.
        per_client: the number of pairs of each client.
        rate, burst, below: of each pair; `below` is the largest level of tokens at which a debt is not yet paid.
        tokens, units, taken: the bucket's level; units and number of the records that it accepted.
    """

    rows: Ints
    candidates: Ints
    per_client: Ints
    rate: Floats
    burst: Floats
    below: Floats
    tokens: Floats
    units: Floats
    taken: Floats

    @classmethod
    def of(cls, rows: Ints, rates: Floats, some: NDArray[np.bool_], burst_s: float) -> _Pairs:
        mine = some[rows]
        client, candidates = np.nonzero(mine)
        rate = rates[rows][mine]
        burst = rate * burst_s
        # `below` is the float just below the lowest paid level. So "paid" is the sign bit of a difference, which is a
        # mask without any conversion.
        below = np.nextafter(lowest_paid_tokens(rate), -np.inf)
        nothing = np.zeros(len(rate)), np.zeros(len(rate))
        return cls(rows[client], candidates, mine.sum(axis=1), rate, burst, below, burst.copy(), *nothing)

    def take(self, loops: Loops, ragged: Ragged, rows: Ints, since_ms: Floats) -> None:
        """As `_replay`, with the compiled loop."""
        loops.take(
            plain(ragged.offsets),
            plain(ragged.units),
            since_ms,
            rows,
            np.concatenate(([0], np.cumsum(self.per_client))),
            self.rate,
            self.burst,
            self.below,
            self.tokens,
            self.units,
            self.taken,
        )


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Records of some clients rank by rank, as in `pipeline.replay.kernels.ragged.Block`.

    Attributes:
        starts: rank j is [starts[j], starts[j + 1]) of the other arrays; that many of the first clients have it.
        units, since_ms: of the records.
    """

    starts: Ints
    units: Floats
    since_ms: Floats

    @classmethod
    def of(cls, ragged: Ragged, rows: Ints, since_ms: Floats) -> _Ranks:
        begins, lengths = ragged.offsets[rows], ragged.lengths[rows]
        # The number of clients that are longer than each rank. Lengths fall, so the search begins at the other end.
        counts = len(rows) - np.searchsorted(lengths[::-1], np.arange(lengths[0]), side="right")
        starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        units, since = np.empty(starts[-1]), np.empty(starts[-1])
        for k, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
            to = starts[:length] + k
            units[to] = ragged.units[begin : begin + length]
            since[to] = since_ms[begin : begin + length]
        return cls(starts, units, since)

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Ranges of ranks that have the same number of clients, and that number."""
        counts = np.diff(self.starts)
        borders = [0, *(np.flatnonzero(np.diff(counts)) + 1).tolist(), len(counts)]
        for begin, end in pairwise(borders):
            yield begin, end, int(counts[begin])


def _replay(pairs: _Pairs, ranks: _Ranks) -> None:
    """Lets the buckets take the records that they accept."""
    ends = np.concatenate(([0], np.cumsum(pairs.per_client))).tolist()
    gains = _Gains(pairs.rate, ranks)
    unit_bits = ranks.units.view(np.int64)
    scratch = np.empty(len(pairs.rate))
    for first, last, n in ranks.runs():
        p = ends[n]
        per_client, full, least = pairs.per_client[:n], pairs.burst[:p], pairs.below[:p]
        now, part, bits = pairs.tokens[:p], scratch[:p], scratch[:p].view(np.int64)
        sums = pairs.units[:p]
        step = max(1, _ELEMENTS // p)
        for rank in range(first, last, step):
            count = min(step, last - rank)
            at = slice(int(ranks.starts[rank]), int(ranks.starts[rank]) + count * n)
            taken_bits = np.repeat(unit_bits[at].reshape(count, n), per_client, axis=1)
            taken = taken_bits.view(np.float64)
            rows = zip(gains.of(rank, count, at, per_client, p), taken_bits, taken, strict=True)
            for gained, units_bits, units in rows:
                np.add(gained, now, out=part)
                np.minimum(part, full, out=now)
                np.subtract(least, now, out=part)
                np.right_shift(bits, 63, out=bits)
                np.bitwise_and(bits, units_bits, out=units_bits)
                np.subtract(now, units, out=now)
                # Summed one after the other, like the compiled loop: the order of a sum changes its last digits.
                np.add(sums, units, out=sums)
            # Units are above zero, so a value that is not zero was taken. A byte counts up to 255 of them.
            paid = (taken != 0).view(np.uint8)
            for few in range(0, count, 255):
                pairs.taken[:p] += np.add.reduce(paid[few : few + 255], axis=0, dtype=np.uint8)


class _Gains:
    """What each bucket gains until a rank: rate * elapsed / 1000, in the gateway's order of operations.

    In ranks of clients that are active every second, the time since the last record is the same for all. Those gains
    are computed once. This saves the division, the kernel's most expensive step.
    """

    def __init__(self, rate: Floats, ranks: _Ranks) -> None:
        self._rate = rate
        self._since_ms = ranks.since_ms
        self._low = np.minimum.reduceat(ranks.since_ms, ranks.starts[:-1])
        self._high = np.maximum.reduceat(ranks.since_ms, ranks.starts[:-1])
        self._same_ms = -1.0
        self._same = np.empty_like(rate)

    def of(self, rank: int, count: int, at: slice, per_client: Ints, p: int) -> Iterable[Floats]:
        """The gains of the first `p` pairs for `count` ranks, whose records are `at`."""
        low = self._low[rank : rank + count].min()
        if low != self._high[rank : rank + count].max():
            since_ms = self._since_ms[at].reshape(count, len(per_client))
            gains = np.repeat(since_ms, per_client, axis=1)
            np.multiply(gains, self._rate[:p], out=gains)
            np.divide(gains, 1000, out=gains)
            return gains
        if low != self._same_ms:
            self._same_ms = low
            np.divide(self._rate * low, 1000, out=self._same)
        return [self._same[:p]] * count


def permissive_token_bucket(
    ragged: Ragged, candidates: Floats, *, window_num: int = 11, window_ms: int = 1_000
) -> Outcome:
    """How long clients of buckets that accept everything would have been throttled; see `strict_token_bucket`.

    Returns:
        `throttled_units` counts only the units beyond the available tokens, not all units of a throttled record.
    """
    rates = candidates_of(candidates, len(ragged))
    outcome = Outcome.zeros(*rates.shape)
    for block in ragged.blocks(rates.shape[1]):
        part = _permissive_block(block, rates[block.rows], window_num, window_ms)
        for name in ("throttled", "throttled_units", "wait_ms"):
            getattr(outcome, name)[block.rows] = getattr(part, name).T
    return outcome


class _Refill:
    """What each bucket gains until the next rank; see `_Gains`."""

    def __init__(self, block: Block, rates: Floats) -> None:
        self._rates = rates
        self._since_ms = block.since_ms
        self._scratch = np.empty_like(rates)
        self._same_ms = -1.0
        self._same = np.empty_like(rates)

    def of(self, begin: int, end: int) -> Floats:
        """The gains of the rank with these records."""
        since_ms = self._since_ms[begin:end]
        if since_ms.min() != since_ms.max():
            part = self._scratch[:, : end - begin]
            np.multiply(self._rates[:, : end - begin], since_ms, out=part)
            np.divide(part, 1000, out=part)
            return part
        if since_ms[0] != self._same_ms:
            self._same_ms = float(since_ms[0])
            np.divide(self._rates * since_ms[0], 1000, out=self._same)
        return self._same[:, : end - begin]


def _permissive_block(block: Block, rates: Floats, window_num: int, window_ms: int) -> Outcome:
    rate = np.ascontiguousarray(rates.T)
    burst = rate * (window_num * window_ms / 1000)
    tokens = burst.copy()
    scratch = np.empty_like(rate)
    outcome = Outcome.zeros(*rate.shape)
    refill = _Refill(block, rate)
    starts = block.starts.tolist()
    for begin, end in pairwise(starts):
        n = end - begin
        now, part = tokens[:, :n], scratch[:, :n]
        np.add(refill.of(begin, end), now, out=part)
        np.minimum(part, burst[:, :n], out=now)
        units = block.units[begin:end]
        np.maximum(units - np.maximum(now, 0.0), 0.0, out=part)
        outcome.throttled_units[:, :n] += part
        now -= units
        if now.min() < 0:
            waits_ms = clamp_throttles_ms(-now / rate[:, :n] * 1000)
            outcome.wait_ms[:, :n] += waits_ms
            outcome.throttled[:, :n] += (waits_ms > 0) * block.weights[begin:end]
    return outcome
