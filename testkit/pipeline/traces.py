"""Demand of made-up clients, second by second, from a seed, with kinds of clients that occur in practice.

`demand(seed, entities, days)` yields one `Day` after the other. The same arguments give the same numbers. A day of an
entity does not depend on the number of entities or days. Sizes are lognormal (sigma 2: a few clients make most of the
traffic). Kinds: steady, diurnal, Pareto on-off, cron, and admin (bursts of controller mutations). All but cron and
admin have rare bursts. Sizes drift by 12 % a day, 2 % of the clients change level on a day permanently, and most do
less at weekends (days 5 and 6 of each seven).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

DAY_S: Final = 86_400
KINDS: Final = ("steady", "diurnal", "on_off", "cron", "admin")
_SHARES: Final = (0.25, 0.25, 0.25, 0.15, 0.10)

_SIZE_SIGMA: Final = 2.0
_MEDIAN_BYTES_PER_S: Final = 40_000.0
_DRIFT_PER_DAY: Final = 0.12
_LEVEL_SHIFT_SHARE: Final = 0.02
_BURST_SHARE: Final = 0.3  # of the days of an entity
_LONGEST_HISTORY_DAYS: Final = 400

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Entity:
    """A client and its properties."""

    index: int
    kind: str
    user: str
    client_id: str
    api: str
    """produce or fetch (units are bytes); mutation for admin (units are partitions)."""
    size: float
    """Units per active second on day 0, without noise."""
    activity: float
    """Share of seconds with a request; its exact meaning depends on the kind."""
    request_units: float
    weekend: float
    """Factor of its demand on the last two days of a week."""


@dataclass(frozen=True, slots=True)
class Day:
    """A day's demand of all entities, one after the other.

    Entity `i` has the elements `starts[i]:starts[i + 1]` of the four arrays, ordered by `t`, with each second at most
    once. It has the elements `event_starts[i]:event_starts[i + 1]` of the events. Only admins have events, and the
    sums include them.
    """

    index: int
    starts: NDArray[np.int64]
    """Shape [entities + 1]."""
    t: Ints
    """Second of the day, 0 to 86399."""
    units: Floats
    """Units requested in that second; whole numbers, at least 1."""
    requests: Ints
    """Number of requests, at least 1."""
    max_units: Floats
    """Units of the largest request: at least units / requests, at most units; whole numbers."""
    event_starts: NDArray[np.int64]
    event_ms: Ints
    """Millisecond of the day, rising within an entity."""
    event_units: Ints
    """Partitions of one topic."""

    @property
    def rows(self) -> int:
        """Entity-seconds with demand."""
        return len(self.t)


@lru_cache(maxsize=4)
def entities_of(seed: int, count: int) -> tuple[Entity, ...]:
    """The entities of `demand`."""
    return tuple(_entity(seed, index) for index in range(count))


def demand(seed: int, entities: int, days: int, *, first_day: int = 0) -> Iterator[Day]:
    """The entities' demand, day by day; about 9,000 rows per entity and day.

    Args:
        seed: the same seed gives the same demand.
        entities: their number, 1 or more.
        days: the number of days.
        first_day: number of the first day; sizes have drifted by then.
    """
    for day in range(first_day, first_day + days):
        yield day_of(seed, entities, day)


def day_of(seed: int, entities: int, day: int, *, until_s: int = DAY_S, bursts: float = _BURST_SHARE) -> Day:
    """One day of `demand`, or its beginning.

    Args:
        seed: see `demand`.
        entities: see `demand`.
        day: 0 is a Monday.
        until_s: demand at or after this second of the day is left out.
        bursts: share of an entity's days with a burst of half a minute to five.
    """
    parts: list[tuple[Ints, Floats, Ints, Floats]] = []
    events: list[tuple[Ints, Ints]] = []
    for entity in entities_of(seed, entities):
        rng = np.random.default_rng([seed, 1, entity.index, day])
        level = _level(seed, entity.index, day) * (entity.weekend if day % 7 >= 5 else 1.0)
        if entity.kind == "admin":
            ms, units = _mutations(entity, level, rng)
            ms, units = ms[ms < until_s * 1000], units[ms < until_s * 1000]
            events.append((ms, units))
            parts.append(_per_second(ms, units))
        else:
            t, rate = _rate(entity, level, rng, bursts)
            part = _requests(entity, t, rate, rng)
            kept = part[0] < until_s
            parts.append((part[0][kept], part[1][kept], part[2][kept], part[3][kept]))
            events.append((np.empty(0, np.int32), np.empty(0, np.int32)))
    return Day(
        index=day,
        starts=_starts([len(part[0]) for part in parts]),
        t=np.concatenate([part[0] for part in parts]),
        units=np.concatenate([part[1] for part in parts]),
        requests=np.concatenate([part[2] for part in parts]),
        max_units=np.concatenate([part[3] for part in parts]),
        event_starts=_starts([len(event[0]) for event in events]),
        event_ms=np.concatenate([event[0] for event in events]),
        event_units=np.concatenate([event[1] for event in events]),
    )


def _entity(seed: int, index: int) -> Entity:
    rng = np.random.default_rng([seed, 0, index])
    kind = str(rng.choice(KINDS, p=_SHARES))
    size = float(np.exp(rng.normal(0.0, _SIZE_SIGMA)))
    # Large clients are active more often than small clients.
    activity = float(np.clip(0.085 * size**0.3 * np.exp(rng.normal(0.0, 0.6)), 0.002, 1.0))
    api = "mutation" if kind == "admin" else str(rng.choice(["produce", "fetch"]))
    return Entity(
        index=index,
        kind=kind,
        user=f"team-{index % 97}",
        client_id=f"{kind}-{index}",
        api=api,
        size=min(max(size, 0.05), 20.0) if kind == "admin" else size * _MEDIAN_BYTES_PER_S,
        activity=activity,
        request_units=float(np.exp(rng.normal(9.5, 0.8))),
        weekend=float(rng.uniform(0.2, 1.1)),
    )


@lru_cache(maxsize=100_000)
def _levels(seed: int, index: int) -> Floats:
    rng = np.random.default_rng([seed, 2, index])
    steps = rng.normal(0.0, _DRIFT_PER_DAY, _LONGEST_HISTORY_DAYS)
    shifts = rng.random(_LONGEST_HISTORY_DAYS) < _LEVEL_SHIFT_SHARE
    steps += shifts * rng.choice([-1.0, 1.0], _LONGEST_HISTORY_DAYS) * np.log(3.0)
    steps[0] = 0.0
    return np.exp(np.cumsum(steps))


def _level(seed: int, index: int, day: int) -> float:
    return float(_levels(seed, index)[day % _LONGEST_HISTORY_DAYS])


def _rate(entity: Entity, level: float, rng: np.random.Generator, bursts: float) -> tuple[Ints, Floats]:
    """Active seconds, and the expected units of each."""
    size = entity.size * level
    if entity.kind == "cron":
        t = _cron_seconds(entity, rng)
        return t, np.full(len(t), size * 4)
    if entity.kind == "on_off":
        t = _on_seconds(entity, rng)
        factor = np.ones(len(t))
    else:
        chance = np.full(DAY_S, entity.activity, np.float32)
        if entity.kind == "diurnal":
            peak_s = 3600 * (13 + entity.index % 5)
            chance *= 1 + 0.9 * np.cos((np.arange(DAY_S) - peak_s) * np.float32(2 * np.pi / DAY_S))
        t = np.flatnonzero(rng.random(DAY_S, np.float32) < chance).astype(np.int32)
        factor = np.maximum(chance[t] / entity.activity, 0.1).astype(np.float64)
    if rng.random() < bursts:
        start, length = rng.integers(0, DAY_S - 600), rng.integers(30, 300)
        burst = np.arange(start, start + length, dtype=np.int32)
        strength = rng.uniform(3, 12)
        factor = np.concatenate([factor[(t < start) | (t >= start + length)], np.full(length, strength)])
        t = np.concatenate([t[(t < start) | (t >= start + length)], burst])
        order = np.argsort(t, kind="stable")
        t, factor = t[order], factor[order]
    return t, size * factor


def _cron_seconds(entity: Entity, rng: np.random.Generator) -> Ints:
    period_s = (300, 900, 3600, 21_600)[entity.index % 4]
    length_s = int(np.clip(period_s * entity.activity, 5, period_s // 4))
    begins = np.arange(entity.index * 37 % period_s, DAY_S, period_s)
    begins = begins + rng.integers(0, 5, len(begins))
    t = (begins[:, None] + np.arange(length_s)[None, :]).ravel()
    return t[t < DAY_S].astype(np.int32)


def _on_seconds(entity: Entity, rng: np.random.Generator) -> Ints:
    # On for 20 s, off for as long as the activity requires, both heavy-tailed (alpha 1.5: mean 3 times the minimum).
    count = int(DAY_S / 20) + 10
    on = np.minimum(7 * (1 + rng.pareto(1.5, count)), 7_200)
    off = np.minimum(7 / entity.activity * (1 + rng.pareto(1.5, count)), 40_000)
    begins = np.concatenate([[0.0], np.cumsum(on + off)[:-1]]) + rng.uniform(0, 7 / entity.activity)
    is_on = np.zeros(DAY_S, bool)
    for begin, length in zip(begins[begins < DAY_S], on[begins < DAY_S], strict=True):
        is_on[int(begin) : int(begin + length) + 1] = True
    return np.flatnonzero(is_on).astype(np.int32)


def _requests(
    entity: Entity, t: Ints, rate: Floats, rng: np.random.Generator
) -> tuple[Ints, Floats, Ints, Floats]:
    """Adds noise, and divides each second's units into requests."""
    units = np.maximum(1.0, np.rint(rate * np.exp(rng.normal(-0.18, 0.6, len(t)))))
    requests = np.clip(rng.poisson(units / entity.request_units), 1, 10_000).astype(np.int32)
    requests = np.minimum(requests, units.astype(np.int64)).astype(np.int32)
    mean = units / requests
    largest = np.ceil(np.minimum(units, mean * (1 + rng.exponential(0.5, len(t)))))
    return t, units, requests, np.where(requests == 1, units, largest)


