"""``sluice-pipeline report``: use, throttling and distance to the limits, by client.

Reads the table `client_use` (`pipeline.client_tables`), part by part. Writes
`report.json` (everything, for programs) and `index.html` (the same for people: one file that needs nothing else).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pipeline.errors import ArgumentError, Exit, JobError
from pipeline.jobs.arguments import (
    add_days,
    add_expectation,
    add_out,
    add_runner,
    check_days,
    expectation_of,
    open_runner,
)
from pipeline.plans.plan import Plan, PlanError
from pipeline.storage.layout import results_dir
from quotas.entities import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    add_out(parser, "the pipeline's folder; it has compacted days")
    add_days(parser)
    parser.add_argument(
        "--to-dir", type=Path, metavar="DIR", help="where to write; else OUT/results/report/run=..."
    )
    add_expectation(parser)
    add_runner(parser)
    parser.add_argument("--top", type=int, default=40, metavar="N", help="clients per API on the page (40)")
    parser.add_argument("--groups", metavar="FILE", help="groups.toml: show clients by team too")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="show this plan's recommendations too")


def run(arguments: argparse.Namespace) -> Exit:
    """Runs the job."""
    # `--help` must work without the packages of the extra.
    from pipeline.report.page import render
    from pipeline.report.report import make
    from pipeline.storage.files import local_result
    from pipeline.teams.members import read_members

    if arguments.top < 1:
        raise ArgumentError(f"--top: at least 1, not {arguments.top}")
    check_days(arguments)
    plan = _read_plan(arguments.plan)
    members = read_members(arguments.groups) if arguments.groups else None
    made_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    stamp = made_at.replace(":", "").replace("-", "")
    target = local_result(arguments.to_dir, "--to-dir", results_dir(arguments.out, "report", stamp))
    with open_runner(arguments, "sluice report") as runner:
        report = make(runner, arguments.out, expectation_of(arguments), arguments.first, arguments.last)
    report = replace(report, members=members)
    target.mkdir(parents=True, exist_ok=True)
    (target / "report.json").write_text(report.to_json(), encoding="utf-8")
    (target / "index.html").write_text(render(report, top=arguments.top, plan=plan), encoding="utf-8")
    print(
        f"{counted(len(report.clients), 'client')} over {counted(len(report.days), 'day')}, "
        f"{report.completeness:.2%} complete"
    )
    if open_days := ", ".join(day.date for day in report.days if day.open):
        print(f"compacted before the end of the day: {open_days}")
    if report.absent:
        print(f"not compacted, so not included: {report.absent_text}")
    print(target / "index.html")
    return Exit.DONE


def _read_plan(path: Path | None) -> Plan | None:
    if path is None:
        return None
    try:
        return Plan.from_json(path.read_bytes())
    except PlanError as exc:
        raise JobError(f"{path}: {exc}") from exc
