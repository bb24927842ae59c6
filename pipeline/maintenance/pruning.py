"""What the other jobs do not need any more, and deleting it.

A raw batch goes when all its lines are of past days that are compacted with them, and a compacted day when it is
old. Three things stay for ever. The offset index keeps lines from being counted twice. A note of each compacted day
that was deleted keeps late lines from being taken for the whole day. Revert files of plans say which quotas plans
have set. Killed at any moment it leaves whole batches and days, and the next run does the rest.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final

from pipeline.errors import JobError
from pipeline.storage.index_files import last_offset_index
from pipeline.storage.layout import (
    COMPACTED_FOLDER,
    CompactedDay,
    RawBatch,
    clients_dir,
    committed_batches,
    compacted_dir,
    published_days,
    quarantine_dir,
)
from pipeline.storage.store import Store, local_path, store_of

_RESULTS: Final = ("backtest", "report", "sim")
_NOTE: Final = "_pruned.json"
_GONE: Final = ".gone"
_RUN_OF: Final = re.compile(r"run=(\d{4})-?(\d\d)-?(\d\d)T")


@dataclass(frozen=True, slots=True)
class Keep:
    """How many days of each are kept, today not counted."""

    raw: int = 7
    compacted: int = 35
    results: int = 90


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be deleted.

    Attributes:
        raw: batches.
        compacted: days.
        results: folders of jobs' runs.
        kept: batches that are old enough and needed all the same, by the day that they are needed for.
    """

    raw: tuple[RawBatch, ...]
    compacted: tuple[CompactedDay, ...]
    results: tuple[str, ...]
    kept: dict[str, tuple[int, ...]]


def is_pruned(store: Store, out: str, date: str) -> bool:
    """Whether this day was compacted and has been deleted: what comes of it now is not the day."""
    return store.read(f"{compacted_dir(out, date)}/{_NOTE}") is not None


def due(out: str, keep: Keep, *, today: datetime.date) -> Due:
    """What is old enough to be deleted, and not needed by any job.

    Args:
        out: the pipeline's folder, on this machine.
        keep: for how long.
        today: in UTC, as all days here.
    """
    store = store_of(out)
    compacted = {day.date: day for day in published_days(out)}
    raw, kept = _raw(store, out, compacted, keep, today)
    return Due(
        raw=raw,
        compacted=tuple(day for day in compacted.values() if day.date < _first(today, keep.compacted)),
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
        # First: without its batch it would never be found.
        store.delete(quarantine_dir(out, batch.number))
        _remove(store, batch.path)
    for day in found.compacted:
        note = {name: value for name, value in asdict(day).items() if name != "path"}
        store.write(f"{compacted_dir(out, day.date)}/{_NOTE}", json.dumps(note).encode() + b"\n")
        folder = compacted_dir(out, day.date)
        # Oldest first: what a killed `compact` has left beside the newest would else be the day.
        for name in store.names(folder):
            if name.startswith("run="):
                _remove(store, f"{folder}/{name}")
        store.delete(clients_dir(out, day.date))
    for path in found.results:
        _remove(store, path)


def _raw(
    store: Store, out: str, compacted: dict[str, CompactedDay], keep: Keep, today: datetime.date
) -> tuple[tuple[RawBatch, ...], dict[str, tuple[int, ...]]]:
    """Batches that may go, and those that may not though they are old enough."""
    index = last_offset_index(store, out)
    newest = -1 if index is None else index[0]
    first_kept, tomorrow = _first(today, keep.raw), _first(today, -1)
    found: list[RawBatch] = []
    needed: dict[str, list[int]] = {}
    age = tomorrow
    for batch in reversed(list(committed_batches(out))):
        days: list[str] = list(batch.manifest["dates"])
        # One with nothing but torn lines, or days of a clock set wrong, is as old as what was read after it.
        age = max((day for day in days if day <= tomorrow), default=age)
        if batch.number > newest or age >= first_kept:
            continue
        uncompacted = [
            day
            for day in days
            # Of a day that lies ahead there is nothing but lines of a clock set wrong: it is never compacted.
            if day <= tomorrow
            and not (
                batch.number in compacted[day].batches if day in compacted else is_pruned(store, out, day)
            )
        ]
        for day in uncompacted:
            needed.setdefault(day, []).append(batch.number)
        if not uncompacted:
            found.append(batch)
    kept = {day: tuple(reversed(numbers)) for day, numbers in sorted(needed.items())}
    return tuple(reversed(found)), kept


def _old_results(store: Store, out: str, first_kept: str) -> Iterable[str]:
    """Runs that were made before; those with a name of their own stay."""
    for kind in _RESULTS:
        for name in store.names(f"{out}/results/{kind}"):
            made = _RUN_OF.match(name)
            if made is not None and "-".join(made.groups()) < first_kept:
                yield f"{out}/results/{kind}/{name}"


def _finish(store: Store, out: str) -> None:
    """Removes what a run that was killed had taken away and not yet deleted."""
    folders = [f"{out}/raw", *(f"{out}/results/{kind}" for kind in _RESULTS)]
    folders += [f"{out}/{COMPACTED_FOLDER}/{date}" for date in store.names(f"{out}/{COMPACTED_FOLDER}")]
    for folder in folders:
        for name in store.names(folder):
            if name.endswith(_GONE):
                store.delete(f"{folder}/{name}")


def _remove(store: Store, path: str) -> None:
    folder, _, name = path.rpartition("/")
    hidden = f"{folder}/.{name}{_GONE}"
    store.move(path, hidden)
    store.delete(hidden)
    if local_path(hidden).exists():
        raise JobError(f"{hidden} can't be deleted in full: look at its rights, and run this again")


def _first(today: datetime.date, days: int) -> str:
    """The first day that is kept."""
    return (today - datetime.timedelta(days=days)).isoformat()
