"""`sluice-pipeline simulate`: what candidate quotas would have done to recorded demand.

Replays packed days with the gateway's own algorithms (`pipeline.kernels`), day by day and gateway by gateway: a day
begins with nothing used, which matters for its first eleven seconds. Writes one row per client, day and candidate to
`results/sim/run=...`, and prints how much would have been throttled over all clients.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.candidates import Candidates, parse_candidates
from pipeline.demand import ENTITY, FOR_REQUESTS, Demand, demands
from pipeline.entity_days import Scope
from pipeline.errors import JobError
from pipeline.kernels.ragged import Floats
from pipeline.kernels.split import MOST
from pipeline.layout import KEY, published_days, results_dir
from pipeline.packed_days import ELEMENTS_AT_ONCE, PackedDays, Work
from pipeline.replay import Algorithm, Model, Replayed, ReplaySettings, replay_all
from pipeline.session import open_session, open_to_look
from pipeline.text import number, table
from quotas.usage_record import UsageApi

NUMBERS: Final = {
    "candidate": "int",  # number of the quota among a client's candidates
    "quota": "double",
    "requests": "double",  # records, where the model does not look at requests
    "units": "double",
    "throttled": "double",
    "throttled_units": "double",
    "wait_ms": "double",
    "late_ms": "double",
}
"""What stands beside the names (`ENTITY`): columns and their Spark types."""

RESULT: Final = ", ".join(
    [*(f"`{name}` {KEY[name]}" for name in ENTITY), *(f"`{name}` {kind}" for name, kind in NUMBERS.items())]
)
"""The result as Spark DDL; see `pipeline.kernels.ragged.Outcome` for the numbers."""


WIDE: Final = 2 * ELEMENTS_AT_ONCE
"""Recorded seconds that are replayed at once, where requests are not looked at: 600 MB."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    parser.add_argument("--out", required=True, help="the pipeline's folder; it has packed days")
    parser.add_argument("--from", dest="first", metavar="DATE", help="first day, 2026-11-21")
    parser.add_argument("--to", dest="last", metavar="DATE", help="last day")
    parser.add_argument(
        "--candidates",
        default="grid:0.5..64x64",
        help="plan.json, value:QUOTA, or grid:LOWEST..HIGHESTxCOUNT in multiples of each client's mean (%(default)s)",
    )
    parser.add_argument("--api", choices=list(UsageApi), help="only this one")
    add_replay_arguments(parser)
    parser.add_argument("--run", metavar="NAME", help="name of the result; else the time")
    add_master_argument(parser)


def add_master_argument(parser: argparse.ArgumentParser) -> None:
    """Where the job runs."""
    parser.add_argument(
        "--master", help="Spark's cluster (spark-submit's, SPARK_MASTER, or this machine's cores)"
    )


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that say how to replay."""
    parser.add_argument("--algo", choices=list(Algorithm), help="else what the gateway uses for the API")
    parser.add_argument(
        "--model", choices=list(Model), help="what throttled clients do; else as the gateway makes them"
    )
    parser.add_argument(
        "--scope", choices=list(Scope), default=Scope.GATEWAY, help="the gateway's quota scope"
    )
    parser.add_argument(
        "--window-num", type=int, default=11, help="samples of a rate, windows of a burst (11)"
    )
    parser.add_argument("--window-ms", type=int, default=1_000, help="length of one (1000)")
    parser.add_argument("--retries", action="store_true", help="count retries of refused mutations as well")


def replay_settings(arguments: argparse.Namespace) -> ReplaySettings:
    """What `add_replay_arguments` were told.

    Raises:
        JobError: they do not go together.
    """
    if not 1 <= arguments.window_num <= 1_000 or not 1 <= arguments.window_ms <= 3_600_000:
        raise JobError(
            "--window-num is 1 to 1000 and --window-ms 1 to 3600000, "
            f"not {arguments.window_num} and {arguments.window_ms}"
        )
    settings = ReplaySettings(
        algorithm=Algorithm(arguments.algo) if arguments.algo else None,
        model=Model(arguments.model) if arguments.model else None,
        window_num=arguments.window_num,
        window_ms=arguments.window_ms,
    )
    try:
        settings.of_api(UsageApi.PRODUCE)
    except ValueError as exc:
        raise JobError(f"--algo and --model: {exc}") from None
    return settings


def simulate(
    days: PackedDays,
    candidates: Candidates,
    settings: ReplaySettings,
    *,
    scope: Scope = Scope.GATEWAY,
    apis: Collection[UsageApi] = tuple(UsageApi),
    retries: bool = False,
) -> Any:
    """The result as a DataFrame with the columns of `RESULT`.

    Args:
        days: what is replayed.
        candidates: quotas to try.
        settings: how.
        scope: whether brokers count together.
        apis: of which.
        retries: whether retries of refused mutations count.
    """
    by_request = any(settings.of_api(api).model is Model.CLOSED_LOOP for api in apis)
    return days.map_entities(
        simulator(candidates, settings, retries=retries),
        RESULT,
        scope=scope,
        arrays=FOR_REQUESTS if by_request else (),
        apis=apis,
        # A second becomes so many requests. Ranks cost the less the more clients they have.
        elements_at_once=ELEMENTS_AT_ONCE // MOST if by_request else WIDE,
    )


def simulator(candidates: Candidates, settings: ReplaySettings, *, retries: bool = False) -> Work:
    """What each worker does with its batches of clients' days; needs no Spark."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from simulate_batch(list(demands(batch, retries=retries)), candidates, settings)

    return work


