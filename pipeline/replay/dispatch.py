"""Chooses algorithm and client model for a replay of candidate quotas. No Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from pipeline.errors import RefusedError
from pipeline.replay.algorithms import Algorithm, Model
from pipeline.replay.demand import BUCKETS, KEY_OF_API, Demand
from pipeline.replay.kernels import models
from pipeline.replay.kernels.deferral import deferred
from pipeline.replay.kernels.meters import MakeMeters, TokenBuckets
from pipeline.replay.kernels.ragged import Floats, Outcome, Ragged
from pipeline.replay.kernels.sampled_rate import SampledRates
from pipeline.replay.kernels.spread_rate import SpreadRates
from pipeline.replay.kernels.token_bucket import permissive_token_bucket, strict_token_bucket
from pipeline.storage.layout import CompactedDay
from quotas.entities import API_BURST_S, BURST_KEYS
from quotas.mutation_meters import MutationAlgorithm
from quotas.usage_record import UsageApi

RECORDED: Final = {
    MutationAlgorithm.TOKEN_BUCKET.value: Algorithm.TOKEN_BUCKET,
    MutationAlgorithm.RATE.value: Algorithm.RATE,
    MutationAlgorithm.SPREAD_RATE.value: Algorithm.SPREAD,
}
"""Algorithms by their names in records."""


def recorded_algorithm(days: Iterable[CompactedDay], *, option: str) -> Algorithm:
    """The algorithm for controller mutations, from the newest day whose lines name it. Default: a token bucket.

    Args:
        days: the days.
        option: the job's option that names an algorithm for mutations, for the error.

    Raises:
        RefusedError: the lines of that day name several algorithms, or an unknown one.
    """
    newest = max((day for day in days if day.algorithms), key=lambda day: day.date, default=None)
    if newest is None:
        return Algorithm.TOKEN_BUCKET
    told = {name: gw for gw, names in newest.algorithms.items() for name in names}
    if len(told) > 1 or not told.keys() <= RECORDED.keys():
        each = ", ".join(f"{name} ({gw})" for name, gw in sorted(told.items()))
        raise RefusedError(
            f"on {newest.date} controller mutations were measured by {each}: say which with {option}"
        )
    return RECORDED[next(iter(told))]


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """How to replay. None means that the replay does as the gateway does for the API."""

    algorithm: Algorithm | None = None
    model: Model | None = None
    window_num: int = 11  # quota.window.num
    window_ms: int = 1_000  # quota.window.size.seconds
    mutations: Algorithm = Algorithm.TOKEN_BUCKET
    """None: as the gateway does for mutations (`recorded_algorithm`)."""
    burst_s: float | None = None
    """Burst of the buckets of byte rates; None: byte rates have Kafka's window."""

    def of_api(self, api: UsageApi) -> ReplaySettings:
        """The same settings with a value in each field.

        Raises:
            ValueError: the combination is not supported.
        """
        mutation = api is UsageApi.MUTATION
        if api in BUCKETS and self.algorithm is None and self.model is None:
            return replace(
                self,
                algorithm=Algorithm.TOKEN_BUCKET,
                model=Model.CLOSED_LOOP,
                window_num=1,
                window_ms=int(API_BURST_S * 1000),
            )
        if self.burst_s is not None and KEY_OF_API[api] in BURST_KEYS and self.algorithm is None:
            # A bucket like that of rates per API.
            as_bucket = replace(
                self,
                algorithm=Algorithm.TOKEN_BUCKET,
                window_num=1,
                window_ms=round(self.burst_s * 1000),
                burst_s=None,
            )
            return as_bucket.of_api(api)
        model = self.model
        if model is None:
            model = (
                Model.RECORDED if mutation else Model.STRICT if api is UsageApi.CONNECT else Model.CLOSED_LOOP
            )
        if model is Model.RECORDED and not mutation:
            model = Model.CLOSED_LOOP
        algorithm = self.algorithm
        if algorithm is None:
            algorithm = Algorithm.TOKEN_BUCKET if model is Model.DEFERRAL else Algorithm.RATE
            if mutation and model is not Model.DEFERRAL:
                algorithm = self.mutations
        if model is Model.DEFERRAL and algorithm is not Algorithm.TOKEN_BUCKET:
            raise ValueError(f"the deferral model is one of the token bucket, not of {algorithm}")
        return replace(self, algorithm=algorithm, model=model)

    def by_request(self, api: UsageApi) -> bool:
        """Whether seconds are replayed as stand-ins for their requests or connections."""
        how = self.of_api(api)
        return how.model is Model.CLOSED_LOOP or how.counts_connections(api)

    def counts_connections(self, api: UsageApi) -> bool:
        """Whether connections are counted and decided as the gateway does; call on a result of `of_api`."""
        return api is UsageApi.CONNECT and self.model is Model.STRICT and self.algorithm is Algorithm.RATE


