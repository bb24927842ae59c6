"""The use of all clients together in each second of a day, as recorded and as limited by quotas.

Quotas of clients may add up to more than the capacity, because not all clients use theirs at the same time. How much
more is safe depends on the sum in each second, which the peaks of clients do not give. So each client's seconds pass
through a bucket of its quota, and the results are added. Units that wait pass later, as soon as the quota allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.capacity.claims import Claimant
from pipeline.replay.demand import KEY_OF_API, demands
from quotas.entities import QuotaKey
from quotas.usage_record import UsageApi

Floats = NDArray[np.float64]

DAY_S: Final = 86_400

Quotas: TypeAlias = Mapping[tuple[QuotaKey, Claimant], float]
"""Quotas of those clients that have one, per second, over all gateways together."""

Naming: TypeAlias = Callable[[str, str, UsageApi], Claimant | None]
"""The claimant of a row with this user, client id and API; None: the row is left out."""


@dataclass(slots=True)
class Sums:
    """By quota, units in each second of a day: first as recorded, then limited by each set of quotas."""

    by_key: dict[QuotaKey, Floats] = field(default_factory=dict)

    def add(self, key: QuotaKey, seconds: Floats) -> None:
        """Adds rows over (kind, second)."""
        if key in self.by_key:
            self.by_key[key] += seconds
        else:
            self.by_key[key] = seconds.copy()

    def add_all(self, other: Sums) -> None:
        """Adds other sums of the same day."""
        for key, seconds in other.by_key.items():
            self.add(key, seconds)


def sums_of(
    batches: Iterable[pa.RecordBatch],
    naming: Naming,
    bursts_s: Mapping[QuotaKey, float],
    quotas: Iterable[Quotas],
) -> Sums:
    """The sums of a day.

    Args:
        batches: rows with `ENTITY` and seconds; those of a client and API follow one another.
        naming: whose a row is.
        bursts_s: what can be used at once, in seconds of the quota; other keys are left out.
        quotas: with which the sums are wanted.
    """
    kinds = list(quotas)
    found = Sums()
    for key, claimant, seconds in _clients(batches, naming, bursts_s):
        total = found.by_key.setdefault(key, np.zeros((1 + len(kinds), DAY_S)))
        total[0] += seconds
        for at, each in enumerate(kinds, 1):
            quota = each.get((key, claimant))
            total[at] += seconds if quota is None else passed(seconds, quota, bursts_s[key])
    return found


def _clients(
    batches: Iterable[pa.RecordBatch], naming: Naming, keys: Mapping[QuotaKey, float]
) -> Iterator[tuple[QuotaKey, Claimant, Floats]]:
    """The seconds of one client after the other, of all its gateways and brokers. The array is used again."""
    current: dict[QuotaKey, tuple[Claimant, Floats]] = {}
    for batch in batches:
        for demand in demands(batch):
            key = KEY_OF_API[demand.api]
            if key not in keys:
                continue
            ragged = demand.by_second()
            at = np.minimum(ragged.t_ms // 1000, DAY_S - 1)
            names = (demand.names.column(name).to_pylist() for name in ("user", "client_id"))
            for row, (user, client_id) in enumerate(zip(*names, strict=True)):
                claimant = naming(user, client_id, demand.api)
                if claimant is None:
                    continue
                if key in current and current[key][0] != claimant:
                    yield key, *current[key]
                    current[key][1].fill(0.0)
                    current[key] = claimant, current[key][1]
                _, seconds = current.setdefault(key, (claimant, np.zeros(DAY_S)))
                begin, end = ragged.offsets[row], ragged.offsets[row + 1]
                np.add.at(seconds, at[begin:end], ragged.units[begin:end])
    for key, (claimant, seconds) in current.items():
        yield key, claimant, seconds


def passed(seconds: Floats, quota: float, burst_s: float) -> Floats:
    """Units that a bucket lets pass in each second. Units still waiting at the end of the day are left out.

    The units that pass up to second i are the least of two sums: all units that came; and, for a second j <= i with a
    full bucket, the units before j plus the quota from j to i (Lindley, as in `pipeline.replay.kernels.deferral`).

    Args:
        seconds: units that came.
        quota: per second; 0: nothing passes.
        burst_s: the bucket's size, in seconds of the quota.
    """
    if not quota:
        return np.zeros_like(seconds)
    if seconds.max(initial=0.0) <= quota:
        return seconds
    came = np.cumsum(seconds)
    given = quota * np.arange(len(seconds))
    full = np.minimum.accumulate(came - seconds - given) + given + quota * burst_s
    return np.diff(np.minimum(came, full), prepend=0.0)


@dataclass(frozen=True, slots=True)
class Load:
    """A sum over all clients, compared with the capacity; per second.

    Attributes:
        highest: the highest second.
        p99: the 99th percentile of all seconds.
        above_s: the number of seconds in which the sum is above the capacity.
    """

    highest: float
    p99: float
    above_s: int


def load_of(seconds: Floats, capacity: float) -> Load:
    """The load over all seconds of some days."""
    return Load(
        float(seconds.max()), float(np.percentile(seconds, 99)), int(np.count_nonzero(seconds > capacity))
    )
