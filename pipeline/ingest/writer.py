"""One micro-batch of `ingest`, written so that it counts once however often it is tried.

It is written in this order:

1. its rows, into a hidden folder of this attempt alone;
2. its manifest, in the same folder, after the offset index has said which lines are new;
3. the folder's name `raw/batch=N`, in one rename;
4. offset index N, which follows from offset index N - 1 and nothing else.

A run that is killed anywhere in this tries batch N again with the same input, because Spark noted beforehand what
belongs to it, and replaces what it finds. Readers never see half a batch: an attempt that did not end stays in its
hidden folder, with what tasks may still write there. Lines that had been read before are rare. So rows are written
first, and written again without those lines only when there are some.
"""

from __future__ import annotations

import gc
import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import JobError
from pipeline.ingest.collector import Collector, Skip
from pipeline.ingest.lines import KEPT_BYTES, Torn
from pipeline.storage.index_files import index_path, last_offset_index, read_index_file
from pipeline.storage.layout import BUCKETS, RAW, quarantine_dir, raw_dir
from pipeline.storage.offset_index import Entry, OffsetIndex, Run
from pipeline.storage.raw_files import write_raw_file
from pipeline.storage.store import MANIFEST, Store, is_local, local_path, store_of
from quotas.record_signature import SIGNATURE_HEADER, RecordSigner

_KEPT_INDEXES: Final = 20
_IDENTITY: Final = "sluice.json"

Collect = Callable[[Iterable[pa.RecordBatch], Skip], Iterator[pa.RecordBatch]]


def files_to_rows(batches: Iterable[pa.RecordBatch], skip: Skip) -> Iterator[pa.RecordBatch]:
    """Whole files (columns path, content) to raw rows; runs in Spark's Python workers."""
    with _without_collector():
        for batch in batches:
            for path, content in zip(batch.column("path"), batch.column("content"), strict=True):
                yield from Collector(skip).file(path.as_py(), content.as_py())


def messages_to_rows(
    batches: Iterable[pa.RecordBatch], skip: Skip, *, secrets: Sequence[bytes] = ()
) -> Iterator[pa.RecordBatch]:
    """Messages of a topic (columns topic, partition, offset, value) to raw rows; runs in Spark's Python workers.

    With secrets (and the columns key and headers) what is not signed with one of them is not read.
    """
    with _without_collector():
        found = _signed_messages(batches, secrets) if secrets else _messages(batches)
        for source, messages in groupby(found, key=lambda message: message[0]):
            texts = ((offset, text) for _, offset, text in messages)
            yield from Collector(skip).messages(source, texts)


def _signed_messages(
    batches: Iterable[pa.RecordBatch], secrets: Sequence[bytes]
) -> Iterator[tuple[str, int, bytes | Torn]]:
    signers: dict[str, RecordSigner] = {}
    names = ("topic", "partition", "offset", "key", "value", "headers")
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in names]
        for topic, partition, offset, key, value, headers in zip(*columns, strict=True):
            signer = signers.get(topic) or signers.setdefault(topic, RecordSigner(topic, secrets))
            signature = {header["key"]: header["value"] for header in headers or ()}.get(SIGNATURE_HEADER)
            text: bytes | Torn = value or b""
            if signer.secret_of(signature, key, value) is None:
                text = Torn(offset, "no valid signature", (value or b"")[:KEPT_BYTES])
            yield f"{topic}-{partition}", offset, text


