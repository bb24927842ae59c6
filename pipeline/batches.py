"""One micro-batch of `ingest`, written so that it counts once however often it is tried.

The order is the promise: rows into a hidden folder of this attempt alone, what the ledger says about their lines, a
manifest beside them, the folder's name `raw/batch=N` in one rename, then ledger N, which follows from ledger N - 1
and nothing else. A run that is killed anywhere in this tries batch N again with the same input, because Spark wrote
down what belongs to it beforehand, and replaces what it finds. Nobody sees half a batch, and what is left of an
attempt, tasks that still write included, is in a folder that nobody reads. Lines that had been read before are rare,
so rows are written first and only written again, without them, when the ledger finds some.
"""

from __future__ import annotations

import gc
import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, timedelta
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.columns import Collector, Skip
from pipeline.errors import JobError
from pipeline.layout import BUCKETS, MANIFEST, RAW, PackedDay, quarantine_dir, raw_dir
from pipeline.ledger import Entry, Ledger, Run
from pipeline.shards import write_shard
from pipeline.store import Store, is_local, local_path, store_of

_KEPT_LEDGERS: Final = 20
_IDENTITY: Final = "sluice.json"
_EPOCH: Final = date(1970, 1, 1)

Collect = Callable[[Iterable[pa.RecordBatch], Skip], Iterator[pa.RecordBatch]]


def files_to_rows(batches: Iterable[pa.RecordBatch], skip: Skip) -> Iterator[pa.RecordBatch]:
    """Whole files (columns path, content) to raw rows; runs in Spark's Python workers."""
    with _without_collector():
        for batch in batches:
            for path, content in zip(batch.column("path"), batch.column("content"), strict=True):
                yield from Collector(skip).file(path.as_py(), content.as_py())


def messages_to_rows(batches: Iterable[pa.RecordBatch], skip: Skip) -> Iterator[pa.RecordBatch]:
    """Messages of a topic (columns topic, partition, offset, value) to raw rows; runs in Spark's Python workers."""
    with _without_collector():
        for source, messages in groupby(_messages(batches), key=lambda message: message[0]):
            texts = ((offset, text) for _, offset, text in messages)
            yield from Collector(skip).messages(source, texts)


def _messages(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, int, bytes]]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("topic", "partition", "offset", "value")]
        for topic, partition, offset, value in zip(*columns, strict=True):
            yield f"{topic}-{partition}", offset, value or b""


