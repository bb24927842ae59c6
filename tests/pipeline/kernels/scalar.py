"""The gateway's own classes, one record at a time: what the kernels must equal."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from pipeline.replay.kernels.ragged import Pace, Ragged
from quotas.entities import QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.mutation_meters import Meter, MutationAlgorithm, meter_factory
from quotas.rate import SampledRate
from quotas.rate_quotas import RateQuotas, RateSettings

Series = list[tuple[int, float]]
"""Records of one client: when (ms) and how many units."""


@dataclass
class Told:
    """The waits of one client under one quota."""

    throttled: float = 0
    units: float = 0.0
    wait_ms: float = 0
    late_ms: float = 0


def meter(algorithm: MutationAlgorithm, rate: float, now_ms: int, *, window_num: int, window_ms: int) -> Meter:
    return meter_factory(algorithm, window_num=window_num, window_ms=window_ms)(rate, now_ms)


def strict(series: Series, make: Callable[[int], Meter]) -> Told:
    """As `MutationQuotas.charge` with strict=True; `units` are those that were taken."""
    told = Told()
    if not series:
        return told
    one = make(series[0][0])
    for now_ms, units in series:
        wait_ms = one.throttle_time_ms(now_ms=now_ms)
        if wait_ms > 0:
            told.throttled += 1
            told.wait_ms += wait_ms
        else:
            told.units += units
            one.record(units, now_ms=now_ms)
    return told


def connections(series: Series, rate: float, *, window_num: int, window_ms: int) -> Told:
    """As `ConnectionQuotas` with an address: counted when it is decided, and not when it is refused."""
    told = Told()
    if not series:
        return told
    one = SampledRate(window_num, window_ms, now_ms=series[0][0])
    allowance = rate * (window_num - 1) * window_ms / 1000
    for now_ms, units in series:
        wait_ms = min(window_ms, one.record_and_check(units, rate, allowance, now_ms=now_ms))
        if wait_ms > 0:
            one.record(-units, now_ms=now_ms)
            told.throttled += 1
            told.wait_ms += wait_ms
    return told


def permissive(series: Series, make: Callable[[int], Meter]) -> Told:
    """As `MutationQuotas.charge` with strict=False; `units` are those beyond the tokens."""
    told = Told()
    if not series:
        return told
    one = make(series[0][0])
    for now_ms, units in series:
        tokens = one.tokens(now_ms=now_ms)
        told.units += max(0.0, units - max(0.0, tokens))
        one.record(units, now_ms=now_ms)
        wait_ms = one.throttle_time_ms(now_ms=now_ms)
        told.throttled += wait_ms > 0
        told.wait_ms += wait_ms
    return told


def byte_rate(
    series: Series,
    rate: float,
    *,
    window_num: int,
    window_ms: int,
    thinks_ms: list[int] | None = None,
    connections: int = 1,
    bounded: bool = False,
) -> Told:
    """As the gateway's byte rates: `RateTracker.record`, and connections that wait as they are asked to.

    `thinks_ms`: for how long one is silent, after it may send again, before each of its records.
    """
    told = Told()
    limits = Limits()
    limits.set(QuotaEntity(user="a"), QuotaKey.REQUEST_PERCENTAGE, rate)  # a key that takes fractions
    settings = RateSettings(window_num=window_num, window_ms=window_ms)
    quotas = RateQuotas(limits, QuotaKey.REQUEST_PERCENTAGE, settings)
    last_ms = -(2**62)
    free_ms, unheld_ms = [last_ms] * connections, [last_ms] * connections
    for (wanted_ms, units), think_ms in zip(series, thinks_ms or [0] * len(series), strict=True):
        turn = free_ms.index(min(free_ms))
        now_ms = max(wanted_ms, free_ms[turn] + think_ms, last_ms)
        tracker = quotas.tracker("a", "", now_ms=now_ms)
        assert tracker is not None
        held_ms = max(0, math.ceil(tracker.blocked_until_ms - now_ms))
        if not bounded:
            tracker._ms_per_unit = held_ms = 0
        now_ms += held_ms
        wait_ms = tracker.record(units, now_ms=now_ms)
        last_ms, free_ms[turn] = now_ms, now_ms + wait_ms
        unheld_ms[turn] = max(wanted_ms, unheld_ms[turn] + think_ms)
        told.late_ms += now_ms - unheld_ms[turn]
        told.throttled += wait_ms + held_ms > 0
        told.units += units if wait_ms + held_ms > 0 else 0.0
        told.wait_ms += wait_ms + held_ms
    return told


def ragged(
    listed: list[Series], thinks_ms: list[list[int]] | None = None, connections: list[int] | None = None
) -> Ragged:
    """The same records as the kernels take them; `connections` by client."""
    offsets = np.cumsum([0, *(len(series) for series in listed)])
    records = [record for series in listed for record in series]
    t_ms = np.array([now_ms for now_ms, _ in records], np.int64)
    pace = None
    if thinks_ms is not None or connections is not None:
        think_ms = np.zeros(len(t_ms), np.int64)
        if thinks_ms is not None:
            think_ms[:] = [ms for each in thinks_ms for ms in each]
        turns = np.repeat(np.array(connections or [1] * len(listed), np.int64), np.diff(offsets))
        pace = Pace(think_ms, t_ms, np.full(len(t_ms), np.inf), turns)
    return Ragged.build(offsets, t_ms, np.array([units for _, units in records], np.float64), pace=pace)


# Gaps around the edges of windows and buckets, and any others.
_gaps = st.one_of(
    st.sampled_from([0, 1, 7, 99, 100, 101, 999, 1000, 1001, 10_000, 11_000, 11_001, 12_000, 60_000]),
    st.integers(0, 15_000),
)
_units = st.one_of(
    st.integers(1, 40).map(float), st.floats(0.01, 1e6, allow_subnormal=False), st.sampled_from([1e-3, 1e9])
)


@st.composite
def series(draw: st.DrawFn) -> Series:
    """Records of one client, in order of time."""
    now_ms = draw(st.integers(0, 100_000))
    records = []
    for gap_ms, units in draw(st.lists(st.tuples(_gaps, _units), max_size=40)):
        now_ms += gap_ms
        records.append((now_ms, units))
    return records


clients = st.lists(series(), min_size=1, max_size=5)
quotas = st.one_of(st.integers(1, 200).map(float), st.floats(0.01, 1e6, allow_subnormal=False))
candidates = st.lists(quotas, min_size=1, max_size=4)
windows = st.sampled_from([(11, 1000), (2, 1000), (1, 500), (3, 100), (6, 5000)])
