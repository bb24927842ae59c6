"""``sluice-pipeline pack``: a day of raw rows as one row per client, for everything that reads them.

The raw rows of a day are ordered by client, start and number of the line, and joined (`pipeline.joining`): each task
reads its own buckets of the raw files, or, where the workers have not mounted the folder, Spark sorts. The day
appears under its name when it is whole, and a day that got late lines is packed again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from pipeline.batches import day_name, numbered_ledger
from pipeline.errors import JobError
from pipeline.joining import ORDER, join_chunks
from pipeline.layout import (
    BUCKETS,
    COMPLETE_ENOUGH,
    EVENTS,
    KEY,
    MANIFEST,
    PACKED,
    RAW,
    SERIES,
    RawBatch,
    committed_batches,
    packed_dir,
    published_days,
)
from pipeline.prune import is_pruned
from pipeline.session import ARROW_ROWS, open_session
from pipeline.shards import pack_shard
from pipeline.store import Store, held, is_local, local_path, store_of

_RAW_ROWS_AT_ONCE: Final = "4000"
_ROWS_PER_FILE: Final = 8_000_000
_ROWS_PER_TASK: Final = 4_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    parser.add_argument("--out", required=True, help="the pipeline's folder, the same for all jobs")
    parser.add_argument(
        "--date",
        default="new",
        help="2026-11-21, all, or new: days that got lines since they were packed (new)",
    )
    parser.add_argument(
        "--allow-gaps",
        action="store_true",
        help=f"pack days that are less than {COMPLETE_ENOUGH:.0%}% complete",
    )
    parser.add_argument(
        "--master", help="Spark's cluster (spark-submit's, SPARK_MASTER, or this machine's cores)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the job."""
    out = arguments.out.rstrip("/")
    if arguments.date not in ("all", "new"):
        _check_date(arguments.date)
    spark = open_session("sluice pack", master=arguments.master)
    try:
        with held(f"{out}/.pack.lock"):
            packed = pack(spark, out, date=arguments.date, allow_gaps=arguments.allow_gaps)
    finally:
        spark.stop()
    for date, told in packed.items():
        share = f"{told['completeness']:.2%} complete"
        print(f"{date}: {told['rows']} rows of {told['keys']} clients and APIs, {share}")
    if not packed:
        print("nothing new to pack")
    return 0


def pack(spark: Any, out: str, *, date: str = "new", allow_gaps: bool = False) -> dict[str, dict[str, Any]]:
    """Packs days and publishes them.

    Args:
        spark: the session.
        out: the pipeline's folder.
        date: a day, or all, or new.
        allow_gaps: also days below COMPLETE_ENOUGH.

    Returns:
        The manifest of each day that was packed.

    Raises:
        JobError: a day is not complete enough, which is told when all others have been packed; or the day asked for
            is not there or has lost raw batches that it was packed from.
    """
    by_date: dict[str, list[RawBatch]] = {}
    newest, ledger = numbered_ledger(store_of(out, spark), out)
    for batch in committed_batches(out, spark=spark):
        # A batch comes before its ledger; killed in between, ingest may give its number to other lines.
        if batch.number > newest:
            continue
        for day in batch.told["dates"]:
            by_date.setdefault(day, []).append(batch)
    packed = {day.date: day for day in published_days(out, spark=spark)}
    wanted = []
    for day, batches in sorted(by_date.items()):
        numbers = {batch.number for batch in batches}
        before = set(packed[day].batches) if day in packed else set()
        if date == day or date == "all" or (date == "new" and numbers - before):
            if is_pruned(store_of(out, spark), out, day):
                gone = f"{day} was packed and has been pruned: what came of it since is not the day"
            elif before - numbers:
                gone = (
                    f"{day} was packed from raw batches that are gone ({min(before - numbers)}, ...): packing it "
                    "again would lose what was in them"
                )
            else:
                wanted.append(day)
                continue
            if date == day:
                raise JobError(gone)
            # A late line for a day of last month must not keep today from being packed.
            print(f"left as it is: {gone}", file=sys.stderr)
    if date not in ("all", "new") and not wanted:
        if date in packed:
            raise JobError(f"all raw batches of {date} are gone: it stays as it was packed")
        raise JobError(f"no lines of {date} have been read: there are {', '.join(sorted(by_date)) or 'none'}")
    days = {day_name(number): told.share for number, told in ledger.days().items()}
    # A day that only a clock set wrong ever named lies outside the ledger's intervals, which know their ends.
    shares = {day: days.get(day, 1.0) for day in wanted}
    short = [day for day, share in shares.items() if share < COMPLETE_ENOUGH and not allow_gaps]
    done = {day: _pack_day(spark, out, day, by_date[day], shares[day]) for day in wanted if day not in short}
    if short:
        # Only now: a day that is still coming in must not keep those that are whole from being packed.
        raise JobError(
            "; ".join(f"{day} is only {shares[day]:.2%} complete" for day in short)
            + f"; {COMPLETE_ENOUGH:.0%} are asked for: ingest what is missing, or say --allow-gaps. "
            + f"Packed: {', '.join(done) or 'nothing'}"
        )
    return done