@contextmanager
def _without_collector() -> Iterator[None]:
    """Keeps Python's cycle collector off: hundreds of thousands of short lists, no cycles, half of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Writer:
    """Writes batches; what `foreachBatch` calls.

    Attributes:
        told: manifests of the batches written by this object.
        failure: why it refused, if it did; Spark passes on only the text of what is raised here.
    """

    def __init__(self, spark: Any, out: str, checkpoint: str, collect: Collect) -> None:
        """Finds out where this checkpoint's batches go.

        Args:
            spark: the session.
            out: the pipeline's folder.
            checkpoint: Spark's checkpoint of the query; a new one begins after the last batch of `out`.
            collect: `files_to_rows` or `messages_to_rows`.

        Raises:
            JobError: the checkpoint does not fit to what has been written to `out`.
        """
        self.told: list[dict[str, Any]] = []
        self.failure: JobError | None = None
        self._spark = spark
        self._out = out
        self._collect = collect
        self._store = store_of(out, spark)
        self._checkpoint = checkpoint
        self._notes = store_of(checkpoint, spark)
        self._source, self._base = _identity(self._store, out, self._notes, checkpoint)
        for name in self._store.names(f"{out}/raw"):
            if name.startswith("."):
                self._store.delete(f"{out}/raw/{name}")

    def __call__(self, frame: Any, batch: int) -> None:
        """Writes a batch.

        Args:
            frame: its rows as the source gives them.
            batch: its number in the checkpoint; the same number comes with the same rows.
        """
        try:
            self._write(frame, batch)
        except JobError as exc:
            self.failure = exc
            raise

    def _write(self, frame: Any, batch: int) -> None:
        number = self._base + batch
        path = raw_dir(self._out, number)
        planned = self._planned(batch)
        if (written := _read_ledger(self._store, self._out, number)) is not None:
            if written["source"] != self._source or written.get("planned", planned) != planned:
                raise JobError(
                    f"batch {number} of {self._out} was written by another ingest, or {self._checkpoint} is a copy "
                    "from before it: run one at a time, and give this one a new checkpoint; lines that were read "
                    "are not read twice"
                )
            return  # killed between the ledger and Spark's own note that the batch is done
        ledger = self._ledger_before(number)
        attempt = f"{self._out}/raw/.batch={number:012d}.{uuid.uuid4().hex}"
        heads, torn = self._rows(frame, attempt, frozenset())
        ledger, duplicates = ledger.add(
            Entry(Run(gw, boot), seq, ts) for gw, boot, _, _, seq, ts, *_ in heads
        )
        if duplicates:
            self._store.delete(attempt)
            self._rows(frame, attempt, frozenset((heads[index][2], heads[index][3]) for index in duplicates))
        self._quarantine(attempt, number, torn)
        repeated = set(duplicates)
        manifest = _manifest([head for index, head in enumerate(heads) if index not in repeated])
        manifest |= {"torn": torn, "duplicates": len(duplicates), "source": self._source, "batch": batch}
        manifest["buckets"] = BUCKETS
        self._store.write(f"{attempt}/{MANIFEST}", _json(manifest))
        self._store.delete(path)
        self._store.rename(attempt, path)
        ledger_told = {"source": self._source, "planned": planned, "runs": ledger.to_json()}
        self._store.write(_ledger_path(self._out, number), _json(ledger_told))
        self._store.delete(_ledger_path(self._out, number - _KEPT_LEDGERS))
        self.told.append(manifest)

    def _planned(self, batch: int) -> str:
        """What Spark noted before it gave us the batch: the same when it is tried again, and only then."""
        return hashlib.sha256(self._notes.read(f"{self._checkpoint}/offsets/{batch}") or b"").hexdigest()[:16]

    def _ledger_before(self, number: int) -> Ledger:
        if number == 0:
            return Ledger()
        before = _read_ledger(self._store, self._out, number - 1)
        if before is None:
            raise JobError(
                f"ledger {number - 1} is missing in {self._out}: it was there when batch {number} began"
            )
        return Ledger.from_json(before["runs"])

    def _rows(self, frame: Any, folder: str, skip: Skip) -> tuple[list[tuple[Any, ...]], int]:
        """Writes the rows.

        Returns:
            Of each line gateway, boot, source, position, seq, ts, date, rows, dropped rows and dropped events; and
            the number of torn lines.
        """
        collect = self._collect
        if not is_local(self._out):

            def collected(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                return collect(batches, skip)

            frame.mapInArrow(collected, RAW).write.mode("overwrite").parquet(folder)
            told = self._spark.read.schema(RAW).parquet(folder).select(*_HEAD, *_HEAD_ARRAYS)
            return _heads(told.where("kind in ('lines', 'torn')").toArrow())
        local = local_path(folder).absolute()
        local.mkdir(parents=True)

        def written(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return write_shard(collect(batches, skip), str(local))

        told = frame.mapInArrow(written, RAW).select(*_HEAD, *_HEAD_ARRAYS).toArrow()
        files = set(told.filter(pc.equal(told.column("kind"), "file")).column("source").to_pylist())
        # Of tasks that were given up and tried again.
        for name in set(self._store.names(folder)) - files:
            self._store.delete(f"{folder}/{name}")
        return _heads(told.filter(pc.not_equal(told.column("kind"), "file")))

    def _quarantine(self, path: str, number: int, torn: int) -> None:
        folder = quarantine_dir(self._out, number)
        if not torn:
            self._store.delete(folder)
            return
        raw = self._spark.read.schema(RAW).parquet(path)
        kept = raw.where("kind = 'torn'").select("source", "at", "reason", "text")
        kept.coalesce(1).write.mode("overwrite").parquet(folder)


_HEAD: Final = ("kind", "gw", "boot", "source", "date")
_HEAD_ARRAYS: Final = ("position", "seq", "ts", "row_count", "dropped_rows", "dropped_events")


def _heads(told: pa.Table) -> tuple[list[tuple[Any, ...]], int]:
    heads = []
    lines = told.filter(pc.equal(told.column("kind"), "lines"))
    names = (*_HEAD, *_HEAD_ARRAYS)
    for _, gw, boot, source, day, *arrays in zip(
        *(lines.column(name).to_pylist() for name in names), strict=True
    ):
        for position, seq, ts, rows, *dropped in zip(*arrays, strict=True):
            heads.append((gw, boot, source, position, seq, ts, day, rows, *dropped))
    # Of two equal lines the same one is left out in every attempt, whatever order the files are listed in.
    heads.sort(key=lambda head: head[2:4])
    return heads, told.num_rows - lines.num_rows


def last_ledger(store: Store, out: str) -> tuple[int, dict[str, Any]] | None:
    """Number and content of the newest ledger, None before the first batch.

    Args:
        store: where `out` is.
        out: the pipeline's folder.
    """
    for name in reversed(store.names(f"{out}/ledger")):
        if name.startswith("v=") and name.endswith(".json"):
            number = int(name.removeprefix("v=").removesuffix(".json"))
            content = _read_ledger(store, out, number)
            if content is not None:
                return number, content
    return None


def numbered_ledger(store: Store, out: str) -> tuple[int, Ledger]:
    """The newest ledger's number, -1 before the first batch, and what has been read so far; see `last_ledger`."""
    number, content = last_ledger(store, out) or (-1, {"runs": []})
    return number, Ledger.from_json(content["runs"])