def simulate_batch(
    found: Sequence[Demand], candidates: Candidates, settings: ReplaySettings
) -> Iterator[pa.RecordBatch]:
    """The result for some clients of each API: for each client its candidates one after the other."""
    quotas = [candidates.for_demand(demand) for demand in found]
    limited = [np.isfinite(of_api) & (of_api > 0) for of_api in quotas]
    # A client without a quota, or without demand that a grid could be made of, is not throttled by anything.
    none = np.finfo(np.float64).max / 1e6
    tried = [np.where(known, of_api, none) for known, of_api in zip(limited, quotas, strict=True)]
    for told in zip(found, quotas, limited, replay_all(found, tried, settings), strict=True):
        yield _rows(*told)


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


def run(arguments: argparse.Namespace) -> int:
    """The job; see the module."""
    candidates = parse_candidates(arguments.candidates)
    settings = replay_settings(arguments)
    look = open_to_look("sluice-simulate", arguments.out, master=arguments.master)
    if not published_days(arguments.out, arguments.first, arguments.last, spark=look):
        raise JobError(f"no packed day in {arguments.out}: run `sluice-pipeline pack` first")
    spark = open_session("sluice-simulate", master=arguments.master)
    days = PackedDays.of(spark, arguments.out, arguments.first, arguments.last)
    where = results_dir(arguments.out, "sim", arguments.run or time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
    result = simulate(
        days,
        candidates,
        settings,
        scope=Scope(arguments.scope),
        apis=[UsageApi(arguments.api)] if arguments.api else tuple(UsageApi),
        retries=arguments.retries,
    )
    result.write.mode("overwrite").parquet(where)
    print(_summary(spark.read.parquet(where)))
    print(where)
    return 0


def _summary(result: Any) -> str:
    from pyspark.sql import functions

    share = functions.coalesce(functions.col("throttled_units") / functions.col("units"), functions.lit(0.0))
    rows = (
        result.where("units > 0 and quota is not null")
        .groupBy("api", "candidate")
        .agg(
            functions.count("*").alias("series"),
            functions.avg(share).alias("mean"),
            functions.avg((share > 0.02).cast("double")).alias("above"),
            (functions.sum("throttled_units") / functions.sum("units")).alias("of_units"),
            functions.sum("quota").alias("quota"),
        )
        .orderBy("api", "candidate")
        .collect()
    )
    head = (
        "api",
        "candidate",
        "client-days",
        "sum of quotas",
        "throttled, mean",
        "of all units",
        "clients above 2 %",
    )
    return table(
        head,
        [
            (
                row["api"],
                str(row["candidate"]),
                str(row["series"]),
                number(row["quota"]),
                f"{row['mean']:.2%}",
                f"{row['of_units']:.2%}",
                f"{row['above']:.1%}",
            )
            for row in rows
        ],
    )
