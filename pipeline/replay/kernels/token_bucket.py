"""KIP-599's token bucket for many clients and quotas (`quotas.token_bucket.TokenBucket`, bit by bit).

*Strict*: a record that comes while there is a debt is refused and costs nothing. *Permissive*: every record is
taken, and its client is sent how long the debt lasts. Both leave time as it was: no client comes later for having
been throttled.

The strict kernel works on pairs of a client and one of its candidates, one after the other in flat arrays, longest
clients first: then the pairs of a rank are the first ones, and each step is one operation on contiguous memory. Pairs
of which nothing can be refused are left out beforehand.
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
"""Pairs that are replayed together: a dozen arrays of them fit a core's second cache."""
_ELEMENTS: Final = 32_768
"""Pairs times ranks whose units and gains are computed at once."""
_SURELY: Final = 1 + 1e-6
"""More than all rounding errors of a day's additions come to, and little enough to cost nothing."""


def strict_token_bucket(
    ragged: Ragged,
    candidates: Floats,
    *,
    window_num: int = 11,
    window_ms: int = 1_000,
    loops: Loops | None = LOOPS,
) -> Outcome:
    """What strict buckets would have refused.

    The waits are not computed: for them see `pipeline.replay.kernels.models.strict`, which is slower.

    Args:
        ragged: permits by client.
        candidates: limits in permits per second, over (client, candidate) or one row for all.
        window_num, window_ms: the bucket holds so many windows of quota.
        loops: None for numpy.

    Raises:
        ValueError: the candidates are no quotas, or too many or few.
    """
    rates = candidates_of(candidates, len(ragged))
    outcome = Outcome.zeros(*rates.shape)
    burst_s = window_num * window_ms / 1000
    # If no window as long as the bucket's has more units than the bucket holds, the debt below full never exceeds
    # one window's units: each further window adds no more than was refilled meanwhile.
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
        # Sums in another order may differ in their last digits: nothing refused is nothing.
        outcome.throttled_units[pairs.rows, pairs.candidates] = (totals[pairs.rows] - pairs.units) * (
            refused > 0
        )
    return outcome


def busiest_windows(ragged: Ragged, window_ms: int) -> Floats:
    """The most units of each client within any time of this length, its end excluded; 0 without records."""
    most = np.zeros(len(ragged))
    for i in range(len(ragged)):
        t_ms, units = ragged.of(i)
        if len(units):
            # Client by client, so that the sums of large ones leave small ones their digits.
            sums = np.concatenate(([0.0], np.cumsum(units)))
            begins = np.searchsorted(t_ms, t_ms - window_ms, side="right")
            most[i] = (sums[1:] - sums[begins]).max()
    return most


def _since_ms(ragged: Ragged) -> Floats:
    """Time since the client's record before; 0 at the first."""
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
        rows, candidates: which.
        per_client: how many each client has.
        rate, burst, below: of each; `below` is what just does not pay a debt.
        tokens, units, taken: the bucket, and what it has taken.
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
        # With the float below the last debt that is paid, "paid" is the sign bit of a difference: a mask without
        # any conversion.
        below = np.nextafter(lowest_paid_tokens(rate), -np.inf)
        nothing = np.zeros(len(rate)), np.zeros(len(rate))
        return cls(rows[client], candidates, mine.sum(axis=1), rate, burst, below, burst.copy(), *nothing)

    def take(self, loops: Loops, ragged: Ragged, rows: Ints, since_ms: Floats) -> None:
        """As `_replay`, compiled."""
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
    """Records of some clients rank by rank, as `pipeline.replay.kernels.ragged.Block` has them.

    Attributes:
        starts: rank j is [starts[j], starts[j + 1]) of the others; so many of the first clients have it.
        units, since_ms: of the records.
    """

    starts: Ints
    units: Floats
    since_ms: Floats

    @classmethod
    def of(cls, ragged: Ragged, rows: Ints, since_ms: Floats) -> _Ranks:
        begins, lengths = ragged.offsets[rows], ragged.lengths[rows]
        # How many clients are longer than each rank: lengths fall, so they are searched from the other end.
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
    """Lets the buckets take what they can."""
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
                # One after the other, as the compiled loop does: a sum has to have an order.
                np.add(sums, units, out=sums)
            # Units are above zero, so what is not zero was taken; of bytes no more than they count are added up.
            paid = (taken != 0).view(np.uint8)
            for few in range(0, count, 255):
                pairs.taken[:p] += np.add.reduce(paid[few : few + 255], axis=0, dtype=np.uint8)


class _Gains:
    """What each bucket gains until a rank: rate * elapsed / 1000, in the gateway's order of operations.

    Clients that are active every second make ranks in which everybody's time since the last record is the same;
    those gains are computed once. It saves the division, the dearest step of the kernel.
    """

    def __init__(self, rate: Floats, ranks: _Ranks) -> None:
        self._rate = rate
        self._since_ms = ranks.since_ms
        self._low = np.minimum.reduceat(ranks.since_ms, ranks.starts[:-1])
        self._high = np.maximum.reduceat(ranks.since_ms, ranks.starts[:-1])
        self._same_ms = -1.0
        self._same = np.empty_like(rate)

    def of(self, rank: int, count: int, at: slice, per_client: Ints, p: int) -> Iterable[Floats]:
        """Of `count` ranks, whose records are `at`, by the first `p` pairs."""
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
    """How long clients of buckets that take everything would have been throttled; see `strict_token_bucket`.

    Returns:
        `throttled_units` are those beyond the tokens that were there, not all of a throttled record's.
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
