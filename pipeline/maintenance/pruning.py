"""Finds and deletes data that no other job needs any more.

Raw rows of a day are deleted when the day is past and all of them are compacted; a compacted day is deleted when it
is old. Two things are kept longer. The offset index prevents lines from being counted twice. A note of each deleted
compacted day prevents late lines from being taken for the whole day. Both forget very old days, and lines from before
that time are no longer read. Revert files of plans are kept for ever, because they record which quotas plans have
set. If the process is killed at any moment, only whole days are missing, and the next run does the rest.

Files that earlier commits removed are deleted first, so that a full disk has room for the next commits.
"""

from __future__ import annotations

import datetime
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pipeline.errors import JobError
from pipeline.maintenance.compaction import is_due
from pipeline.maintenance.keep import Keep
from pipeline.storage.compacted_days import CompactedState, compacted_table, published_days
from pipeline.storage.coverage import day_number
from pipeline.storage.files import is_local, local_path
from pipeline.storage.offset_index import DAY_S, FIRST_S
from pipeline.storage.raw_table import RawState, raw_table
from pipeline.storage.tables import DataFile, Snapshot, Table

_RESULTS: Final = ("backtest", "capacity", "changes", "report", "sim")
_FAR_DAYS: Final = 366
_RUN_OF: Final = re.compile(r"run=(\d{4})-?(\d\d)-?(\d\d)T")


@dataclass(frozen=True, slots=True)
class Due:
    """Data to delete.

    Attributes:
        raw: files by the day of their rows; None: lines that could not be read.
        compacted: files by day.
        results: folders of jobs' runs.
        kept: days that are old enough but still needed.
        forgotten: the first day whose lines stay in the index; entries of earlier days are deleted. Empty: none are.
        runs: runs of gateways (from a start to its end) that are forgotten.
        log: files of the logs of all tables.
    """

    raw: dict[str | None, list[DataFile]]
    compacted: dict[str, list[DataFile]]
    results: tuple[str, ...]
    kept: tuple[str, ...]
    forgotten: str = ""
    runs: int = 0
    log: int = 0


def due(out: str, keep: Keep, *, today: datetime.date, made: Sequence[Table] = ()) -> Due:
    """Finds data that is old enough to be deleted and that no job needs.

    Args:
        out: the pipeline's folder.
        keep: how long each kind of data is kept.
        today: in UTC, like all days here.
        made: tables that are made from compacted days.
    """
    compacted = compacted_table(out).read()
    days = CompactedState.from_json(compacted.state)
    found = raw_table(out).read()
    raw, kept = _raw(found, days, keep, today)
    first_kept = _first(today, keep.compacted)
    gone = {date: compacted.of(date=date) for date in sorted(days.days) if date < first_kept}
    left = {
        *(file.partition["date"] for file in found.files if file.partition["date"] not in raw),
        *days.days,
    }
    state = RawState.from_json(found.state)
    first = _first(today, keep.index)
    first = min(first, *(date for date in left - gone.keys() if date and _begin_s(date) >= FIRST_S), first)
    forgotten = _forgotten(state, days, first)
    tables = [raw_table(out), compacted_table(out), *made]
    return Due(
        raw=raw,
        compacted=gone,
        results=tuple(_old_results(out, _first(today, keep.results))),
        kept=kept,
        forgotten=first if forgotten else "",
        runs=len(state.index.runs) - len(state.index.forget(_begin_s(first)).runs),
        log=sum(table.old_log(keep.log) for table in tables),
    )


def _forgotten(state: RawState, compacted: CompactedState, first: str) -> bool:
    """Whether anything is known about lines from before the first day that is kept."""
    runs = len(state.index.forget(_begin_s(first)).runs) < len(state.index.runs)
    return runs or any(map(_is_before(first), (*state.days, *compacted.pruned)))


def _begin_s(day: str) -> int:
    return day_number(day) * DAY_S


def _is_before(first: str) -> Callable[[str], bool]:
    """Makes a check whether a day is before `first`, and was not named by a wrong clock."""
    return lambda day: FIRST_S <= _begin_s(day) < _begin_s(first)


def delete(out: str, keep: Keep, *, today: datetime.date, made: Sequence[Table]) -> Due:
    """Deletes the data of `due`, and returns it.

    Args:
        out, keep, today: see `due`.
        made: tables that are made from compacted days, with these days in their states.

    Raises:
        JobError: something can't be deleted, or another job has changed a table meanwhile.
    """
    tables = [raw_table(out), compacted_table(out), *made]
    for table in tables:
        table.in_order()
        table.sweep()
    found = due(out, keep, today=today, made=made)
    if found.raw:
        _remove_raw(out, found.raw, _first(today, -1))
    if found.compacted:
        _remove_compacted(out, found.compacted)
    if found.forgotten:
        _forget(out, found.forgotten)
    left = {day.date for day in published_days(out)}
    for table in made:
        _remove_made(table, left)
    for table in tables:
        table.sweep()
        table.trim_log(keep.log)
    for path in found.results:
        shutil.rmtree(local_path(path), ignore_errors=True)
        if local_path(path).exists():
            raise JobError(f"{path} can't be deleted in full: look at its rights, and run this again")
    return found