def _messages(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, int, bytes | Torn]]:
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
        manifests: of the batches written by this object.
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
        self.manifests: list[dict[str, Any]] = []
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
        if (written := read_index_file(self._store, self._out, number)) is not None:
            if written["source"] != self._source or written.get("planned", planned) != planned:
                raise JobError(
                    f"batch {number} of {self._out} was written by another ingest, or {self._checkpoint} is a copy "
                    "from before it: run one at a time, and give this one a new checkpoint; lines that were read "
                    "are not read twice"
                )
            return  # killed between the offset index and Spark's own note that the batch is done
        index = self._index_before(number)
        attempt = f"{self._out}/raw/.batch={number:012d}.{uuid.uuid4().hex}"
        heads, torn = self._rows(frame, attempt, frozenset())
        index, duplicates = index.add(Entry(Run(gw, boot), seq, ts) for gw, boot, _, _, seq, ts, *_ in heads)
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
        self._store.move(attempt, path)
        index_content = {"source": self._source, "planned": planned, "runs": index.to_json()}
        self._store.write(index_path(self._out, number), _json(index_content))
        self._store.delete(index_path(self._out, number - _KEPT_INDEXES))
        self.manifests.append(manifest)

    def _planned(self, batch: int) -> str:
        """What Spark noted before it gave us the batch: the same when it is tried again, and only then."""
        return hashlib.sha256(self._notes.read(f"{self._checkpoint}/offsets/{batch}") or b"").hexdigest()[:16]

    def _index_before(self, number: int) -> OffsetIndex:
        if number == 0:
            return OffsetIndex()
        before = read_index_file(self._store, self._out, number - 1)
        if before is None:
            raise JobError(
                f"offset index {number - 1} is missing in {self._out}: it was there when batch {number} began"
            )
        return OffsetIndex.from_json(before["runs"])

    def _rows(self, frame: Any, folder: str, skip: Skip) -> tuple[list[tuple[Any, ...]], int]:
        """Writes the rows.

        Returns:
            Of each line gateway, boot, source, position, seq, ts, date, rows, dropped rows, dropped events, algorithm
            and jump; and the number of torn lines.
        """
        collect = self._collect
        if not is_local(self._out):

            def collected(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                return collect(batches, skip)

            frame.mapInArrow(collected, RAW).write.mode("overwrite").parquet(folder)
            raw = self._spark.read.schema(RAW).parquet(folder).select(*_HEAD, *_HEAD_ARRAYS)
            return _heads(raw.where("kind in ('lines', 'torn')").toArrow())
        local = local_path(folder).absolute()
        local.mkdir(parents=True)

        def written(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return write_raw_file(collect(batches, skip), str(local))

        answers = frame.mapInArrow(written, RAW).select(*_HEAD, *_HEAD_ARRAYS).toArrow()
        files = set(answers.filter(pc.equal(answers.column("kind"), "file")).column("source").to_pylist())
        # Of tasks that were given up and tried again.
        for name in set(self._store.names(folder)) - files:
            self._store.delete(f"{folder}/{name}")
        return _heads(answers.filter(pc.not_equal(answers.column("kind"), "file")))

    def _quarantine(self, path: str, number: int, torn: int) -> None:
        folder = quarantine_dir(self._out, number)
        if not torn:
            self._store.delete(folder)
            return
        raw = self._spark.read.schema(RAW).parquet(path)
        kept = raw.where("kind = 'torn'").select("source", "at", "reason", "text")
        kept.coalesce(1).write.mode("overwrite").parquet(folder)


_HEAD: Final = ("kind", "gw", "boot", "source", "date")
_HEAD_ARRAYS: Final = (
    "position",
    "seq",
    "ts",
    "row_count",
    "dropped_rows",
    "dropped_events",
    "algo",
    "jump_ms",
)


def _heads(answers: pa.Table) -> tuple[list[tuple[Any, ...]], int]:
    heads = []
    lines = answers.filter(pc.equal(answers.column("kind"), "lines"))
    names = (*_HEAD, *_HEAD_ARRAYS)
    for _, gw, boot, source, day, *arrays in zip(
        *(lines.column(name).to_pylist() for name in names), strict=True
    ):
        for position, seq, ts, rows, *dropped in zip(*arrays, strict=True):
            heads.append((gw, boot, source, position, seq, ts, day, rows, *dropped))
    # Of two equal lines the same one is left out in every attempt, whatever order the files are listed in.
    heads.sort(key=lambda head: head[2:4])
    return heads, answers.num_rows - lines.num_rows


def _identity(store: Store, out: str, checkpoint_store: Store, checkpoint: str) -> tuple[str, int]:
    """The checkpoint's name, and the number that its batch 0 has in `out`."""
    last = last_offset_index(store, out)
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
    identity = json.loads(known)
    source, base = identity["source"], identity["base"]
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
    dates: dict[str, dict[str, Any]] = {}
    for gw, *_, day, rows, dropped_rows, dropped_events, algorithm, jump_ms in heads:
        of_day = dates.setdefault(str(day), {"lines": 0, "rows": 0, "dropped_rows": 0, "dropped_events": 0})
        if algorithm and algorithm not in (told := of_day.setdefault("algorithms", {}).setdefault(gw, [])):
            told.append(algorithm)
        if jump_ms < 0:
            set_back = of_day.setdefault("set_back_ms", {})
            set_back[gw] = set_back.get(gw, 0) - jump_ms
        of_day["lines"] += 1
        of_day["rows"] += rows
        of_day["dropped_rows"] += dropped_rows
        of_day["dropped_events"] += dropped_events
    totals = {name: sum(of_day[name] for of_day in dates.values()) for name in ("lines", "rows")}
    return {**totals, "dates": dict(sorted(dates.items()))}


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"