_METERS: Final[dict[Algorithm, MakeMeters]] = {
    Algorithm.TOKEN_BUCKET: TokenBuckets,
    Algorithm.RATE: SampledRates,
    Algorithm.SPREAD: SpreadRates,
}


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay.

    Attributes:
        outcome: by series and candidate.
        requests, units: totals by series, of which `outcome` has parts.
    """

    outcome: Outcome
    requests: Floats
    units: Floats


def replay(demand: Demand, candidates: Floats, settings: ReplaySettings) -> Replayed:
    """Replays demand under candidate quotas.

    Args:
        demand: days of clients.
        candidates: quotas by (series, candidate), or one row for all series.
        settings: how to replay. Each day is replayed by itself and begins with unused quotas.

    Raises:
        ValueError: the combination of algorithm and model is not supported, or a candidate is not a quota.
    """
    how = settings.of_api(demand.api)
    assert how.algorithm is not None
    ragged = demand.by_request() if settings.by_request(demand.api) else demand.by_second()
    make = _METERS[how.algorithm]
    fast = how.algorithm is Algorithm.TOKEN_BUCKET
    num, ms = how.window_num, how.window_ms
    match how.model:
        case Model.DEFERRAL:
            outcome = deferred(ragged, candidates, burst_s=num * ms / 1000)
        case Model.STRICT if fast:
            outcome = strict_token_bucket(ragged, candidates, window_num=num, window_ms=ms)
        case Model.STRICT if how.counts_connections(demand.api):
            outcome = models.connections(ragged, candidates, make, window_num=num, window_ms=ms)
        case Model.STRICT:
            outcome = models.strict(ragged, candidates, make, window_num=num, window_ms=ms)
        case Model.PERMISSIVE if fast:
            outcome = permissive_token_bucket(ragged, candidates, window_num=num, window_ms=ms)
        case Model.PERMISSIVE:
            outcome = models.permissive(ragged, candidates, make, window_num=num, window_ms=ms)
        case Model.RECORDED:
            assert demand.events is not None
            outcome = models.recorded(demand.events, candidates, make, window_num=num, window_ms=ms)
        case _:
            # The throttle times of the request quota are capped at one window (KIP-124).
            cap_ms = ms if demand.api is UsageApi.REQUEST else models.CAP_MS
            outcome = models.closed_loop(
                ragged,
                candidates,
                make,
                window_num=num,
                window_ms=ms,
                cap_ms=cap_ms,
                bounded=how.algorithm is Algorithm.RATE,
            )
    return Replayed(outcome, ragged.total_weights(), ragged.total_units())


def replay_all(
    demands: Sequence[Demand], candidates: Sequence[Floats], settings: ReplaySettings
) -> list[Replayed]:
    """As `replay` of each, with the same settings. Where that is faster, replays all clients at once.

    Args:
        demands: of different APIs.
        candidates: for each demand quotas by (series, candidate), with the same number of candidates.
        settings: see `replay`.
    """
    hows = [settings.of_api(demand.api) for demand in demands]
    if len(demands) < 2 or any(
        how.model is not Model.STRICT
        or how.algorithm is not Algorithm.TOKEN_BUCKET
        or (how.window_num, how.window_ms) != (settings.window_num, settings.window_ms)
        for how in hows
    ):
        return [replay(demand, quotas, settings) for demand, quotas in zip(demands, candidates, strict=True)]
    # Each rank has an operation's fixed cost, however few clients it has.
    ragged = Ragged.joined([demand.by_second() for demand in demands])
    outcome = strict_token_bucket(
        ragged, np.concatenate(candidates), window_num=settings.window_num, window_ms=settings.window_ms
    )
    requests, units = ragged.total_weights(), ragged.total_units()
    borders = np.cumsum([0, *map(len, demands)]).tolist()
    return [
        Replayed(outcome.of(begin, end), requests[begin:end], units[begin:end])
        for begin, end in pairwise(borders)
    ]


def grid(low: float, high: float, count: int) -> Floats:
    """Candidates as multiples, each larger than the one before by the same factor.

    Raises:
        ValueError: the bounds or the number are out of range.
    """
    if not 0 < low <= high < np.inf or not 1 <= count <= 1_024:
        raise ValueError(
            f"a grid is LOWEST..HIGHESTxCOUNT with 0 < LOWEST <= HIGHEST, 1 to 1024, not {low}..{high}x{count}"
        )
    return np.geomspace(low, high, count)