def _mutations(entity: Entity, level: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Bursts of topic creations: times, and the number of partitions of each topic."""
    times, sizes = [], []
    for _ in range(1 + rng.poisson(6)):
        begin, count = rng.integers(0, DAY_S - 400), 1 + rng.poisson(20 * min(entity.size * level, 20.0))
        gaps = rng.exponential(rng.choice([20.0, 200.0, 1500.0]), count)
        times.append(begin * 1000 + np.cumsum(gaps))
        sizes.append(np.minimum(1 + rng.geometric(0.12, count), 200))
    ms, units = np.concatenate(times).astype(np.int64), np.concatenate(sizes)
    order = np.argsort(ms, kind="stable")
    inside = ms[order] < DAY_S * 1000
    return ms[order][inside].astype(np.int32), units[order][inside].astype(np.int32)


def _per_second(ms: Ints, units: Ints) -> tuple[Ints, Floats, Ints, Floats]:
    t, first, count = np.unique(ms // 1000, return_index=True, return_counts=True)
    if not len(t):
        return t.astype(np.int32), np.empty(0), np.empty(0, np.int32), np.empty(0)
    total = np.add.reduceat(units, first).astype(np.float64)
    return (
        t.astype(np.int32),
        total,
        count.astype(np.int32),
        np.maximum.reduceat(units, first).astype(np.float64),
    )


def _starts(lengths: list[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
