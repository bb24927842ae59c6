"""Averages over sampled windows (KIP-13; Kafka's SampledStat and Rate), and the spread Rate of KIP-599's draft.

`SampledRate` copies Kafka's arithmetic in every detail, because clients receive its result in milliseconds
and operators compare it with a broker's. A sample begins at its first event and not on a grid. It is
forgotten S windows after its *last* event. A young meter counts as if S - 1 whole windows had passed.

Kafka never released `SpreadRate`. It is offered for comparison: a burst is spread over the windows before it, so that
the average falls a little with every window and not all at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final

from librt.vecs import append, vec

# Each sample is three numbers: its start, its last event, its value.
_LAST: Final = 1
_VALUE: Final = 2
_SAMPLE: Final = 3

MAX_THROTTLE_MS: Final = 2**31 - 1  # the field is an int32; Kafka lets longer times wrap, we clamp


def round_half_up(value: float) -> int:
    """Java's Math.round: floor(value + 0.5). Python's round would return the even neighbour."""
    return math.floor(value + 0.5)


def clamp_throttle_ms(value_ms: float) -> int:
    """A computed time as a throttle_time_ms: rounded, in [0, 2**31 - 1], also for NaN and infinity."""
    if not value_ms > 0:  # also NaN
        return 0
    return MAX_THROTTLE_MS if value_ms >= MAX_THROTTLE_MS else round_half_up(value_ms)


def throttle_time_ms(rate_per_s: float, limit_per_s: float, window_ms: float) -> int:
    """How long a client must stay silent for its average to fall back to the limit.

    With observed rate O, limit T and window W, silence of X more gives O * W / (W + X) = T, hence
    X = (O - T) / T * W (KIP-13).

    Args:
        rate_per_s: observed average, in the quota's unit per second.
        limit_per_s: the limit, same unit. Only a truncated connection rate can be 0; the wait is then the longest.
        window_ms: the time that the rate was really computed over.

    Returns:
        Milliseconds; 0 when the rate is within the limit. The caller applies its family's cap.
    """
    if rate_per_s <= limit_per_s:
        return 0
    if limit_per_s <= 0:
        return MAX_THROTTLE_MS
    return clamp_throttle_ms((rate_per_s - limit_per_s) / limit_per_s * window_ms)


class SampledRate:
    """Rate over a ring of at most ``window_num`` + 1 samples; the extra one overlaps the window's old edge.

    Every read first resets the samples whose last event is S windows ago. They stay in the ring, empty, and begin
    again at that moment. So the average's time may be counted from an empty sample, as in Kafka.
    """

    __slots__ = (
        "_at",
        "_expiry_ms",
        "_gone",
        "_last_ms",
        "_looked_ms",
        "_next_ms",
        "_past_sum",
        "_samples",
        "_start_ms",
        "_total",
        "_window_ms",
        "_window_num",
    )

    def __init__(self, window_num: int, window_ms: int, *, now_ms: int) -> None:
        """An empty meter.

        Args:
            window_num: samples, Kafka's quota.window.num, >= 1.
            window_ms: length of one sample.
            now_ms: when the first sample begins.
        """
        # In compiled code, fields are in memory in this order. Records go to thousands of meters in turn, so a
        # record's cost is mostly its cache misses. So the fields that every record uses come first.
        self._next_ms = now_ms + window_ms  # from then on a record begins the next sample
        self._total = 0.0  # the sum of all samples; the current sample's value is _total - _past_sum
        self._last_ms = now_ms
        self._looked_ms = now_ms  # when due samples were last reset, or should have been
        self._gone = 0.0  # the sum of forgotten values, so that `recorded` needs no sum of its own
        self._past_sum = 0.0
        # Start, last event and value of each sample, in one piece of memory for the same reason.
        self._samples = vec[float]([now_ms, now_ms, 0.0])
        self._at = 0  # index of the current sample; its last event and value are in the fields above
        self._start_ms = now_ms
        self._window_num = window_num
        self._window_ms = window_ms
        self._expiry_ms = window_num * window_ms

    @property
    def windows(self) -> tuple[int, int]:
        """The number of samples, and the length of one in ms."""
        return self._window_num, self._window_ms

    @property
    def last_ms(self) -> int:
        """The time of the last record."""
        return self._last_ms

    def record(self, value: float, *, now_ms: int) -> None:
        """Adds to the current sample, or to a new one when the current is a window old. Resets nothing."""
        if now_ms >= self._next_ms:
            self._advance(now_ms)
        self._total += value
        self._last_ms = now_ms

    def record_and_check(self, value: float, limit_per_s: float, allowance: float, *, now_ms: int) -> int:
        """Records, and returns the wait: `record` and `throttle_time_ms` in one call, for the hot path.

        Args:
            value: the value to record.
            limit_per_s: the limit.
            allowance: ``limit_per_s`` times S - 1 windows, the shortest time of an average. A total within it cannot
                exceed the limit, and samples that are due to be reset only make the total larger. So the reset is
                postponed until a read needs it.
            now_ms: the present.
        """
        if now_ms >= self._next_ms:
            self._advance(now_ms)
        total = self._total = self._total + value
        self._last_ms = self._looked_ms = now_ms
        return 0 if total <= allowance else self.throttle_time_ms(limit_per_s, now_ms=now_ms)

    @property
    def held(self) -> float:
        """The sum of all samples, including those due to be forgotten. Cheap, and changes nothing."""
        return self._total

    @property
    def recorded(self) -> float:
        """The sum of all records so far. Cheap, and changes nothing."""
        return self._total + self._gone

    def keep(self, part: float, *, now_ms: int) -> None:
        """Keeps this part of each sample, and forgets the rest."""
        self._purge(now_ms)
        samples = self._samples
        for i in range(_VALUE, len(samples), _SAMPLE):
            samples[i] *= part
        self._gone += self._total * (1 - part)
        self._total *= part
        self._past_sum *= part

    def total(self, *, now_ms: int) -> float:
        """The sum of the samples that are not yet forgotten."""
        self._purge(now_ms)
        return self._total

    def window_size_ms(self, *, now_ms: int) -> int:
        """The time of the average: at least S - 1 windows plus the age of the current one."""
        self._purge(now_ms)
        elapsed = now_ms - int(self._samples[self._first(0)])
        missing = self._window_num - 1 - elapsed // self._window_ms
        if missing > 0:
            elapsed += missing * self._window_ms
        return elapsed if elapsed > 1 else 1

    def rate(self, *, now_ms: int) -> float:
        """The average per second."""
        window_ms = self.window_size_ms(now_ms=now_ms)
        return self._total / (window_ms / 1000)

    def throttle_time_ms(self, limit_per_s: float, *, now_ms: int) -> int:
        """The wait that brings the average down to the limit; 0 within it. Equality is within."""
        window_ms = self.window_size_ms(now_ms=now_ms)
        return throttle_time_ms(self._total / (window_ms / 1000), limit_per_s, window_ms)

    def samples(self, *, now_ms: int) -> list[tuple[int, int, float]]:
        """Start, last event and value of each sample not yet forgotten, the current one last."""
        self._purge(now_ms)
        kept = self._samples
        ring = [*range(self._at + _SAMPLE, len(kept), _SAMPLE), *range(0, self._at, _SAMPLE)]
        past = [(int(kept[i]), int(kept[i + _LAST]), kept[i + _VALUE]) for i in ring]
        return [*past, (self._start_ms, self._last_ms, self._total - self._past_sum)]

    def take_over(self, samples: Sequence[tuple[int, int, float]], *, now_ms: int) -> float:
        """Copies the samples of another process's meter on this machine, unless this meter has recorded more.

        Args:
            samples: the samples of that meter, by the same clock. If its windows differ, they count as recorded now.
            now_ms: the present.

        Returns:
            The growth of the total.
        """
        before = self.total(now_ms=now_ms)
        more = math.fsum(value for _, _, value in samples) - before
        if not samples or more <= 0:
            return 0.0
        lengths_ms = [last_ms - start_ms for start_ms, last_ms, _ in samples]
        if len(samples) > self._window_num + 1 or max(lengths_ms) >= self._window_ms:
            self.record(more, now_ms=now_ms)
            return more
        self._begin_with(samples, now_ms)
        return more

    def join(self, samples: Sequence[tuple[int, int, float]], *, now_ms: int) -> None:
        """Adds the samples of another meter with the same windows. Each is kept for about as long as there."""
        both = sorted(each for each in [*self.samples(now_ms=now_ms), *samples] if each[2])
        while len(both) > self._window_num + 1:
            gaps_ms = [after[0] - before[0] for before, after in itertools.pairwise(both)]
            i = gaps_ms.index(min(gaps_ms))
            (start_ms, last_ms, value), (_, later_ms, more) = both[i : i + 2]
            both[i : i + 2] = [(start_ms, max(last_ms, later_ms), value + more)]
        if both:
            self._begin_with(both, now_ms)

    def _begin_with(self, samples: Sequence[tuple[int, int, float]], now_ms: int) -> None:
        self._samples = vec[float]([number for sample in samples for number in sample])
        self._at = (len(samples) - 1) * _SAMPLE
        self._samples[self._at + _VALUE] = 0.0
        self._start_ms, self._last_ms, current = samples[-1]
        self._past_sum = math.fsum([value for _, _, value in samples[:-1]])
        self._total = self._past_sum + current
        self._next_ms = self._start_ms + self._window_ms
        self._looked_ms = now_ms
        self._purge(now_ms)

    def _advance(self, now_ms: int) -> None:
        samples = self._samples
        at = self._at
        samples[at + _LAST] = self._last_ms
        samples[at + _VALUE] = self._total - self._past_sum
        at += _SAMPLE
        if at > self._window_num * _SAMPLE:
            at = 0
        if at == len(samples):
            self._samples = append(append(append(samples, now_ms), now_ms), 0.0)
        else:
            samples[at] = samples[at + _LAST] = now_ms
            value = samples[at + _VALUE]
            self._total -= value
            self._gone += value
            samples[at + _VALUE] = 0.0
        self._at = at
        self._past_sum = self._total
        self._start_ms = self._last_ms = now_ms
        self._next_ms = now_ms + self._window_ms

    def _first(self, number: int) -> int:
        """The index, within the samples, of the lowest start (0) or last event (1)."""
        samples = self._samples
        lowest = number
        for i in range(number, len(samples), _SAMPLE):
            if samples[i] < samples[lowest]:
                lowest = i
        return lowest

    def _purge(self, now_ms: int) -> None:
        samples = self._samples
        samples[self._at + _LAST] = self._last_ms
        first = self._first(_LAST)
        if samples[first] <= now_ms - self._expiry_ms:
            # Resets that `record_and_check` postponed are done as of the latest of those records. Kafka would have
            # done them at an earlier record, with the same results: while the sample of that record counts, time
            # is counted from its start, and when it is due the emptied samples are due again.
            for moment_ms in (self._looked_ms, now_ms):
                while samples[first] <= moment_ms - self._expiry_ms:
                    self._reset(first - _LAST, moment_ms)
                    first = self._first(_LAST)
            for i in range(_VALUE, len(samples), _SAMPLE):
                if samples[i]:
                    break
            else:
                # All samples are empty, so the rounding errors in the sums are removed too.
                self._total -= self._past_sum
                self._gone += self._past_sum
                self._past_sum = 0.0
        self._looked_ms = now_ms

    def _reset(self, at: int, now_ms: int) -> None:
        samples = self._samples
        samples[at] = samples[at + _LAST] = now_ms
        if at == self._at:
            self._start_ms = self._last_ms = now_ms
            self._next_ms = now_ms + self._window_ms
            self._gone += self._total - self._past_sum
            self._total = self._past_sum
        else:
            value = samples[at + _VALUE]
            self._past_sum -= value
            self._total -= value
            self._gone += value
            samples[at + _VALUE] = 0.0


class SpreadRate:
    """KIP-599's draft: a value fills the earlier windows, each up to the limit; the rest goes into the current one.

    Windows are on a grid that begins with the meter. The average is over all S of them.
    """

    __slots__ = ("_start_ms", "_values", "_window_ms")

    def __init__(self, window_num: int, window_ms: int, *, now_ms: int) -> None:
        """An empty meter; the arguments are those of `SampledRate`."""
        self._window_ms = window_ms
        self._values = [0.0] * window_num  # oldest first, the current one last
        self._start_ms = now_ms  # start of the current window

    def record(self, value: float, limit_per_s: float, *, now_ms: int) -> None:
        """Adds a value; a negative one is taken from the windows, newest first, down to 0."""
        self._advance(now_ms)
        if value < 0:
            self._take_back(-value)
            return
        per_window = limit_per_s * self._window_ms / 1000
        for i in range(len(self._values) - 1):
            poured = min(value, max(0.0, per_window - self._values[i]))
            self._values[i] += poured
            value -= poured
        self._values[-1] += value

    def total(self, *, now_ms: int) -> float:
        """The sum of the windows."""
        self._advance(now_ms)
        return math.fsum(self._values)

    def keep(self, part: float, *, now_ms: int) -> None:
        """Keeps this part of each window, and forgets the rest."""
        self._advance(now_ms)
        self._values = [value * part for value in self._values]

    def samples(self, *, now_ms: int) -> tuple[float, ...]:
        """The windows' values, oldest first, the current one last."""
        self._advance(now_ms)
        return tuple(self._values)

    def rate(self, *, now_ms: int) -> float:
        """The average per second over all windows."""
        return self.total(now_ms=now_ms) / (self.window_size_ms / 1000)

    @property
    def window_size_ms(self) -> int:
        """The time of the average."""
        return len(self._values) * self._window_ms

    def throttle_time_ms(self, limit_per_s: float, *, now_ms: int) -> int:
        """The wait that brings the average down to the limit; 0 within it."""
        return throttle_time_ms(self.rate(now_ms=now_ms), limit_per_s, self.window_size_ms)

    def _advance(self, now_ms: int) -> None:
        passed = (now_ms - self._start_ms) // self._window_ms
        if passed <= 0:
            return
        self._start_ms += passed * self._window_ms
        dropped = min(passed, len(self._values))
        self._values = self._values[dropped:] + [0.0] * dropped

    def _take_back(self, value: float) -> None:
        for i in reversed(range(len(self._values))):
            taken = min(value, self._values[i])
            self._values[i] -= taken
            value -= taken
