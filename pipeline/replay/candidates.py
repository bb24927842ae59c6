"""Candidate quotas for a replay: a grid around each client's own mean, fixed values, or those of a plan."""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from pipeline.errors import ArgumentError
from pipeline.plans.plan import Plan, PlanError
from pipeline.replay.demand import KEY_OF_API, Demand
from pipeline.replay.dispatch import grid
from pipeline.replay.kernels.ragged import Floats
from quotas.entities import BURST_KEYS, DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.name_prefixes import is_prefix
from quotas.resolution import Match, TrackerKey, match_of_tracker, resolve
from quotas.usage_record import OTHER, UsageApi

DAY_S: Final = 86_400
_GRID: Final = re.compile(r"grid:([0-9.e+-]+)\.\.([0-9.e+-]+)x([0-9]+)")
_VALUE: Final = re.compile(r"value:([0-9.e+-]+)")


@dataclass(frozen=True, slots=True)
class Candidates:
    """Quotas to try.

    Attributes:
        multiples: of each client's mean use over the whole day; empty if there are `values` or a `plan`.
        values: the same quotas for every client.
        plan: entity, key and value of each quota that the plan sets.
    """

    multiples: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    plan: tuple[tuple[QuotaEntity, QuotaKey, float], ...] = ()
    _limits: dict[QuotaKey, Limits] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The plan's quotas by key. A worker's first batch fills it for all following batches."""

    @property
    def count(self) -> int:
        """The number of candidates for each client."""
        return len(self.multiples) or len(self.values) or 1

    @property
    def burst_s(self) -> float | None:
        """Burst of the buckets that the plan sets for byte rates, in seconds; None: it sets none.

        Raises:
            ArgumentError: bursts differ, or only some byte rates have one.
        """
        bursts = {value for _, key, value in self.plan if key in BURST_KEYS.values()}
        rates = {(entity, BURST_KEYS[key]) for entity, key, _ in self.plan if key in BURST_KEYS}
        with_bucket = {(entity, key) for entity, key, _ in self.plan if key in BURST_KEYS.values()}
        if bursts and (len(bursts) > 1 or not rates <= with_bucket):
            raise ArgumentError("--candidates: byte rates of a plan are replayed with buckets of one size")
        return min(bursts, default=None)

    def for_demand(self, demand: Demand) -> Floats:
        """Quotas by (series, candidate); NaN if no quota of the plan applies."""
        if self.multiples:
            means = demand.by_second().total_units() / DAY_S
            multiples: Floats = means[:, None] * np.array(self.multiples)
            return multiples
        if self.values:
            return np.tile(np.array(self.values), (len(demand), 1))
        key = KEY_OF_API[demand.api]
        limits = self._limits_of(key)
        users, clients = (demand.names.column(name).to_pylist() for name in ("user", "client_id"))
        found = [_limit(limits, key, demand.api, user, client) for user, client in zip(users, clients)]
        return np.array([np.nan if limit is None else limit for limit in found])[:, None]

    def limit_of(self, api: UsageApi, user: str, client_id: str) -> float | None:
        """The quota of a client under the plan; None: none, or that of a `shared_counter`."""
        key = KEY_OF_API[api]
        return _limit(self._limits_of(key), key, api, user, client_id)

    def shared_counter(self, api: UsageApi, user: str, client_id: str) -> TrackerKey | None:
        """The counter in which the plan counts a client, if other clients may be counted there too.

        A replay has a counter for each row of the records, so it cannot show what such a quota does.
        """
        key = KEY_OF_API[api]
        match = _match(self._limits_of(key), key, api, user, client_id)
        return None if match is None or match.tracker_key == (user, client_id) else match.tracker_key

    @property
    def groups(self) -> list[str]:
        """The groups for which the plan has quotas."""
        return sorted({str(entity.group) for entity, _, _ in self.plan if entity.group is not None})

    @property
    def prefixes(self) -> list[str]:
        """The entities of the plan with prefixes of names."""
        return sorted(
            {
                str(entity)
                for entity, _, _ in self.plan
                if any(isinstance(name, str) and is_prefix(name) for name in (entity.user, entity.client_id))
            }
        )

    def _limits_of(self, key: QuotaKey) -> Limits:
        if key not in self._limits:
            limits = Limits()
            for entity, of_key, value in self.plan:
                if of_key is key:
                    limits.set(entity, key, value)
            self._limits[key] = limits
        return self._limits[key]


@lru_cache(maxsize=1)
def unpacked(packed: bytes) -> Candidates:
    """Unpickles candidates once for all parts that a process works on: 100,000 quotas take a second."""
    found: Candidates = pickle.loads(packed)
    return found


def parse_candidates(text: str) -> Candidates:
    """Candidates from the command line.

    Args:
        text: ``grid:0.5..64x64`` (64 multiples of each client's mean), ``value:1048576`` (one quota for all), or the
            name of a plan's file.

    Raises:
        ArgumentError: the text has none of these forms, or the plan cannot be read.
    """
    if text.startswith(("grid:", "value:")):
        try:
            if match := _GRID.fullmatch(text):
                return Candidates(multiples=tuple(grid(float(match[1]), float(match[2]), int(match[3]))))
            if match := _VALUE.fullmatch(text):
                return Candidates(values=tuple(grid(float(match[1]), float(match[1]), 1)))
        except ValueError as exc:
            raise ArgumentError(f"--candidates {text}: {exc}") from None
        raise ArgumentError(f"--candidates {text}: expected grid:LOWEST..HIGHESTxCOUNT or value:QUOTA")
    try:
        plan = Plan.from_json(Path(text).read_bytes())
    except OSError as exc:
        raise ArgumentError(f"--candidates {text}: {exc.strerror}") from None
    except PlanError as exc:
        raise ArgumentError(f"--candidates {text}: {exc}") from None
    return of_plan(plan)


def of_plan(plan: Plan) -> Candidates:
    """The quotas that would be in force with a plan, including those that it keeps."""
    return Candidates(plan=tuple((entry.entity, entry.key, entry.value) for entry in plan.entries))


def _limit(limits: Limits, key: QuotaKey, api: UsageApi, user: str, client_id: str) -> float | None:
    if client_id == OTHER:  # the sum of many clients, each with a counter of its own
        return None
    if api is UsageApi.CONNECT:
        named = limits.get(QuotaEntity(ip=client_id), key)
        return limits.get(QuotaEntity(ip=DEFAULT), key) if named is None else named
    match = _match(limits, key, api, user, client_id)
    return None if match is None or match.tracker_key != (user, client_id) else match.limit


def _match(limits: Limits, key: QuotaKey, api: UsageApi, user: str, client_id: str) -> Match | None:
    """The quota that applies to a row of the records; None without one."""
    if api is UsageApi.CONNECT or client_id == OTHER:
        return None
    # A row without one of the names is a counter of many clients, which are not known.
    whole = bool(user and client_id)
    match = (
        resolve(limits, key, user, client_id)
        if whole
        else match_of_tracker(limits, key, TrackerKey(user, client_id))
    )
    return None if match.limit is None else match
