"""``sluice-pipeline prune``: deletes what the other jobs do not need any more; only says what it would without --yes.

A raw batch goes when all its lines are of days gone by that are packed with them, and a packed day when it is old.
What stays for ever: the ledger, which keeps lines from being counted twice; a note of each packed day that was
deleted, so that late lines are not taken for the whole day; and plans, whose revert files say what they have set.
Does not start Spark. Killed at any moment it leaves whole batches and days, and the next run does the rest.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from pipeline.batches import last_ledger
from pipeline.errors import JobError
from pipeline.layout import (
    PackedDay,
    RawBatch,
    committed_batches,
    packed_dir,
    published_days,
    quarantine_dir,
)
from pipeline.store import Store, held, is_local, local_path, store_of

_RESULTS: Final = ("backtest", "report", "sim")
_NOTE: Final = "_pruned.json"
_GONE: Final = ".gone"
_RUN_OF: Final = re.compile(r"run=(\d{4})-?(\d\d)-?(\d\d)T")


@dataclass(frozen=True, slots=True)
class Keep:
    """How many days of each are kept, today not counted."""

    raw: int = 7
    packed: int = 35
    results: int = 90


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be deleted.

    Attributes:
        raw: batches.
        packed: days.
        results: folders of jobs' runs.
        kept: batches that are old enough and needed all the same, by the day that they are needed for.
    """

    raw: tuple[RawBatch, ...]
    packed: tuple[PackedDay, ...]
    results: tuple[str, ...]
    kept: dict[str, tuple[int, ...]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    parser.add_argument("--out", required=True, help="the pipeline's folder, the same for all jobs")
    for name, days, what in (
        ("raw", Keep().raw, "raw batches whose days are packed, and quarantined lines"),
        ("packed", Keep().packed, "packed days"),
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
    keep = Keep(arguments.keep_raw, arguments.keep_packed, arguments.keep_results)
    for name, days in asdict(keep).items():
        if days < 1:
            raise JobError(f"--keep-{name}: at least 1 day, not {days}")
    today = datetime.datetime.fromtimestamp(time.time(), datetime.UTC).date()
    if not arguments.yes:
        _tell(found := due(out, keep, today=today))
        print("nothing was deleted: say --yes" if _any(found) else "nothing to delete")
        return 0
    # A day that is being packed reads raw batches.
    with held(f"{out}/.pack.lock"):
        _tell(found := due(out, keep, today=today))
        delete(out, found)
    print("deleted" if _any(found) else "nothing to delete")
    return 0


def is_pruned(store: Store, out: str, date: str) -> bool:
    """Whether this day was packed and has been deleted: what comes of it now is not the day."""
    return store.read(f"{packed_dir(out, date)}/{_NOTE}") is not None


def due(out: str, keep: Keep, *, today: datetime.date) -> Due:
    """What is old enough to be deleted and needed by nobody.

    Args:
        out: the pipeline's folder, on this machine.
        keep: for how long.
        today: in UTC, as all days here.
    """
    store = store_of(out)
    packed = {day.date: day for day in published_days(out)}
    raw, kept = _raw(store, out, packed, keep, today)
    return Due(
        raw=raw,
        packed=tuple(day for day in packed.values() if day.date < _first(today, keep.packed)),
        results=tuple(_old_results(store, out, _first(today, keep.results))),
        kept=kept,
    )


def delete(out: str, found: Due) -> None:
    """Deletes, one folder after the other; each is out of its readers' sight at once.

    Raises:
        JobError: something can't be deleted.
    """
    store = store_of(out)
    _finish(store, out)
    for batch in found.raw:
        # First: without its batch nobody would know of it.
        store.delete(quarantine_dir(out, batch.number))
        _remove(store, batch.path)
    for day in found.packed:
        told = {name: value for name, value in asdict(day).items() if name != "path"}
        store.write(f"{packed_dir(out, day.date)}/{_NOTE}", json.dumps(told).encode() + b"\n")
        folder = packed_dir(out, day.date)
        # Oldest first: what a killed `pack` has left beside the newest would else be the day.
        for name in store.names(folder):
            if name.startswith("run="):
                _remove(store, f"{folder}/{name}")
    for path in found.results:
        _remove(store, path)


def _raw(
    store: Store, out: str, packed: dict[str, PackedDay], keep: Keep, today: datetime.date
) -> tuple[tuple[RawBatch, ...], dict[str, tuple[int, ...]]]:
    """Batches that may go, and those that may not though they are old enough."""
    ledger = last_ledger(store, out)
    newest = -1 if ledger is None else ledger[0]
    first_kept, tomorrow = _first(today, keep.raw), _first(today, -1)
    found: list[RawBatch] = []
    needed: dict[str, list[int]] = {}
    age = tomorrow
    for batch in reversed(list(committed_batches(out))):
        days: list[str] = list(batch.told["dates"])
        # One with nothing but torn lines, or days of a clock set wrong, is as old as what was read after it.
        age = max((day for day in days if day <= tomorrow), default=age)
        if batch.number > newest or age >= first_kept:
            continue
        unpacked = [
            day
            for day in days
            if not (batch.number in packed[day].batches if day in packed else is_pruned(store, out, day))
        ]
        for day in unpacked:
            needed.setdefault(day, []).append(batch.number)
        if not unpacked:
            found.append(batch)
    kept = {day: tuple(reversed(numbers)) for day, numbers in sorted(needed.items())}
    return tuple(reversed(found)), kept


def _old_results(store: Store, out: str, first_kept: str) -> Iterable[str]:
    """Runs that were made before; those that somebody gave a name stay."""
    for kind in _RESULTS:
        for name in store.names(f"{out}/results/{kind}"):
            made = _RUN_OF.match(name)
            if made is not None and "-".join(made.groups()) < first_kept:
                yield f"{out}/results/{kind}/{name}"


def _finish(store: Store, out: str) -> None:
    """Removes what a run that was killed had taken away and not yet deleted."""
    folders = [f"{out}/raw", *(f"{out}/results/{kind}" for kind in _RESULTS)]
    folders += [f"{out}/packed/{date}" for date in store.names(f"{out}/packed")]
    for folder in folders:
        for name in store.names(folder):
            if name.endswith(_GONE):
                store.delete(f"{folder}/{name}")


def _remove(store: Store, path: str) -> None:
    folder, _, name = path.rpartition("/")
    hidden = f"{folder}/.{name}{_GONE}"
    store.rename(path, hidden)
    store.delete(hidden)
    if local_path(hidden).exists():
        raise JobError(f"{hidden} can't be deleted in full: look at its rights, and run this again")


def _first(today: datetime.date, days: int) -> str:
    """The first day that is kept."""
    return (today - datetime.timedelta(days=days)).isoformat()


def _any(found: Due) -> bool:
    return bool(found.raw or found.packed or found.results)


def _tell(found: Due) -> None:
    for what, names, paths in (
        ("raw batches", [str(each.number) for each in found.raw], [each.path for each in found.raw]),
        ("packed days", [each.date for each in found.packed], [each.path for each in found.packed]),
        ("results", ["/".join(each.split("/")[-2:]) for each in found.results], found.results),
    ):
        if names:
            print(f"{len(names)} {what}, {_span(names)}: {_bytes(paths) / 1e6:,.1f} MB")
    for day, numbers in found.kept.items():
        batches = f"{len(numbers)} raw batches ({_span([str(each) for each in numbers])})"
        print(f"kept: {batches} have lines of {day}, which is not packed with them")


def _span(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _bytes(paths: Iterable[str]) -> int:
    files = (file for path in paths for file in local_path(path).rglob("*") if file.is_file())
    return sum(file.stat().st_size for file in files)