def _remove_raw(out: str, files: dict[str | None, list[DataFile]], tomorrow: str) -> None:
    table = raw_table(out)
    before = table.prepared()
    state = RawState.from_json(before.state)
    days = dict(state.days)
    for date in files:
        if date is not None and date > tomorrow:
            days.pop(date, None)  # if lines of such a day ever come, it is a new day
        elif date is not None:
            # The compacted day has these facts too. Removing them keeps the state small.
            days[date] = replace(days[date], gone=True, algorithms={}, scopes={})
    gone = {file.path for own in files.values() for file in own}
    removed = [file for file in before.files if file.path in gone]
    table.commit(before, remove=removed, state=replace(state, days=days).to_json())


def _remove_compacted(out: str, files: dict[str, list[DataFile]]) -> None:
    table = compacted_table(out)
    before = table.prepared()
    state = CompactedState.from_json(before.state)
    days = {date: day for date, day in state.days.items() if date not in files}
    pruned = {**state.pruned, **{date: state.days[date] for date in files if date in state.days}}
    removed = [file for date in files for file in before.of(date=date)]
    table.commit(before, remove=removed, state=CompactedState(days, pruned).to_json())


def _forget(out: str, first: str) -> None:
    """Removes old days from the states, because each commit writes them completely."""
    is_old = _is_before(first)
    raw = raw_table(out)
    before = raw.prepared()
    state = RawState.from_json(before.state)
    # The index first: from then on no lines of these days are read, so that none are taken for the whole day.
    days = {date: day for date, day in state.days.items() if not is_old(date)}
    after = replace(state, index=state.index.forget(_begin_s(first)), days=days)
    raw.commit(before, state=after.to_json())
    compacted = compacted_table(out)
    before = compacted.prepared()
    known = CompactedState.from_json(before.state)
    pruned = {date: day for date, day in known.pruned.items() if not is_old(date)}
    if len(pruned) < len(known.pruned):
        compacted.commit(before, state=CompactedState(known.days, pruned).to_json())


def _remove_made(table: Table, left: Collection[str]) -> None:
    """Removes rows of deleted days from a table of clients."""
    before = table.in_order()
    made: dict[str, Any] = before.state.get("days", {})
    gone = [date for date in made if date not in left]
    if gone:
        removed = [file for date in gone for file in before.of(date=date)]
        rest = {date: how for date, how in made.items() if date in left}
        table.commit(before, remove=removed, state={"days": rest})


def _raw(
    found: Snapshot, compacted: CompactedState, keep: Keep, today: datetime.date
) -> tuple[dict[str | None, list[DataFile]], tuple[str, ...]]:
    """Files that may go, and days that may not though they are old enough."""
    first_kept, tomorrow, far_ahead = _first(today, keep.raw), _first(today, -1), _first(today, -_FAR_DAYS)
    state = RawState.from_json(found.state)
    old: dict[str | None, list[DataFile]] = {}
    kept = []
    for date, day in sorted(state.days.items()):
        files = found.of(date=date)
        if date > tomorrow:
            # A clock that was wrong named these days, so the age of their files counts, unless this clock is slow.
            if date > far_ahead and files and max(map(_written, files)) < first_kept:
                old[date] = files
        elif date < first_kept and files:
            if date in compacted.pruned or not is_due(day, found.identifier, compacted.days.get(date)):
                old[date] = files
            else:
                kept.append(date)
    torn = [file for file in found.of(date=None) if _written(file) < first_kept]
    if torn:
        old[None] = torn
    return old, tuple(kept)


def _written(file: DataFile) -> str:
    return datetime.datetime.fromtimestamp(file.written_ms / 1_000, datetime.UTC).date().isoformat()


def _old_results(out: str, first_kept: str) -> Iterable[str]:
    """Folders of runs from before that day. Runs with a name of their own, or on remote storage, are kept."""
    for kind in _RESULTS if is_local(out) else ():
        folder = local_path(f"{out}/results/{kind}")
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            made = _RUN_OF.match(path.name)
            if made is not None and "-".join(made.groups()) < first_kept:
                yield f"{out}/results/{kind}/{path.name}"


def _first(today: datetime.date, days: int) -> str:
    """The first day that is kept."""
    return (today - datetime.timedelta(days=days)).isoformat()
