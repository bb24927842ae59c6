"""``sluice-pipeline backtest``: checks whether quotas of earlier days would have fitted the next days.

Writes `backtest.json`, and a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict

from pipeline.errors import ArgumentError, Exit, NotYetCompleteError
from pipeline.jobs.arguments import (
    add_burst,
    add_capacity,
    add_days,
    add_expectation,
    add_out,
    add_rule,
    add_runner,
    add_scope,
    burst_of,
    check_days,
    expectation_of,
    open_runner,
    parse_capacity,
    scope_of,
)
from pipeline.recommend.doubt import NOTHING_LEFT_OUT
from pipeline.recommend.recommendation import HISTORY_DAYS, RecommendationSettings, Rule
from pipeline.storage.layout import results_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    add_out(parser, "the pipeline's folder; it has compacted days")
    add_days(parser)
    parser.add_argument(
        "--test",
        type=int,
        metavar="DAYS",
        help=f"last days to judge; else all after the first {HISTORY_DAYS}",
    )
    parser.add_argument(
        "--horizons",
        default="1,7",
        metavar="DAYS,...",
        help="for how many days quotas stay: 1 as recommended each night, 7 each week (%(default)s)",
    )
    add_capacity(parser)
    parser.add_argument(
        "--allow-gaps",
        action="store_true",
        help="leave out no day of a client, even if records are missing or occur twice",
    )
    add_expectation(parser)
    parser.add_argument("--target", type=float, default=0.01, help="share of use that may wait (0.01)")
    add_rule(parser)
    add_scope(parser)
    add_burst(parser)
    add_runner(parser)
    parser.add_argument("--result", metavar="FOLDER", help="where to write; else below OUT/results/backtest")


def run(arguments: argparse.Namespace) -> Exit:
    """Runs the job."""
    # `--help` must work without the packages of the extra.
    from pipeline.client_tables.rows import TARGETS
    from pipeline.client_tables.tables import find_clients
    from pipeline.recommend.backtest import judge_parts, markdown
    from pipeline.recommend.required_rates import ClientDays, Windows, left_out_of, peaks_of
    from pipeline.recommend.waiting import kept_target
    from pipeline.storage.compacted_days import published_days
    from pipeline.storage.files import local_result
    from pipeline.storage.losses import with_losses

    check_days(arguments)
    made_at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = local_result(arguments.result, "--result", results_dir(arguments.out, "backtest", made_at))
    expectation = expectation_of(arguments)
    found = published_days(arguments.out, arguments.first, arguments.last)
    days = [
        day
        for day in with_losses(found, arguments.out, expectation)
        if not day.open and not expectation.is_open(day.date)
    ]
    tested = arguments.test or max(1, len(days) - HISTORY_DAYS)
    if len(days) < 2 or not 1 <= tested < len(days):
        raise NotYetCompleteError(
            f"{len(days)} closed days are compacted: at least one is needed before those to be judged"
        )
    if not TARGETS[1] <= arguments.target < 0.5:
        raise ArgumentError(f"--target is in [{TARGETS[1]:g}, 0.5), not {arguments.target}")
    if not arguments.margin >= 1:
        raise ArgumentError(f"--margin is at least 1, not {arguments.margin:g}")
    target = TARGETS[kept_target(arguments.target)]
    if target != arguments.target:
        print(f"--target {arguments.target:g}: required rates are kept for {target:g}, which is taken")
    horizons = _horizons(arguments.horizons, tested)
    capacity = parse_capacity(arguments.capacity)
    scope = scope_of(arguments)
    settings = RecommendationSettings(target, Rule(arguments.rule), arguments.margin)
    with open_runner(arguments, "sluice backtest") as runner:
        left = NOTHING_LEFT_OUT if arguments.allow_gaps else left_out_of(runner, arguments.out, days)
        for each in left.left_out:
            print(each.text())
        rows = find_clients(arguments.out, days, "client_day", scope=scope)
        peaks = peaks_of(runner, arguments.out, days)
        of_clients = ClientDays(rows.parts(runner), target, Windows(burst_s=burst_of(arguments)), left)
        plain, equal = judge_parts(
            runner,
            of_clients,
            tested,
            settings,
            dates=rows.dates,
            peaks=peaks,
            capacity=capacity,
            horizons=horizons,
        )
    text = markdown(plain, equal, target)
    folder.mkdir(parents=True, exist_ok=True)
    data = {"target": target, "rules": [asdict(j) for j in plain], "equal_harm": [asdict(j) for j in equal]}
    (folder / "backtest.json").write_text(json.dumps(data, indent=1) + "\n", encoding="ascii")
    (folder / "backtest.md").write_text(text, encoding="utf-8")
    print(text)
    print(folder)
    return Exit.DONE


def _horizons(text: str, tested: int) -> list[int]:
    """The horizons that give different results on so many test days.

    Raises:
        ArgumentError: the text has another form.
    """
    try:
        asked = sorted({int(each) for each in text.split(",")})
    except ValueError:
        asked = [0]
    if asked[0] < 1:
        raise ArgumentError(f"--horizons {text}: say days, as 1,7")
    return sorted({min(each, tested) for each in asked})
