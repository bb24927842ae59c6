"""``sluice-pipeline recommend``: makes a plan of quotas from some compacted days.

Required rates are in the tables of clients (`pipeline.client_tables`). `pipeline.recommend.recommendation` makes
quotas from them. The plan also says what it would have done on the same days. Clients are processed part by part
(`pipeline.recommend.parts`), as tasks of Spark or one after the other in this process.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from pipeline.errors import ArgumentError, Exit, NotYetCompleteError
from pipeline.jobs.arguments import (
    add_allow_open,
    add_burst,
    add_capacity,
    add_days,
    add_expectation,
    add_out,
    add_rule,
    add_runner,
    add_scope,
    add_windows,
    burst_of,
    check_days,
    day_of,
    expectation_of,
    open_runner,
    parse_capacity,
    scope_of,
)
from pipeline.plans.plan import Basis, Plan, too_little_text
from pipeline.recommend.doubt import ALL_GATEWAYS, NOTHING_LEFT_OUT, Doubt, doubts_of
from pipeline.recommend.recommendation import (
    HISTORY_DAYS,
    RecommendationSettings,
    Rule,
    plan_of,
    with_bursts,
)
from pipeline.replay.algorithms import Algorithm, Model
from pipeline.storage.coverage import Expectation
from pipeline.storage.layout import SEEN_FOR_ONLY, CompactedDay, results_dir
from pipeline.teams.members import Entities, Members, read_members
from quotas.entities import QuotaKey, counted
from quotas.usage_record import UsageApi


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    add_out(parser, "the pipeline's folder; it has compacted days")
    parser.add_argument("--plan", metavar="FILE", help="where to write the plan; else below OUT/results/plan")
    add_days(parser)
    parser.add_argument(
        "--history", type=int, metavar="DAYS", help=f"how many days, instead of --from ({HISTORY_DAYS})"
    )
    parser.add_argument("--target", type=float, default=0.01, help="share of use that may wait (0.01)")
    add_rule(parser)
    add_capacity(parser)
    parser.add_argument(
        "--largest-change",
        type=float,
        default=4.0,
        metavar="FACTOR",
        help="a quota in force is at most multiplied or divided by this at once (%(default)g)",
    )
    parser.add_argument(
        "--default-plus-overrides",
        type=int,
        metavar="COUNT",
        help="quotas of their own for the COUNT largest clients of each kind, a default for the others",
    )
    parser.add_argument(
        "--algo",
        choices=list(Algorithm),
        help="how controller mutations are measured; else as the newest records say",
    )
    add_scope(parser)
    add_windows(parser)
    add_burst(parser)
    parser.add_argument(
        "--allow-gaps",
        action="store_true",
        help="leave out no client's day, even if records are missing or occur twice, and continue without missing "
        "days",
    )
    parser.add_argument(
        "--for",
        dest="entities",
        choices=[*map(str, Entities)],
        help="quotas for what clients use together, as a user, a client id, a prefix or a team; default: for each "
        "counter of the records",
    )
    parser.add_argument("--groups", metavar="FILE", help="groups.toml, with the teams or prefixes")
    add_allow_open(parser)
    add_expectation(parser)
    add_runner(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Runs the job."""
    # `--help` must work without the packages of the extra.
    from pipeline.client_tables.tables import find_clients
    from pipeline.recommend.entities import EntityDays, plan_of_entities
    from pipeline.recommend.parts import expect_parts, recommend_parts
    from pipeline.recommend.required_rates import (
        ClientDays,
        Windows,
        left_out_of,
        peaks_of,
        stricter_than_asked,
    )
    from pipeline.recommend.waiting import kept_burst_s
    from pipeline.replay.dispatch import recorded_algorithm
    from pipeline.storage.compacted_days import published_days
    from pipeline.storage.files import local_result
    from pipeline.storage.losses import with_losses
    from pipeline.storage.raw_table import read_raw_state

    history = HISTORY_DAYS if arguments.history is None else arguments.history
    if not 0 <= arguments.target < 1 or not arguments.margin >= 1 or history < 1:
        raise ArgumentError("--target is in [0, 1), --margin at least 1, --history at least 1")
    if arguments.first is not None and arguments.history is not None:
        raise ArgumentError("--from and --history both say where the days begin: give one of them")
    check_days(arguments)
    if arguments.burst is not None and arguments.entities is not None:
        raise ArgumentError("--burst is for each counter of the records, and not with --for")
    if not arguments.largest_change > 1:
        raise ArgumentError(f"--largest-change is above 1, not {arguments.largest_change:g}")
    members = _members(arguments)
    capacity = parse_capacity(arguments.capacity)
    expectation = expectation_of(arguments)
    made_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    folder = results_dir(arguments.out, "plan", made_at.replace(":", ""))
    file = local_result(arguments.plan, "--plan", f"{folder}/plan.json")
    chosen, silent = history_days(
        with_losses(published_days(arguments.out), arguments.out, expectation),
        history,
        arguments.last,
        expectation,
        first=arguments.first,
        read=read_raw_state(arguments.out).days.keys(),
        allow_gaps=arguments.allow_gaps,
        allow_open=arguments.allow_open,
    )
    mutations = Algorithm(arguments.algo) if arguments.algo else recorded_algorithm(chosen, option="--algo")
    windows = Windows(arguments.window_num, arguments.window_ms, mutations, burst_of(arguments))
    scope = scope_of(arguments)
    # Seconds that are recorded twice would make the common peak too high.
    twice = {doubt.date for doubt in doubts_of(chosen) if not doubt.lacks}
    once = [day for day in chosen if day.date not in twice] or chosen
    basis = Basis(
        first_day=chosen[0].date,
        last_day=chosen[-1].date,
        days=len(chosen),
        completeness=min(day.completeness for day in chosen),
        target=arguments.target,
        margin=arguments.margin,
        model=Model.DEFERRAL.value,
        scope=scope.value,
        window_num=arguments.window_num,
        window_ms=arguments.window_ms,
        open_days=", ".join(day.date for day in chosen if day.open),
    )
    settings = RecommendationSettings(
        arguments.target,
        Rule(arguments.rule),
        arguments.margin,
        largest_change=arguments.largest_change,
        overrides=arguments.default_plus_overrides,
    )
    nothing_came = [Doubt(ALL_GATEWAYS, date, "has written nothing", lacks=True) for date in silent]
    notes = stricter_than_asked(arguments.target, windows)
    with open_runner(arguments, "sluice recommend") as runner:
        peaks: dict[QuotaKey, float] = {}
        for (_, key), peak in peaks_of(runner, arguments.out, once).items():
            peaks[key] = max(peak, peaks.get(key, 0.0))
        if arguments.entities is not None:
            known = EntityDays(arguments.out, chosen, scope, Entities(arguments.entities), members)
            doubts = [] if arguments.allow_gaps else [*doubts_of(chosen), *nothing_came]
            plan = plan_of_entities(
                known, settings, windows, basis, doubts, made_at=made_at, capacity=capacity, peaks=peaks
            )
            return _write(plan, file, settings, notes)
        left = NOTHING_LEFT_OUT
        if not arguments.allow_gaps:
            left = left_out_of(runner, arguments.out, chosen, nothing_came)
        rows = find_clients(arguments.out, chosen, "client_day", scope=scope)
        days = ClientDays(rows.parts(runner), arguments.target, windows, left)
        found = recommend_parts(runner, days, settings, capacity=capacity, peaks=peaks)
        plan = plan_of(found.quotas, settings, basis, made_at=made_at, capacity=capacity, peaks=peaks)
        too_little = tuple(each for _, each in sorted(found.too_little.items()))
        plan = replace(plan, left_out=left.left_out, too_little=too_little)
        if plan.entries:
            plan = expect_parts(runner, days, plan)
    if windows.burst_s is not None:
        plan = with_bursts(plan, kept_burst_s(UsageApi.PRODUCE, windows.burst_s))
    return _write(plan, file, settings, notes)


