"""``sluice-pipeline compact``: rewrites days as one row per client, and makes their tables."""

from __future__ import annotations

import argparse
import datetime

from pipeline.errors import ArgumentError, Exit, JobError
from pipeline.jobs.arguments import (
    add_allow_open,
    add_days,
    add_expectation,
    add_master,
    add_out,
    check_days,
    expectation_of,
)
from pipeline.recommend.doubt import doubts_of
from pipeline.spark.session import open_session
from quotas.entities import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    add_out(parser)
    parser.add_argument(
        "--date",
        help="2026-11-21, all, or new: days that got lines since they were compacted (new; all with --from or --to)",
    )
    add_days(parser, "to compact again")
    add_allow_open(parser)
    add_expectation(parser)
    add_master(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Runs the job."""
    # `--help` must work without the packages of the extra.
    from pipeline.client_tables.making import make_missing
    from pipeline.maintenance.compaction import compact
    from pipeline.spark.runner import OnSpark

    out = arguments.out.rstrip("/")
    check_days(arguments)
    some = arguments.first is not None or arguments.last is not None
    date = arguments.date or ("all" if some else "new")
    if date not in ("all", "new"):
        _check_date(date)
        if some:
            raise ArgumentError("--date of one day, and --from or --to: give one of them")
    expectation = expectation_of(arguments)
    spark = open_session("sluice compact", master=arguments.master)
    runner = OnSpark(spark)
    try:
        try:
            compacted = compact(
                runner,
                out,
                expectation,
                date=date,
                first=arguments.first,
                last=arguments.last,
                allow_open=arguments.allow_open,
            )
        except JobError:
            # If one day is refused, the tables of other days are still made, so that `recommend` can use them.
            make_missing(runner, out)
            raise
        made = make_missing(runner, out)
    finally:
        spark.stop()
    for date, day in compacted.items():
        share = f"{day.completeness:.2%} complete"
        so_far = ", which is not closed: it is marked so" if day.open else ""
        print(
            f"{date}: {counted(day.rows, 'row')} of {counted(day.keys, 'client-API pair')}, {share}{so_far}"
        )
    for doubt in doubts_of(compacted.values()):
        print(f"{doubt.date}: {doubt.gateway} {doubt.reason}")
    if not compacted:
        print("nothing new to compact")
    for date in sorted(set(made) - compacted.keys()):
        print(f"{date}: tables of clients made")
    return Exit.DONE if compacted or made else Exit.NOTHING_TO_DO


def _check_date(text: str) -> None:
    try:
        datetime.date.fromisoformat(text)
    except ValueError as exc:
        raise ArgumentError(f"--date {text!r}: say a day as 2026-11-21, all, or new") from exc