def _pack_day(
    spark: Any, out: str, date: str, batches: list[RawBatch], completeness: float
) -> dict[str, Any]:
    store = store_of(out, spark)
    folder = packed_dir(out, date)
    runs = [int(name.removeprefix("run=")) for name in store.names(folder) if name.startswith("run=")]
    number = max(runs, default=0) + 1
    # Hidden names, so that nobody takes a day in the making for one.
    partial = f"{folder}/.run={number:06d}.part"
    store.delete(partial)
    rows = sum(batch.told["dates"][date]["rows"] for batch in batches)
    paths = [batch.path for batch in batches]
    # Of other batches the same client may be in different buckets, and Spark has to sort.
    here = is_local(out) and all(batch.told.get("buckets") == BUCKETS for batch in batches)
    if here:
        keys, elements = _pack_here(spark, paths, date, rows, partial)
    else:
        packed_frame(spark, paths, date, rows).write.mode("overwrite").parquet(partial)
        written = spark.read.schema(PACKED).parquet(partial)
        keys, elements = written.selectExpr("count(*)", "coalesce(sum(size(t)), 0)").first()
    if elements != rows:
        raise JobError(f"{date}: {elements} rows were packed of {rows}: this is a bug, nothing is published")
    told = {
        "date": date,
        "rows": rows,
        "keys": keys,
        "completeness": completeness,
        "batches": [batch.number for batch in batches],
        "buckets": BUCKETS if here else 0,
    }
    store.write(f"{partial}/{MANIFEST}", json.dumps(told).encode() + b"\n")
    _publish(store, folder, partial, number)
    return told


def _pack_here(spark: Any, paths: list[str], date: str, rows: int, partial: str) -> tuple[int, int]:
    """Packs in Spark's Python workers, which have `partial` mounted; keys and elements written."""
    folder = local_path(partial).absolute()
    folder.mkdir(parents=True)
    sources = [str(local_path(path).absolute()) for path in paths]
    day = datetime.date.fromisoformat(date)
    parts = min(BUCKETS, max(spark.sparkContext.defaultParallelism, rows // _ROWS_PER_TASK + 1))

    def packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column("id").to_pylist():
                buckets = (part * BUCKETS // parts, (part + 1) * BUCKETS // parts)
                told = pack_shard(sources, day, buckets, str(folder))
                yield pa.RecordBatch.from_pylist([dict(zip(("file", "keys", "elements"), told, strict=True))])

    parted = spark.range(0, parts, 1, parts)
    done = parted.mapInArrow(packed, "file string, keys bigint, elements bigint").collect()
    files = {row.file for row in done}
    for path in folder.glob("*.parquet"):
        if path.name not in files:
            path.unlink()
    return sum(row["keys"] for row in done), sum(row.elements for row in done)


def _publish(store: Store, folder: str, partial: str, number: int) -> None:
    store.rename(partial, f"{folder}/run={number:06d}")
    for name in store.names(folder):
        if name.startswith((".run=", "run=")) and name != f"run={number:06d}":
            store.delete(f"{folder}/{name}")


def packed_frame(spark: Any, paths: list[str], date: str, rows: int) -> Any:
    """A day of raw batches as packed rows, as a DataFrame with the columns of `PACKED`.

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
    return ordered.mapInArrow(join_chunks, PACKED)


def _check_date(text: str) -> None:
    try:
        datetime.date.fromisoformat(text)
    except ValueError as exc:
        raise JobError(f"--date {text!r}: say a day as 2026-11-21, all, or new") from exc