def _write(plan: Plan, file: Path, settings: RecommendationSettings, notes: list[str]) -> Exit:
    """Writes the plan and prints a summary."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(plan.to_json(), encoding="utf-8")
    for text in (*notes, *plan.basis.notes()):
        print(text)
    for check in plan.capacity:
        print(f"{check.key}: {check.note}")
    for each in plan.left_out:
        print(each.text())
    if plan.too_little:
        print(too_little_text(plan.too_little))
        if settings.overrides is not None:
            print("the default covers them too")
    changes = sum(entry.action == "set" for entry in plan.entries)
    print(
        f"{counted(len(plan.entries), 'quota')}, {changes} to be set: sluice-pipeline plan show "
        f"{json.dumps(str(file))}"
    )
    if plan.entries:
        return Exit.DONE
    lacking = any(not each.reason.startswith(SEEN_FOR_ONLY) for each in plan.too_little)
    return Exit.NOT_YET_COMPLETE if lacking else Exit.NOTHING_TO_DO


def _members(arguments: argparse.Namespace) -> Members:
    """The teams of the arguments.

    Raises:
        ArgumentError: the arguments contradict each other.
    """
    wanted = arguments.entities in (Entities.PREFIX, Entities.TEAM)
    if wanted != (arguments.groups is not None):
        raise ArgumentError("--for team and --for prefix need --groups FILE, and nothing else does")
    if arguments.entities == Entities.TEAM and arguments.default_plus_overrides is not None:
        raise ArgumentError("--default-plus-overrides: groups have no default")
    return read_members(arguments.groups) if wanted else Members(())


def history_days(
    days: list[CompactedDay],
    history: int,
    last: str | None,
    expectation: Expectation,
    *,
    first: str | None = None,
    read: Collection[str] = (),
    allow_gaps: bool,
    allow_open: bool = False,
) -> tuple[list[CompactedDay], list[str]]:
    """The days that a recommendation uses.

    Args:
        days: all compacted days, by date.
        history: the wanted number of days.
        last: the last day; None: the last compacted one that is closed.
        expectation: says which days are closed.
        first: the first day; it overrides `history`.
        read: days whose lines have been read.
        allow_gaps: continue if days are missing.
        allow_open: also use days that are not closed, or were not when they were compacted.

    Returns:
        The days; and days between them for which no gateway has written a line.

    Raises:
        NotYetCompleteError: some days are missing; the text names them.
        ArgumentError: `first` or `last` is not a day.
    """
    if not days:
        raise NotYetCompleteError("no day is compacted: run `sluice-pipeline compact` first")
    not_closed = [day.date for day in days if day.open or expectation.is_open(day.date)]
    usable = [day for day in days if allow_open or day.date not in not_closed]
    if not usable:
        raise NotYetCompleteError(
            f"{', '.join(not_closed)} not closed, and nothing else is compacted: half a day counts as a quiet one. "
            "Wait for its end and compact it, or say --allow-open"
        )
    end = day_of(last or usable[-1].date, "--to")
    if first is not None:
        history = (end - day_of(first, "--from")).days + 1
    if history < 1:
        raise NotYetCompleteError(
            f"the last day that is compacted and closed is {end}, before --from {first}"
        )
    wanted = [(end - datetime.timedelta(days=back)).isoformat() for back in range(history)][::-1]
    there = {day.date: day for day in usable}
    missing = [date for date in wanted if date not in there]
    open_then = [date for date in missing if date in not_closed]
    absent = [date for date in missing if date in read and date not in not_closed]
    begins = days[0].date
    # From then on a day without any line is an ordinary gap.
    silent = [date for date in missing if begins < date < wanted[-1] and date not in (*open_then, *absent)]
    before = [date for date in missing if date not in (*open_then, *absent, *silent)]
    faults = [f"{', '.join(absent)} not compacted"] if absent else []
    faults += [f"{date} not closed when it was compacted" for date in open_then]
    faults += (
        [f"of {', '.join(before)} there is nothing: compacted days begin with {begins}"] if before else []
    )
    chosen = [there[date] for date in wanted if date in there]
    if not chosen or (faults and not allow_gaps):
        raise NotYetCompleteError(
            f"a history of {history} days to {end} is wanted, and {'; '.join(faults)}. Quotas from fewer days may be "
            "too low: compact the days, ask for fewer, or say --allow-gaps"
        )
    return chosen, silent
