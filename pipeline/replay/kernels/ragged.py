"""Series of different lengths in one flat array with offsets.

A kernel that must process a series record by record processes all series at once instead: first the first record of
each series, then the second of each ("rank-major"). Series are sorted longest first, so that those with a further
record are always the first ones. They are processed in blocks that fit into a core's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

BLOCK: Final = 32_768
"""Client-candidate pairs that a kernel works on at once; a handful of such arrays fit into a core's cache."""


class Pace(NamedTuple):
    """Further facts about each record for closed loops; arrays of the same length.

    Attributes:
        think_ms: for how long at least a connection that had to wait is silent before the record.
        early_ms: the earliest time at which it can have been wanted; never falls within a series.
        quota: the quota in force. Only under a candidate above it may the record come before its `t_ms`.
        connections: the number of connections that take turns.
    """

    think_ms: Ints
    early_ms: Ints
    quota: Floats
    connections: Ints

    def of(self, at: NDArray[Any]) -> Pace:
        """The facts about some records."""
        return Pace(*(values[at] for values in self))


@dataclass(frozen=True, slots=True)
class Ragged:
    """Clients' demand by time.

    Attributes:
        offsets: series i is [offsets[i], offsets[i + 1]) of the flat arrays.
        t_ms: time of each record, never falling within a series.
        units: of each record, > 0.
        weights: the number of requests that each record stands for.
        pace: see `Pace`. None: one connection without think time, and no record was wanted before it came.
    """

    offsets: Ints
    t_ms: Ints
    units: Floats
    weights: Floats
    pace: Pace | None = None

    @classmethod
    def build(
        cls,
        offsets: Ints,
        t_ms: Ints,
        units: Floats,
        weights: Floats | None = None,
        pace: Pace | None = None,
    ) -> Ragged:
        """Checks series and concatenates them. Records without units cost nothing and are left out.

        Raises:
            ValueError: lengths do not fit, time falls within a series, or units are negative or not finite.
        """
        offsets = np.asarray(offsets, np.int64)
        t_ms = np.asarray(t_ms, np.int64)
        units = np.asarray(units, np.float64)
        weights = np.ones(len(units)) if weights is None else np.asarray(weights, np.float64)
        if not len(t_ms) == len(units) == len(weights) == offsets[-1] or offsets[0] != 0:
            raise ValueError(
                f"offsets end at {offsets[-1]}, with {len(t_ms)} times and {len(units)} amounts of units"
            )
        if np.any(np.diff(offsets) < 0):
            raise ValueError("offsets must not fall")
        if not np.all(np.isfinite(units)) or np.any(units < 0):
            raise ValueError("units are finite numbers >= 0")
        some = units > 0
        if not some.all():
            kept = np.concatenate(([0], np.cumsum(some)))
            offsets, t_ms, units, weights = kept[offsets], t_ms[some], units[some], weights[some]
            pace = None if pace is None else pace.of(some)
        falls = np.diff(t_ms) < 0
        inner = offsets[1:-1]
        falls[inner[(inner > 0) & (inner < len(t_ms))] - 1] = False  # between two series time may fall
        if falls.any():
            raise ValueError(f"time falls within a series, at record {int(np.argmax(falls)) + 1}")
        return cls(offsets, t_ms, units, weights, pace)

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """The series of all parts, one after the other."""
        sizes = np.cumsum([0, *(len(part.t_ms) for part in parts)]).tolist()
        offsets = [part.offsets[:-1] + size for part, size in zip(parts, sizes)]
        t_ms, units, weights = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("t_ms", "units", "weights")
        )
        return cls(np.concatenate([*offsets, sizes[-1:]]), t_ms, units, weights)

    def __len__(self) -> int:
        """The number of series."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        """Records of each series."""
        return np.diff(self.offsets)

    def total_units(self) -> Floats:
        """All units of each series."""
        return self._sums(self.units)

    def total_weights(self) -> Floats:
        """All requests of each series."""
        return self._sums(self.weights)

    def of(self, i: int) -> tuple[Ints, Floats]:
        """Times and units of one series."""
        begin, end = self.offsets[i], self.offsets[i + 1]
        return self.t_ms[begin:end], self.units[begin:end]

    def _sums(self, values: Floats) -> Floats:
        sums = np.zeros(len(self))
        filled = self.lengths > 0
        if len(values):
            sums[filled] = np.add.reduceat(values, self.offsets[:-1][filled])
        return sums

    def blocks(self, candidates: int) -> Iterator[Block]:
        """Blocks of series, longest first, whose arrays fit into the cache in a kernel."""
        order = np.argsort(-self.lengths, kind="stable")
        order = order[self.lengths[order] > 0]
        size = max(1, BLOCK // max(1, candidates))
        for begin in range(0, len(order), size):
            yield Block.of(self, order[begin : begin + size])


@dataclass(frozen=True, slots=True)
class Block:
    """Some series in rank-major order: all first records, then all second ones, and so on.

    Attributes:
        rows: indices of the series, longest first.
        starts: rank j is [starts[j], starts[j + 1]) of the arrays below; that many of the first `rows` have it.
        t_ms, units, weights: of the records.
        since_ms: time since the series' previous record; 0 for the first one.
        pace: see `Ragged`.
    """

    rows: Ints
    starts: Ints
    t_ms: Ints
    units: Floats
    weights: Floats
    since_ms: Floats
    pace: Pace | None

    @classmethod
    def of(cls, ragged: Ragged, rows: Ints) -> Block:
        """The block of these series, which must be sorted longest first, and not be empty."""
        begins, lengths = ragged.offsets[rows], ragged.lengths[rows]
        ranks = np.arange(lengths[0])
        # The number of series that are longer than each rank. Lengths fall, so the search begins at the other end.
        counts = len(rows) - np.searchsorted(lengths[::-1], ranks, side="right")
        starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        t_ms = np.empty(starts[-1], np.int64)
        units, weights, since_ms = np.empty(starts[-1]), np.empty(starts[-1]), np.empty(starts[-1])
        record = np.empty(starts[-1] if ragged.pace is not None else 0, np.int64)
        for k, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
            to = starts[:length] + k
            times = ragged.t_ms[begin : begin + length]
            t_ms[to] = times
            units[to] = ragged.units[begin : begin + length]
            weights[to] = ragged.weights[begin : begin + length]
            since_ms[to[0]] = 0
            since_ms[to[1:]] = np.diff(times)
            if ragged.pace is not None:
                record[to] = np.arange(begin, begin + length)
        pace = None if ragged.pace is None else ragged.pace.of(record)
        return cls(rows, starts, t_ms, units, weights, since_ms, pace)


def candidates_of(candidates: Floats, series: int) -> Floats:
    """Candidate quotas as an array over (series, candidate).

    Args:
        candidates: such an array, or one row for all series.
        series: the number of series.

    Raises:
        ValueError: the shape does not fit, or a quota is not a finite number > 0.
    """
    rates = np.asarray(candidates, np.float64)
    if rates.ndim == 1:
        rates = np.broadcast_to(rates, (series, len(rates)))
    if rates.ndim != 2 or rates.shape[0] != series or rates.shape[1] == 0:
        raise ValueError(f"candidates for {series} series have shape {rates.shape}")
    if not np.all(np.isfinite(rates)) or np.any(rates <= 0):
        raise ValueError("a candidate quota is a finite number > 0")
    return rates


@dataclass(slots=True)
class Outcome:
    """The result of candidate quotas, as arrays over (series, candidate).

    Attributes:
        throttled: requests refused (strict) or answered with a throttle time.
        throttled_units: their units; in the deferral model only those beyond the available tokens.
        wait_ms: sum of the throttle times sent.
        late_ms: sum over requests of the time by which each was sent later than wanted; 0 in open loops.
    """

    throttled: Floats
    throttled_units: Floats
    wait_ms: Floats
    late_ms: Floats

    @classmethod
    def zeros(cls, series: int, candidates: int) -> Outcome:
        """No throttling."""
        return cls(*(np.zeros((series, candidates)) for _ in range(4)))

    def of(self, begin: int, end: int) -> Outcome:
        """The results of some series."""
        return Outcome(
            self.throttled[begin:end],
            self.throttled_units[begin:end],
            self.wait_ms[begin:end],
            self.late_ms[begin:end],
        )
