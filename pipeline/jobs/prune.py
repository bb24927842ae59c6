"""``sluice-pipeline prune``: deletes what `pipeline.maintenance.pruning` finds due; only says it without --yes."""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from pipeline.errors import JobError
from pipeline.jobs.arguments import add_out
from pipeline.maintenance.pruning import Due, Keep, delete, due
from pipeline.storage.layout import COMPACTION_LOCK
from pipeline.storage.store import held, is_local, local_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    add_out(parser)
    for name, days, what in (
        ("raw", Keep().raw, "raw batches whose days are compacted, and quarantined lines"),
        ("compacted", Keep().compacted, "compacted days"),
        ("results", Keep().results, "reports, simulations and backtests; plans stay"),
    ):
        parser.add_argument(
            f"--keep-{name}", type=int, default=days, metavar="DAYS", help=f"of {what} (%(default)s)"
        )
    parser.add_argument("--yes", action="store_true", help="delete; else only say what would be deleted")


def run(arguments: argparse.Namespace) -> int:
    """Runs the job."""
    out = arguments.out.rstrip("/")
    if not is_local(out):
        raise JobError(f"{out} is not on this machine: delete there what --help says, with its own tools")
    keep = Keep(arguments.keep_raw, arguments.keep_compacted, arguments.keep_results)
    for name, days in asdict(keep).items():
        if days < 1:
            raise JobError(f"--keep-{name}: at least 1 day, not {days}")
    today = datetime.datetime.fromtimestamp(time.time(), datetime.UTC).date()
    if not arguments.yes:
        _print(found := due(out, keep, today=today))
        print("nothing was deleted: say --yes" if _any(found) else "nothing to delete")
        return 0
    # A day that is being compacted reads raw batches.
    with held(f"{out}/{COMPACTION_LOCK}"):
        _print(found := due(out, keep, today=today))
        delete(out, found)
    print("deleted" if _any(found) else "nothing to delete")
    return 0


def _any(found: Due) -> bool:
    return bool(found.raw or found.compacted or found.results)


def _print(found: Due) -> None:
    for what, names, paths in (
        ("raw batches", [str(each.number) for each in found.raw], [each.path for each in found.raw]),
        ("compacted days", [each.date for each in found.compacted], [each.path for each in found.compacted]),
        ("results", ["/".join(each.split("/")[-2:]) for each in found.results], found.results),
    ):
        if names:
            print(f"{len(names)} {what}, {_span(names)}: {_bytes(paths) / 1e6:,.1f} MB")
    for day, numbers in found.kept.items():
        batches = f"{len(numbers)} raw batches ({_span([str(each) for each in numbers])})"
        print(f"kept: {batches} have lines of {day}, which is not compacted with them")


def _span(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _bytes(paths: Iterable[str]) -> int:
    files = (file for path in paths for file in local_path(path).rglob("*") if file.is_file())
    return sum(file.stat().st_size for file in files)
