"""A day of raw rows as one row per client, for every other job.

The raw rows of a day are ordered by client, start and number of the line, and joined (`pipeline.storage.joining`).
Each task reads its own buckets of the raw files; where the workers have not mounted the folder, Spark sorts. The
day appears under its name when it is whole. A day that got late lines is compacted again. A day that may still get
lines is left, since half a day looks like a quiet one.
"""

from __future__ import annotations

import datetime
import json
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import JobError
from pipeline.maintenance.pruning import is_pruned
from pipeline.spark.session import ARROW_ROWS
from pipeline.storage.compacted_files import FILE_ORDER, CompactedFileWriter
from pipeline.storage.coverage import COMPLETE_ENOUGH, DayCoverage, Expectation, coverage
from pipeline.storage.index_files import numbered_offset_index
from pipeline.storage.joining import ORDER, join_chunks
from pipeline.storage.layout import (
    BUCKETS,
    COMPACTED,
    EVENTS,
    KEY,
    RAW,
    SERIES,
    CompactedDay,
    RawBatch,
    committed_batches,
    compacted_dir,
    published_days,
)
from pipeline.storage.raw_files import raw_files, read_buckets, synced
from pipeline.storage.store import MANIFEST, Store, is_local, local_path, store_of

_RAW_ROWS_AT_ONCE: Final = "4000"
_ROWS_JOINED_AT_ONCE: Final = 60_000
_ROWS_PER_FILE: Final = 8_000_000
_ROWS_PER_TASK: Final = 4_000_000
_ROW_ORDER: Final = [*FILE_ORDER, *ORDER]


def compact(
    spark: Any,
    out: str,
    expectation: Expectation,
    *,
    date: str = "new",
    allow_gaps: bool = False,
    allow_open: bool = False,
) -> dict[str, dict[str, Any]]:
    """Compacts days and publishes them.

    Args:
        spark: the session.
        out: the pipeline's folder.
        expectation: what should be there.
        date: a day, or all, or new.
        allow_gaps: also days below COMPLETE_ENOUGH, and those on which two gateways shared an id.
        allow_open: also days that may still get lines. They are marked, and compacted again with what comes later.

    Returns:
        The manifest of each day that was compacted.

    Raises:
        JobError: a day is not complete enough; it is raised when all others have been compacted. Or the day asked for
            is not there or not closed, or has lost raw batches that it was compacted from.
    """
    by_date: dict[str, list[RawBatch]] = {}
    newest, index = numbered_offset_index(store_of(out, spark), out)
    for batch in committed_batches(out, spark=spark):
        # A batch comes before its offset index; killed in between, ingest may give its number to other lines.
        if batch.number > newest:
            continue
        for day in batch.manifest["dates"]:
            by_date.setdefault(day, []).append(batch)
    compacted = {day.date: day for day in published_days(out, spark=spark)}
    wanted = []
    for day, batches in sorted(by_date.items()):
        numbers = {batch.number for batch in batches}
        before = set(compacted[day].batches) if day in compacted else set()
        if (
            date == day
            or date == "all"
            or (date == "new" and (numbers - before or _was_open(compacted, day)))
        ):
            if expectation.lies_ahead(day) or (expectation.is_open(day) and not allow_open):
                left = f"{day} is not closed: half a day would count as a quiet one"
            elif is_pruned(store_of(out, spark), out, day):
                left = f"{day} was compacted and has been pruned: what came of it since is not the day"
            elif before - numbers:
                left = (
                    f"{day} was compacted from raw batches that are gone ({min(before - numbers)}, ...): "
                    "compacting it again would lose what was in them"
                )
            else:
                wanted.append(day)
                continue
            if date == day:
                raise JobError(left)
            # A late line for a day of last month must not keep today from being compacted.
            print(f"left as it is: {left}", file=sys.stderr)
    if date not in ("all", "new") and not wanted:
        if date in compacted:
            raise JobError(f"all raw batches of {date} are gone: it stays as it was compacted")
        raise JobError(f"no lines of {date} have been read: there are {', '.join(sorted(by_date)) or 'none'}")
    known = coverage(index, expectation)
    faults = {} if allow_gaps else {day: text for day in wanted if (text := _faults(known.get(day), day))}
    done = {
        day: _compact_day(spark, out, day, by_date[day], known.get(day), is_open=expectation.is_open(day))
        for day in wanted
        if day not in faults
    }
    if faults:
        # Only now: a day that is still coming in must not keep those that are whole from being compacted.
        raise JobError(
            "; ".join(faults.values())
            + f"; {COMPLETE_ENOUGH:.0%} are asked for: ingest what is missing, name the gateways that are to be "
            + "there with --expect-gateways, or say --allow-gaps. "
            + f"Compacted: {', '.join(done) or 'nothing'}"
        )
    return done


