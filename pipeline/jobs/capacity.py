"""``sluice-pipeline capacity``: the share of each client in a cluster's capacity, and when the cluster is full.

Divides the capacity by the required rates of clients or teams, adds the use of all in each second, and forecasts the
peaks of days. Writes `index.html` for people, `capacity.json` with everything, `capacity.csv` with a row for each
client or team, and `forecast.csv` with a row for each day.
"""

from __future__ import annotations

import argparse
import time
from typing import Final

from pipeline.errors import ArgumentError, Exit, NotYetCompleteError
from pipeline.jobs.arguments import (
    add_burst,
    add_capacity,
    add_days,
    add_expectation,
    add_out,
    add_runner,
    add_scope,
    burst_of,
    check_days,
    expectation_of,
    open_runner,
    parse_capacity,
    scope_of,
)
from pipeline.recommend.recommendation import HISTORY_DAYS
from pipeline.storage.layout import results_dir
from quotas.entities import counted

_MOST_DAYS: Final = 3_650


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    add_out(parser, "the pipeline's folder; it has compacted days")
    add_capacity(parser, required=True)
    parser.add_argument(
        "--claims",
        metavar="FILE",
        help="claims.toml: tiers, weights, floors and ceilings of clients or teams",
    )
    parser.add_argument(
        "--groups", metavar="FILE", help="groups.toml: its teams claim in place of their clients"
    )
    add_days(parser, "of the forecast")
    parser.add_argument(
        "--history",
        type=int,
        default=HISTORY_DAYS,
        metavar="DAYS",
        help="the last of these days, for what clients require and for sums (%(default)s)",
    )
    parser.add_argument(
        "--horizon", type=int, default=90, metavar="DAYS", help="for how many days to forecast (%(default)s)"
    )
    parser.add_argument(
        "--usable",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="the part of the capacity that is left if brokers fail, for what tiers keep then (1)",
    )
    parser.add_argument("--target", type=float, default=0.01, help="share of use that may wait (0.01)")
    parser.add_argument("--margin", type=float, default=1.25, help="factor on the required rate (1.25)")
    parser.add_argument(
        "--allow-gaps",
        action="store_true",
        help="leave out no day, even if records are missing or occur twice",
    )
    add_scope(parser)
    add_burst(parser)
    add_expectation(parser)
    add_runner(parser)
    parser.add_argument("--to-dir", metavar="DIR", help="where to write; else below OUT/results/capacity")


def run(arguments: argparse.Namespace) -> Exit:
    """Runs the job."""
    # `--help` must work without the packages of the extra.
    from pipeline.capacity.claims import claims_of
    from pipeline.capacity.page import render, summary, to_csv, to_forecast_csv, to_json
    from pipeline.capacity.study import Question, study
    from pipeline.recommend.required_rates import Windows
    from pipeline.storage.compacted_days import published_days
    from pipeline.storage.files import local_result
    from pipeline.storage.losses import with_losses
    from pipeline.teams.members import read_members

    if not 0 <= arguments.target < 1 or not arguments.margin >= 1 or not 0 < arguments.usable <= 1:
        raise ArgumentError("--target is in [0, 1), --margin at least 1, --usable above 0 and at most 1")
    if arguments.history < 1 or not 1 <= arguments.horizon <= _MOST_DAYS:
        raise ArgumentError(f"--history is at least 1, and --horizon 1 to {_MOST_DAYS} days")
    check_days(arguments)
    capacity = parse_capacity(arguments.capacity)
    if not capacity or not all(value > 0 for value in capacity.values()):
        raise ArgumentError("--capacity: name at least one API, each with more than 0")
    members = read_members(arguments.groups) if arguments.groups else None
    teams = members.teams.values() if members is not None else ()
    tiers = {team.group.name: team.tier for team in teams if team.tier is not None}
    question = Question(
        capacity,
        claims_of(arguments.claims, tiers),
        members,
        arguments.usable,
        arguments.target,
        arguments.margin,
        Windows(burst_s=burst_of(arguments)),
        arguments.history,
        arguments.horizon,
        arguments.allow_gaps,
    )
    expectation = expectation_of(arguments)
    made_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    stamp = made_at.replace("-", "").replace(":", "")
    folder = local_result(arguments.to_dir, "--to-dir", results_dir(arguments.out, "capacity", stamp))
    found = with_losses(
        published_days(arguments.out, arguments.first, arguments.last), arguments.out, expectation
    )
    days = [day for day in found if not day.open and not expectation.is_open(day.date)]
    if not days:
        asked = "" if arguments.first is arguments.last is None else " of those that --from and --to ask for"
        raise NotYetCompleteError(
            f"no closed day{asked} is compacted: a day is closed {arguments.grace} minutes after midnight UTC at "
            "the earliest; run `sluice-pipeline compact` then"
        )
    scope = scope_of(arguments)
    with open_runner(arguments, "sluice capacity") as runner:
        answer = study(runner, arguments.out, days, scope, question)
    folder.mkdir(parents=True, exist_ok=True)
    # This file first, because `erase` finds the others by it.
    (folder / "capacity.json").write_text(to_json(answer, made_at), encoding="utf-8")
    (folder / "capacity.csv").write_text(to_csv(answer), encoding="utf-8")
    (folder / "forecast.csv").write_text(to_forecast_csv(answer), encoding="ascii")
    (folder / "index.html").write_text(render(answer), encoding="utf-8")
    print(f"{counted(len(answer.days), 'day')}, the last {len(answer.history)} for shares and sums")
    for text in summary(answer):
        print(text)
    print(folder / "index.html")
    return Exit.DONE if answer.of_key else Exit.NOTHING_TO_DO
