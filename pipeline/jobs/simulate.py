"""``sluice-pipeline simulate``: replays recorded demand under candidate quotas.

Writes the table of `pipeline.replay.simulation` to `results/sim/run=...`, and prints how much would have been
throttled over all clients.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import ArgumentError, Exit, NotYetCompleteError
from pipeline.jobs.arguments import (
    add_burst,
    add_days,
    add_master,
    add_out,
    add_scope,
    add_windows,
    burst_of,
    check_days,
    scope_of,
)
from pipeline.plans.text import number, table
from pipeline.replay.algorithms import Algorithm, Model
from pipeline.spark.session import open_session
from pipeline.storage.layout import results_dir
from quotas.entities import QuotaEntity, counted
from quotas.resolution import TrackerKey
from quotas.usage_record import OTHER, UsageApi

if TYPE_CHECKING:
    from pipeline.replay.candidates import Candidates
    from pipeline.replay.dispatch import ReplaySettings

_MOST_NOTES: Final = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    add_out(parser, "the pipeline's folder; it has compacted days")
    add_days(parser)
    parser.add_argument(
        "--candidates",
        default="grid:0.5..64x64",
        help="plan.json, value:QUOTA, or grid:LOWEST..HIGHESTxCOUNT in multiples of each client's mean (%(default)s)",
    )
    parser.add_argument("--api", choices=list(UsageApi), help="only this one")
    parser.add_argument(
        "--algo",
        choices=list(Algorithm),
        help="for every API; else what the gateway uses for the API, by its newest records",
    )
    parser.add_argument(
        "--mutations",
        choices=list(Algorithm),
        help="how controller mutations are measured; else as the newest records say",
    )
    parser.add_argument(
        "--model", choices=list(Model), help="what throttled clients do; else as the gateway makes them"
    )
    add_scope(parser)
    add_windows(parser)
    add_burst(parser)
    parser.add_argument("--retries", action="store_true", help="count retries of refused mutations as well")
    parser.add_argument("--run", metavar="NAME", help="name of the result; else the time")
    add_master(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Runs the job."""
    # `--help` must work without the packages of the extra.
    from pipeline.replay.candidates import parse_candidates
    from pipeline.replay.dispatch import recorded_algorithm
    from pipeline.replay.simulation import simulate
    from pipeline.storage.compacted_days import CompactedDays, published_days

    check_days(arguments)
    candidates = parse_candidates(arguments.candidates)
    settings = replace(_replay_settings(arguments), burst_s=candidates.burst_s or burst_of(arguments))
    if settings.algorithm is not None and settings.burst_s is not None:
        whose = "of --burst" if candidates.burst_s is None else "of the plan"
        raise ArgumentError(
            f"--algo is for every API, so the buckets {whose} would have no effect: leave out one of them. For "
            "controller mutations alone there is --mutations"
        )
    mutations = not arguments.api or arguments.api == UsageApi.MUTATION
    found = published_days(arguments.out, arguments.first, arguments.last)
    if mutations and settings.algorithm is None and not arguments.mutations:
        settings = replace(settings, mutations=recorded_algorithm(found, option="--mutations"))
    if not found:
        raise NotYetCompleteError(f"no compacted day in {arguments.out}: run `sluice-pipeline compact` first")
    scope = scope_of(arguments)
    spark = open_session("sluice-simulate", master=arguments.master)
    days = CompactedDays.of(spark, arguments.out, arguments.first, arguments.last)
    where = results_dir(arguments.out, "sim", arguments.run or time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
    result = simulate(
        days,
        candidates,
        settings,
        scope=scope,
        apis=[UsageApi(arguments.api)] if arguments.api else tuple(UsageApi),
        retries=arguments.retries,
    )
    result.write.mode("overwrite").parquet(where)
    written = spark.read.parquet(where)
    print(_summary(written))
    for note in _not_replayed(written, candidates):
        print(note)
    print(where)
    return Exit.DONE


def _replay_settings(arguments: argparse.Namespace) -> ReplaySettings:
    """The replay settings that the arguments describe.

    Raises:
        ArgumentError: the arguments contradict each other.
    """
    from pipeline.replay.dispatch import ReplaySettings

    if not 1 <= arguments.window_num <= 1_000 or not 1 <= arguments.window_ms <= 3_600_000:
        raise ArgumentError(
            "--window-num is 1 to 1000 and --window-ms 1 to 3600000, "
            f"not {arguments.window_num} and {arguments.window_ms}"
        )
    if arguments.algo and arguments.mutations:
        raise ArgumentError("--algo is for every API: with --mutations, leave it out")
    settings = ReplaySettings(
        algorithm=Algorithm(arguments.algo) if arguments.algo else None,
        model=Model(arguments.model) if arguments.model else None,
        window_num=arguments.window_num,
        window_ms=arguments.window_ms,
        mutations=Algorithm(arguments.mutations or Algorithm.TOKEN_BUCKET),
    )
    try:
        settings.of_api(UsageApi.PRODUCE)
    except ValueError as exc:
        raise ArgumentError(f"--algo and --model: {exc}") from None
    return settings


def _not_replayed(result: Any, candidates: Candidates) -> list[str]:
    """Notes about quotas of a plan that this replay does not show."""
    if not candidates.plan:
        return []
    rows = result.where("quota is null").select("api", "user", "client_id").distinct()
    together: dict[TrackerKey, set[TrackerKey]] = {}
    others = False
    for row in rows.toLocalIterator():
        client = TrackerKey(row["user"], row["client_id"])
        others = others or client.client_id == OTHER
        counter = candidates.shared_counter(UsageApi(row["api"]), *client)
        if counter is not None:
            together.setdefault(counter, set()).add(client)
    most_first = sorted(together, key=lambda counter: (-len(together[counter]), counter))
    notes = [
        f"{QuotaEntity(user=counter.user or None, client_id=counter.client_id or None)} would count "
        f"{counted(len(together[counter]), 'client')} of the records together: not replayed"
        for counter in most_first[:_MOST_NOTES]
    ]
    if len(together) > _MOST_NOTES:
        notes.append(f"and so would {counted(len(together) - _MOST_NOTES, 'counter')} more")
    if others:
        notes.append(f"{OTHER}, the sum of further clients, is not replayed")
    for what, names in (("groups", candidates.groups), ("prefixes", candidates.prefixes)):
        if names:
            notes.append(f"quotas of {what} are not replayed: {', '.join(names)}")
    return notes


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