def _was_open(compacted: Mapping[str, CompactedDay], day: str) -> bool:
    return day in compacted and compacted[day].open


def _faults(known: DayCoverage | None, day: str) -> str:
    """Why a day is not to be trusted, empty if it is."""
    if known is None:
        return f"{day} has no lines with a time that can be right"
    faults = [f"{day}: {clash}" for clash in known.clashes]
    if known.share < COMPLETE_ENOUGH:
        short = ", ".join(
            f"{gw} {share:.1%}" for gw, share in known.shares().items() if share < COMPLETE_ENOUGH
        )
        faults.append(f"{day} is only {known.share:.2%} complete ({short})")
    return "; ".join(faults)


def _compact_day(
    spark: Any,
    out: str,
    date: str,
    batches: list[RawBatch],
    known: DayCoverage | None,
    *,
    is_open: bool,
) -> dict[str, Any]:
    store = store_of(out, spark)
    folder = compacted_dir(out, date)
    runs = [int(name.removeprefix("run=")) for name in store.names(folder) if name.startswith("run=")]
    number = max(runs, default=0) + 1
    # A hidden name: readers leave it out.
    partial = f"{folder}/.run={number:06d}.part"
    store.delete(partial)
    rows = sum(batch.manifest["dates"][date]["rows"] for batch in batches)
    paths = [batch.path for batch in batches]
    # Of other batches the same client may be in different buckets, and Spark has to sort.
    here = is_local(out) and all(batch.manifest.get("buckets") == BUCKETS for batch in batches)
    if here:
        keys, elements = _compact_here(spark, paths, date, rows, partial)
    else:
        compacted_frame(spark, paths, date, rows).write.mode("overwrite").parquet(partial)
        written = spark.read.schema(COMPACTED).parquet(partial)
        keys, elements = written.selectExpr("count(*)", "coalesce(sum(size(t)), 0)").first()
    if elements != rows:
        raise JobError(
            f"{date}: {elements} rows were compacted of {rows}: this is a bug, nothing is published"
        )
    manifest = {
        "date": date,
        "rows": rows,
        "keys": keys,
        "completeness": known.share if known else 0.0,
        "gateways": known.shares() if known else {},
        "open": is_open,
        **_of_gateways([batch.manifest["dates"][date] for batch in batches]),
        "batches": [batch.number for batch in batches],
        "buckets": BUCKETS if here else 0,
    }
    store.write(f"{partial}/{MANIFEST}", json.dumps(manifest).encode() + b"\n")
    _publish(store, folder, partial, number)
    return manifest


