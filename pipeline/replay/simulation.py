"""The result of a simulation as a table.

Replays compacted days with the gateway's own algorithms (`pipeline.replay.kernels`), day by day and gateway by
gateway. Each day begins with unused quotas, which matters for its first eleven seconds. The result has one row per
client, day and candidate.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.replay.candidates import Candidates, unpacked
from pipeline.replay.demand import Demand, demands
from pipeline.replay.dispatch import Replayed, ReplaySettings, replay_all
from pipeline.replay.kernels.ragged import Floats
from pipeline.replay.kernels.split import MOST
from pipeline.storage.compacted_days import ELEMENTS_AT_ONCE, CompactedDays, Work
from pipeline.storage.entity_days import ENTITY, FOR_REQUESTS, Scope
from pipeline.storage.layout import KEY
from quotas.usage_record import UsageApi

NUMBERS: Final = {
    "candidate": "int",  # index of the quota among a client's candidates
    "quota": "double",
    "requests": "double",  # records, if the model does not look at requests
    "units": "double",
    "throttled": "double",
    "throttled_units": "double",
    "wait_ms": "double",
    "late_ms": "double",
}
"""The columns besides the names (`ENTITY`), and their Spark types."""

RESULT: Final = ", ".join(
    [*(f"`{name}` {KEY[name]}" for name in ENTITY), *(f"`{name}` {kind}" for name, kind in NUMBERS.items())]
)
"""The result as Spark DDL; see `pipeline.replay.kernels.ragged.Outcome` for the numbers."""


WIDE: Final = 2 * ELEMENTS_AT_ONCE
"""Recorded seconds that are replayed at once if requests are not looked at: 600 MB."""


def simulate(
    days: CompactedDays,
    candidates: Candidates,
    settings: ReplaySettings,
    *,
    scope: Scope = Scope.GATEWAY,
    apis: Collection[UsageApi] = tuple(UsageApi),
    retries: bool = False,
) -> Any:
    """The result as a DataFrame with the columns of `RESULT`.

    Args:
        days: the days to replay.
        candidates: quotas to try.
        settings: how to replay.
        scope: whether brokers count together.
        apis: the APIs to replay.
        retries: whether retries of refused mutations count.
    """
    packed = pickle.dumps(candidates)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return simulator(unpacked(packed), settings, retries=retries)(batches)

    by_request = any(settings.by_request(api) for api in apis)
    return days.map_entities(
        work,
        RESULT,
        scope=scope,
        arrays=FOR_REQUESTS if by_request else (),
        apis=apis,
        # A second becomes up to `MOST` requests. A rank costs less per client the more clients it has.
        elements_at_once=ELEMENTS_AT_ONCE // MOST if by_request else WIDE,
    )


def simulator(candidates: Candidates, settings: ReplaySettings, *, retries: bool = False) -> Work:
    """The function that each worker applies to its batches of clients' days; needs no Spark."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from simulate_batch(list(demands(batch, retries=retries)), candidates, settings)

    return work


def simulate_batch(
    found: Sequence[Demand], candidates: Candidates, settings: ReplaySettings
) -> Iterator[pa.RecordBatch]:
    """The result for the clients of each API, with the candidates of a client one after the other."""
    quotas = [candidates.for_demand(demand) for demand in found]
    limited = [np.isfinite(each) & (each > 0) for each in quotas]
    # A client without a quota, or without demand to make a grid of, gets a quota that never throttles.
    none = np.finfo(np.float64).max / 1e6
    tried = [np.where(known, each, none) for known, each in zip(limited, quotas, strict=True)]
    for of_api in zip(found, quotas, limited, replay_all(found, tried, settings), strict=True):
        yield _rows(*of_api)


def _rows(demand: Demand, quotas: Floats, limited: NDArray[np.bool_], replayed: Replayed) -> pa.RecordBatch:
    series, count = quotas.shape
    columns: dict[str, Any] = {
        name: demand.names.column(name).take(pa.array(np.repeat(np.arange(series), count))) for name in ENTITY
    }
    columns["candidate"] = np.tile(np.arange(count, dtype=np.int32), series)
    columns["quota"] = pa.array(quotas.ravel(), mask=~limited.ravel())
    columns["requests"] = np.repeat(replayed.requests, count)
    columns["units"] = np.repeat(replayed.units, count)
    for name in ("throttled", "throttled_units", "wait_ms", "late_ms"):
        columns[name] = getattr(replayed.outcome, name).ravel()
    return pa.RecordBatch.from_pydict(columns)
