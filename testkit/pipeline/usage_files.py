"""Usage files like those of gateways, made from `testkit.pipeline.traces`: also shuffled, doubled, lost and torn.

Every file has a gateway's form (gzip, one line a second, `quotas.usage_record`). Throttling is made up and not
simulated: half of the clients have a quota of 1.5 times their mean rate, and are throttled in seconds above it.
`Truth` has the expected results, counted here and not by the pipeline.
"""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from quotas.usage_record import VERSION, RowFlags
from testkit.pipeline.traces import DAY_S, Day, Entity, day_of, entities_of

FIRST_BOOT_MS: Final = 1_790_553_600_000  # 2026-09-28 00:00 UTC, a Monday
_WINDOW_S: Final = 1_800
_LISTENER: Final = "clients"
_MUTATION_KINDS: Final = ("create_topics", "create_partitions", "delete_topics")


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults between gateway and pipeline, as shares of all files."""

    lost: float = 0.0
    """Files that never arrive."""
    doubled: float = 0.0
    """Files that arrive a second time under another name."""
    torn: float = 0.0
    """Files that arrive cut off at half."""
    repeated_lines: float = 0.0
    """Files that have every tenth line twice."""


@dataclass(slots=True)
class Truth:
    """The expected results for the existing files."""

    rows: int = 0
    lines: int = 0
    events: int = 0
    torn_files: int = 0
    units: int = 0
    """Sum of `offered` over all rows; whole numbers."""
    missing: set[tuple[str, int, int]] = field(default_factory=set)
    """Lines that were written but are in no file: (gateway, boot, seq). Lines after the last existing line of a run
    are not included, because they cannot be known to be missing."""


@dataclass(frozen=True, slots=True)
class Load:
    """The files to write."""

    seed: int = 1
    entities: int = 2_000
    seconds: int = 6 * 3600
    first_second: int = 0
    """Seconds since midnight of day 0."""
    gateways: int = 2
    """Number of gateways. Each entity connects to one gateway, every fifth to two."""
    rotate_s: int = 60
    restart_after_s: int | None = None
    """Interval after which a gateway restarts, with a new boot."""


SIZE_S: Final = Load(entities=2_500, seconds=6 * 3600)
SIZE_M: Final = Load(entities=2_000, seconds=DAY_S)


def write_usage(folder: Path, load: Load, faults: Faults | None = None) -> Truth:
    """Writes the files of all gateways.

    Args:
        folder: the folder for the files; made if necessary.
        load: their content.
        faults: faults of the files; `load.seed` decides which files have them.

    Returns:
        The results that a reader should have.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(load.seed)
    faults = faults or Faults()
    truth = Truth()
    lost: dict[tuple[str, int], list[int]] = {}
    last: dict[tuple[str, int], int] = {}
    for gw, boot, first_seq, lines in _files(load):
        kept = list(lines)
        run = (gw, boot)
        name = folder / f"usage-{gw}-{boot}-{first_seq:09d}.jsonl.gz"
        sequence = range(first_seq, first_seq + len(lines))
        if chance.random() < faults.lost:
            lost.setdefault(run, []).extend(sequence)
            continue
        if chance.random() < faults.repeated_lines:
            kept = [line for index, line in enumerate(lines) for _ in range(1 + (index % 10 == 0))]
        content = gzip.compress(b"".join(line + b"\n" for line in kept), 1, mtime=0)
        there = len(lines)
        if chance.random() < faults.torn:
            truth.torn_files += 1
            content = content[: len(content) // 2]
            there = len(set(_whole_lines(content)))
            lost.setdefault(run, []).extend(sequence[there:])
        _place(name, content)
        if chance.random() < faults.doubled:
            _place(folder / f"again-{name.name}", content)
        for line in lines[:there]:
            told = orjson.loads(line)
            truth.rows += len(told["rows"])
            truth.events += len(told["events"])
            truth.units += int(sum(row[8] for row in told["rows"]))
        truth.lines += there
        if there:
            last[run] = first_seq + there - 1
    for (gw, boot), sequence_ in lost.items():
        truth.missing |= {(gw, boot, seq) for seq in sequence_ if seq < last.get((gw, boot), -1)}
    return truth


def lines_of(load: Load) -> Iterator[tuple[str, bytes]]:
    """The same lines one by one, as for the topic: gateway and line."""
    for gw, _, _, lines in _files(load):
        for line in lines:
            yield gw, line


def _place(path: Path, content: bytes) -> None:
    hidden = path.with_name(f".{path.name}.part")
    hidden.write_bytes(content)
    hidden.rename(path)


def _whole_lines(content: bytes) -> list[bytes]:
    reader = zlib.decompressobj(31)
    return reader.decompress(content).split(b"\n")[:-1]


def _files(load: Load) -> Iterator[tuple[str, int, int, list[bytes]]]:
    """Gateway, boot, first seq and lines of each file, gateways in turn."""
    entities = entities_of(load.seed, load.entities)
    pending: dict[int, list[bytes]] = {number: [] for number in range(load.gateways)}
    first_day, end = load.first_second // DAY_S, load.first_second + load.seconds
    run_s = load.restart_after_s or load.seconds
    for day_index in range(first_day, (end - 1) // DAY_S + 1):
        day = day_of(load.seed, load.entities, day_index, until_s=min(DAY_S, end - day_index * DAY_S))
        begin_s = max(load.first_second - day_index * DAY_S, 0)
        by_gateway: list[dict[int, _Second]] = []
        for second in range(begin_s, min(DAY_S, end - day_index * DAY_S)):
            if second % _WINDOW_S == 0 or second == begin_s:
                # The rows of a whole day as Python objects would be gigabytes.
                window = (second, second - second % _WINDOW_S + _WINDOW_S)
                by_gateway = [
                    _seconds(load, number, entities, day, window) for number in range(load.gateways)
                ]
            since_start = day_index * DAY_S + second - load.first_second
            run, seq = divmod(since_start, run_s)
            for number, seconds in enumerate(by_gateway):
                gw = f"gw-{number}"
                boot = FIRST_BOOT_MS + (load.first_second + run * run_s) * 1000
                rows, events = seconds.get(second, ([], []))
                head = {"v": VERSION, "gw": gw, "boot": boot, "seq": seq}
                head |= {"ts": FIRST_BOOT_MS // 1000 + day_index * DAY_S + second, "dur_ms": 1000}
                head |= {"algo": "token_bucket", "rows": rows, "events": events}
                pending[number].append(orjson.dumps(head | {"dropped_rows": 0, "dropped_events": 0}))
                last_of_run = seq == run_s - 1 or since_start == load.seconds - 1
                if len(pending[number]) == load.rotate_s or last_of_run:
                    yield gw, boot, seq + 1 - len(pending[number]), pending[number]
                    pending[number] = []


_Second = tuple[list[list[Any]], list[list[Any]]]


def _seconds(
    load: Load, number: int, entities: tuple[Entity, ...], day: Day, window: tuple[int, int]
) -> dict[int, _Second]:
    """Rows and events of a gateway for each second of the window that has any."""
    seconds: dict[int, _Second] = {}
    for entity in entities:
        node = entity.index % 3 + 1
        if entity.index % load.gateways != number and (entity.index % 5 or load.gateways == 1):
            continue
        begin, end = int(day.starts[entity.index]), int(day.starts[entity.index + 1])
        first, last = begin + np.searchsorted(day.t[begin:end], window)
        if first == last:
            continue
        at = slice(first, last)
        t, units, requests, largest = day.t[at], day.units[at], day.requests[at], day.max_units[at]
        quota = round(1.5 * float(np.mean(day.units[begin:end])), 2) if entity.index % 2 else None
        over = np.maximum(units - quota, 0.0) if quota else np.zeros(len(units))
        throttle = np.minimum(1000 * over / (quota or 1.0), 30_000).astype(int)
        mutation = entity.api == "mutation"
        names = [_LISTENER, entity.user, entity.client_id, entity.api, -1 if mutation else node]
        cells = zip(
            t.tolist(), units.tolist(), requests.tolist(), largest.tolist(), throttle.tolist(), strict=True
        )
        for second, amount, count, top, wait in cells:
            in_, out = (200 * count, 100 * count) if mutation else (amount, 60.0 * count)
            in_, out = (out, in_) if entity.api == "fetch" else (in_, out)
            row = [*names, count, in_, out, amount, amount, top, 0, 0.0, int(wait > 0), wait, min(wait, 1000)]
            row += [quota, None if quota is None else round(quota - amount, 1)]
            row.append(int(RowFlags.CENSORED) if wait else 0)
            seconds.setdefault(second, ([], []))[0].append(row)
        begin, end = int(day.event_starts[entity.index]), int(day.event_starts[entity.index + 1])
        first, last = begin + np.searchsorted(day.event_ms[begin:end], np.array(window) * 1000)
        ev = slice(first, last)
        for ms, partitions in zip(day.event_ms[ev].tolist(), day.event_units[ev].tolist(), strict=True):
            kind = _MUTATION_KINDS[ms % 3]
            event = [
                ms % 1000,
                _LISTENER,
                entity.user,
                entity.client_id,
                kind,
                partitions,
                True,
                True,
                0,
                ms,
                1,
            ]
            seconds.setdefault(ms // 1000, ([], []))[1].append(event)
    return seconds
