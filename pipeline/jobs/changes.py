"""``sluice-pipeline changes``: compares the last seven days with the seven days before.

Reads the tables of clients, part by part. Writes `index.html` for people, `changes.json` for programs, and `chat.txt`
with a few lines for a chat, which it also prints.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from pipeline.errors import ArgumentError, Exit, NotYetCompleteError
from pipeline.jobs.arguments import (
    add_expectation,
    add_out,
    add_runner,
    add_scope,
    day_of,
    expectation_of,
    open_runner,
    scope_of,
)
from pipeline.storage.layout import results_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    add_out(parser, "the pipeline's folder; it has compacted days")
    parser.add_argument(
        "--to",
        dest="last",
        metavar="DATE",
        help="the last of the seven days, such as 2026-11-21; else the last there is",
    )
    parser.add_argument(
        "--least",
        type=float,
        default=0.001,
        metavar="PART",
        help="leave out changes of use below this part of all use of the API (%(default)s)",
    )
    parser.add_argument(
        "--top", type=int, default=40, metavar="N", help="clients of a kind on the page (%(default)s)"
    )
    parser.add_argument(
        "--names", type=int, default=5, metavar="N", help="clients in a line for a chat (%(default)s)"
    )
    parser.add_argument(
        "--to-dir", type=Path, metavar="DIR", help="where to write; else OUT/results/changes/run=..."
    )
    add_scope(parser)
    add_expectation(parser)
    add_runner(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Runs the job."""
    # `--help` must work without the packages of the extra.
    from pipeline.changes.find import find
    from pipeline.changes.page import Changes, lines, render
    from pipeline.changes.weeks import DAYS, WEEKS, Calendar
    from pipeline.storage.compacted_days import compacted_days
    from pipeline.storage.files import local_result
    from pipeline.storage.losses import with_losses

    for name in ("top", "names"):
        if getattr(arguments, name) < 1:
            raise ArgumentError(f"--{name}: at least 1, not {getattr(arguments, name)}")
    if not 0 <= arguments.least < 1:
        raise ArgumentError(f"--least is at least 0 and below 1, not {arguments.least:g}")
    if arguments.last is not None:
        day_of(arguments.last, "--to")
    known = compacted_days(arguments.out, None, arguments.last)
    last = day_of(arguments.last or known[-1].date, "--to")
    calendar = Calendar.of(last, (day.date for day in known))
    for week, words in (
        (0, f"the {DAYS} days to {last}"),
        (1, f"the {DAYS} days before {calendar.days_of(0)[0]}"),
    ):
        if not any(calendar.there[week]):
            raise NotYetCompleteError(f"no day is compacted of {words}")
    days = [day for day in known if any(day.date in calendar.days_of(week) for week in range(WEEKS))]
    compared = [day for day in days if day.date in calendar.compared]
    target = local_result(
        arguments.to_dir,
        "--to-dir",
        results_dir(arguments.out, "changes", f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"),
    )
    with open_runner(arguments, "sluice changes") as runner:
        found = find(runner, arguments.out, days, calendar, arguments.least, scope_of(arguments))
    completeness = min(
        day.completeness for day in with_losses(compared, arguments.out, expectation_of(arguments))
    )
    changes = Changes(
        calendar,
        found.significant(arguments.least),
        completeness,
        [day.date for day in compared if day.open],
    )
    told = lines(changes, arguments.names)
    target.mkdir(parents=True, exist_ok=True)
    (target / "changes.json").write_text(changes.to_json(), encoding="utf-8")
    (target / "chat.txt").write_text("\n".join(told) + "\n", encoding="utf-8")
    (target / "index.html").write_text(render(changes, top=arguments.top), encoding="utf-8")
    print("\n".join(told))
    if calendar.missing:
        print(f"not compacted, so not compared: {', '.join(calendar.missing)}")
    print(target / "index.html")
    return Exit.DONE
