"""``sluice-pipeline prune``: deletes old data; without --yes it only lists it."""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Collection, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from pipeline.errors import ArgumentError, Exit
from pipeline.jobs.arguments import add_out
from pipeline.maintenance.keep import Keep
from quotas.entities import counted

if TYPE_CHECKING:
    from pipeline.maintenance.pruning import Due
    from pipeline.storage.tables import DataFile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    add_out(parser)
    for name, days, what in (
        ("raw", Keep().raw, "raw rows of days that are compacted, and lines that could not be read"),
        ("compacted", Keep().compacted, "compacted days"),
        ("results", Keep().results, "reports, simulations, backtests and studies of a capacity; plans stay"),
        ("index", Keep().index, "what is known of lines that were read; older lines are not read any more"),
        ("log", Keep().log, "the logs of the tables"),
    ):
        parser.add_argument(
            f"--keep-{name}", type=int, default=days, metavar="DAYS", help=f"of {what} (%(default)s)"
        )
    parser.add_argument("--yes", action="store_true", help="delete; else only say what would be deleted")


def run(arguments: argparse.Namespace) -> Exit:
    """Runs the job."""
    # `--help` must work without the packages of the extra.
    from pipeline.client_tables.tables import client_use_table, clients_table
    from pipeline.maintenance.pruning import delete, due

    out = arguments.out.rstrip("/")
    keep = Keep(
        arguments.keep_raw,
        arguments.keep_compacted,
        arguments.keep_results,
        arguments.keep_index,
        arguments.keep_log,
    )
    for name, days in asdict(keep).items():
        if days < 1:
            raise ArgumentError(f"--keep-{name}: at least 1 day, not {days}")
    if keep.index < max(keep.raw, keep.compacted):
        raise ArgumentError("--keep-index: at least as many days as of raw rows and compacted days")
    today = datetime.datetime.fromtimestamp(time.time(), datetime.UTC).date()
    made = (clients_table(out), client_use_table(out))
    if not arguments.yes:
        _print(found := due(out, keep, today=today, made=made))
        print("nothing was deleted: say --yes" if _any(found) else "nothing to delete")
        return _exit(found)
    _print(found := delete(out, keep, today=today, made=made))
    print("deleted" if _any(found) else "nothing to delete")
    return _exit(found)


def _exit(found: Due) -> Exit:
    return Exit.DONE if _any(found) else Exit.NOTHING_TO_DO


def _any(found: Due) -> bool:
    return bool(found.raw or found.compacted or found.results or found.forgotten or found.log)


def _print(found: Due) -> None:
    days = [date or "without a day" for date in found.raw]
    _print_one("raw day", days, (file for own in found.raw.values() for file in own))
    _print_one(
        "compacted day", list(found.compacted), (file for own in found.compacted.values() for file in own)
    )
    if found.results:
        print(
            f"{counted(len(found.results), 'result')}, "
            f"{_span(['/'.join(each.split('/')[-2:]) for each in found.results])}"
        )
    if found.forgotten:
        print(
            f"what is known of lines from before {found.forgotten}: {counted(found.runs, 'start')} of gateways; such "
            "lines are not read any more"
        )
    if found.log:
        print(f"{counted(found.log, 'file')} of the logs of tables")
    for day in found.kept:
        print(f"kept: raw rows of {day}, which is not compacted completely")


def _print_one(what: str, names: Collection[str], files: Iterable[DataFile]) -> None:
    if names:
        print(
            f"{counted(len(names), what)}, {_span(list(names))}: {sum(file.bytes for file in files) / 1e6:,.1f} MB"
        )


def _span(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