def read_ledger(out: str, spark: Any = None) -> Ledger:
    """What has been read so far.

    Args:
        out: the pipeline's folder.
        spark: a session; needed if `out` is not on this machine.
    """
    return numbered_ledger(store_of(out, spark), out)[1]


def with_losses(days: Sequence[PackedDay], out: str, spark: Any = None) -> list[PackedDay]:
    """Packed days with what is known of them now: a gap may show only after the day was packed.

    Args:
        days: as their manifests tell.
        out: the pipeline's folder.
        spark: a session; needed if `out` is not on this machine.
    """
    if not days:
        return []
    shares = {day_name(number): told.share for number, told in read_ledger(out, spark).days().items()}
    return [
        replace(day, completeness=min(day.completeness, shares.get(day.date, day.completeness)))
        for day in days
    ]


def day_name(day: int) -> str:
    """A day, counted since the epoch, as 2026-11-21."""
    return (_EPOCH + timedelta(days=day)).isoformat()


def _identity(store: Store, out: str, checkpoint_store: Store, checkpoint: str) -> tuple[str, int]:
    """The checkpoint's name, and the number that its batch 0 has in `out`."""
    last = last_ledger(store, out)
    known = checkpoint_store.read(f"{checkpoint}/{_IDENTITY}")
    if known is None:
        if "offsets" in checkpoint_store.names(checkpoint):
            raise JobError(
                f"{checkpoint} is the checkpoint of something else: give this ingest one of its own"
            )
        source, base = uuid.uuid4().hex, 0 if last is None else last[0] + 1
        checkpoint_store.write(
            f"{checkpoint}/{_IDENTITY}", _json({"source": source, "base": base, "out": out})
        )
        return source, base
    told = json.loads(known)
    source, base = told["source"], told["base"]
    if last is None and base > 0:
        raise JobError(
            f"{checkpoint} belongs to another folder than {out}: give this ingest a checkpoint of its own"
        )
    if last is not None and last[0] >= base and last[1]["source"] != source:
        raise JobError(
            f"another ingest has written to {out} after this checkpoint's last batch: give a new checkpoint; lines "
            "that were read are not read twice"
        )
    return source, base


def _manifest(heads: list[tuple[Any, ...]]) -> dict[str, Any]:
    dates: dict[str, dict[str, int]] = {}
    for *_, day, rows, dropped_rows, dropped_events in heads:
        of_day = dates.setdefault(str(day), {"lines": 0, "rows": 0, "dropped_rows": 0, "dropped_events": 0})
        of_day["lines"] += 1
        of_day["rows"] += rows
        of_day["dropped_rows"] += dropped_rows
        of_day["dropped_events"] += dropped_events
    totals = {name: sum(of_day[name] for of_day in dates.values()) for name in ("lines", "rows")}
    return {**totals, "dates": dict(sorted(dates.items()))}


def _ledger_path(out: str, number: int) -> str:
    return f"{out}/ledger/v={number:012d}.json"


def _read_ledger(store: Store, out: str, number: int) -> dict[str, Any] | None:
    content = store.read(_ledger_path(out, number))
    if content is None:
        return None
    told: dict[str, Any] = json.loads(content)
    return told


def _json(told: dict[str, Any]) -> bytes:
    return json.dumps(told, separators=(",", ":")).encode() + b"\n"