def _of_gateways(dates: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What lines said of their gateways, by gateway, over all batches of a day; see `CompactedDay`."""
    algorithms: dict[str, set[str]] = {}
    set_back: dict[str, int] = {}
    for of_day in dates:
        for gw, told in of_day.get("algorithms", {}).items():
            algorithms.setdefault(gw, set()).update(told)
        for gw, jump_ms in of_day.get("set_back_ms", {}).items():
            set_back[gw] = set_back.get(gw, 0) + jump_ms
    return {
        "algorithms": {gw: sorted(told) for gw, told in sorted(algorithms.items())},
        "set_back_ms": dict(sorted(set_back.items())),
    }


def _compact_here(spark: Any, paths: list[str], date: str, rows: int, partial: str) -> tuple[int, int]:
    """Compacts in Spark's Python workers, which have `partial` mounted; keys and elements written."""
    folder = local_path(partial).absolute()
    folder.mkdir(parents=True)
    sources = [str(local_path(path).absolute()) for path in paths]
    day = datetime.date.fromisoformat(date)
    parts = min(BUCKETS, max(spark.sparkContext.defaultParallelism, rows // _ROWS_PER_TASK + 1))

    def compacted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column("id").to_pylist():
                buckets = (part * BUCKETS // parts, (part + 1) * BUCKETS // parts)
                written = compact_buckets(sources, day, buckets, str(folder))
                yield pa.RecordBatch.from_pylist(
                    [dict(zip(("file", "keys", "elements"), written, strict=True))]
                )

    parted = spark.range(0, parts, 1, parts)
    done = parted.mapInArrow(compacted, "file string, keys bigint, elements bigint").collect()
    files = {row.file for row in done}
    for path in folder.glob("*.parquet"):
        if path.name not in files:
            path.unlink()
    return sum(row["keys"] for row in done), sum(row.elements for row in done)


def _publish(store: Store, folder: str, partial: str, number: int) -> None:
    store.move(partial, f"{folder}/run={number:06d}")
    for name in store.names(folder):
        if name.startswith((".run=", "run=")) and name != f"run={number:06d}":
            store.delete(f"{folder}/{name}")


def compact_buckets(
    paths: list[str], date: datetime.date, buckets: tuple[int, int], folder: str
) -> tuple[str, int, int]:
    """Compacts some buckets of a day into one file of a folder that is there.

    Args:
        paths: folders of the raw batches.
        date: the day.
        buckets: from this one on, and up to but without that.
        folder: where to.

    Returns:
        The file's name, empty if there was nothing to write; how many keys and how many recorded seconds are in it.
    """
    files = [file for path in paths for file in raw_files(path)]
    path = Path(folder, f"part-{buckets[0]:05d}-{uuid.uuid4().hex}.parquet")
    with CompactedFileWriter(path) as writer:
        # Bucket by bucket: what is held is one bucket of the day, however many there are.
        for bucket in range(*buckets):
            pieces = [piece for file in files for piece in read_buckets(file, date, (bucket, bucket + 1))]
            if pieces:
                table = pa.concat_tables(pieces)
                order = pc.sort_indices(
                    table.select(_ROW_ORDER), [(name, "ascending") for name in _ROW_ORDER]
                )
                writer.write(bucket, join_chunks(_taken(table, order)))
    if not writer.keys:
        return "", 0, 0
    synced(path)
    return path.name, writer.keys, writer.elements


def _taken(table: pa.Table, order: pa.Array) -> Iterator[pa.RecordBatch]:
    for begin in range(0, len(order), _ROWS_JOINED_AT_ONCE):
        yield from table.take(order[begin : begin + _ROWS_JOINED_AT_ONCE]).combine_chunks().to_batches()


def compacted_frame(spark: Any, paths: list[str], date: str, rows: int) -> Any:
    """A day of raw batches as compacted rows, as a DataFrame with the columns of `COMPACTED`.

    Args:
        spark: the session.
        paths: folders of the batches.
        date: the day.
        rows: about how many elements there are, for the number of files.
    """
    spark.conf.set(ARROW_ROWS, _RAW_ROWS_AT_ONCE)
    parts = max(spark.sparkContext.defaultParallelism, rows // _ROWS_PER_FILE + 1)
    raw = spark.read.schema(RAW).parquet(*paths)
    chunks = raw.where(f"date = date'{date}' and kind in ('rows', 'events')")
    columns = [*KEY, *ORDER, *SERIES, *EVENTS]
    by_key = chunks.select(*columns).repartition(parts, *KEY)
    ordered = by_key.sortWithinPartitions(*KEY, *ORDER)
    return ordered.mapInArrow(join_chunks, COMPACTED)
