"""``sluice-pipeline ingest``: usage files or the usage topic into the raw table, each line exactly once.

Structured Streaming keeps track of what has been seen (`--checkpoint`), `pipeline.batches` writes, the ledger keeps
lines that arrive twice from counting twice and tells which never arrived.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import sys
import threading
from typing import Any, Final

from pipeline.batches import Writer, day_name, files_to_rows, messages_to_rows, read_ledger
from pipeline.errors import JobError
from pipeline.jars import connector_settings
from pipeline.session import ARROW_ROWS, open_session
from pipeline.store import held, is_local, local_path

DEFAULT_TOPIC: Final = "__sluice_usage"
# Whole files, up to 64 MiB each, or lines of up to some hundred KB: few at a time between JVM and Python.
_FILES_AT_ONCE: Final = "4"
_MESSAGES_AT_ONCE: Final = "200"
_LOOK_EVERY_S: Final = 1
_SHOWN_GAPS: Final = 20
_FILE_SCHEMA: Final = "path string, modificationTime timestamp, length bigint, content binary"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    parser.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="SOURCE",
        help="files:DIR, or kafka:TOPIC@HOST:PORT[,...]",
    )
    parser.add_argument("--out", required=True, help="the pipeline's folder, the same for all jobs")
    parser.add_argument("--checkpoint", help="Spark's notes on what it has read (OUT/checkpoint)")
    parser.add_argument(
        "--trigger",
        default="available-now",
        help="available-now: what is there, then end; 30s: go on, every 30 s",
    )
    parser.add_argument("--max-files", type=int, default=400, help="files in one batch (%(default)s)")
    parser.add_argument(
        "--max-messages", type=int, default=20_000, help="messages in one batch (%(default)s)"
    )
    parser.add_argument(
        "--after",
        default="keep",
        metavar="WHAT",
        help="of files that were read: keep, delete, or archive:DIR",
    )
    parser.add_argument(
        "--kafka-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="for Kafka's consumer: TLS, SASL",
    )
    parser.add_argument("--jars", help="a folder with Spark's Kafka connector, instead of the pinned one")
    parser.add_argument("--packages", help="the connector's Maven coordinates, for Spark to fetch")
    parser.add_argument(
        "--master", help="Spark's cluster (spark-submit's, SPARK_MASTER, or this machine's cores)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the job."""
    kind, _, place = arguments.source.partition(":")
    if kind not in ("files", "kafka") or not place:
        raise JobError(f"--from {arguments.source!r}: say files:DIR or kafka:TOPIC@HOST:PORT")
    settings = connector_settings(arguments.jars, arguments.packages) if kind == "kafka" else {}
    out = arguments.out.rstrip("/")
    checkpoint = (arguments.checkpoint or f"{out}/checkpoint").rstrip("/")
    trigger = _trigger(arguments.trigger)
    with held(f"{out}/.ingest.lock"):
        spark = open_session("sluice ingest", master=arguments.master, settings=settings)
        try:
            if kind == "files":
                frame = files_stream(spark, place, max_files=arguments.max_files, after=arguments.after)
            else:
                options = dict(option.partition("=")[::2] for option in arguments.kafka_option)
                frame = topic_stream(spark, place, max_messages=arguments.max_messages, options=options)
            collect = files_to_rows if kind == "files" else messages_to_rows
            writer = Writer(spark, out, checkpoint, collect)
            stream(frame, writer, checkpoint, trigger)
            _tell(writer, out, spark)
        finally:
            spark.stop()
    return 0


def files_stream(spark: Any, folder: str, *, max_files: int, after: str = "keep") -> Any:
    """Usage files of a folder as a stream of whole files.

    Hidden files are not read: a gateway writes `.name.part` and renames.

    Args:
        spark: the session.
        folder: where the files are.
        max_files: most files in one batch.
        after: keep, delete or archive:DIR.

    Raises:
        JobError: the folder is not there or `after` is something else.
    """
    if is_local(folder) and not set("*?[{") & set(folder) and not local_path(folder).is_dir():
        raise JobError(f"{folder} is not a folder: name the one that gateways write usage files to")
    spark.conf.set(ARROW_ROWS, _FILES_AT_ONCE)
    reader = spark.readStream.format("binaryFile").schema(_FILE_SCHEMA)
    reader = reader.option("pathGlobFilter", "*.{jsonl,jsonl.gz}").option("maxFilesPerTrigger", max_files)
    # The default, a week before the newest file, passes over late files without a word.
    reader = reader.option("maxFileAge", "3650d")
    what, _, archive = after.partition(":")
    if what not in ("keep", "delete", "archive") or (what == "archive") != bool(archive):
        raise JobError(f"--after {after!r}: say keep, delete or archive:DIR")
    if what != "keep":
        reader = reader.option("cleanSource", what)
    if archive:
        reader = reader.option("sourceArchiveDir", archive)
    return reader.load(folder).select("path", "content")


def topic_stream(spark: Any, place: str, *, max_messages: int, options: dict[str, str]) -> Any:
    """The usage topic as a stream.

    Args:
        spark: the session, with Spark's Kafka connector.
        place: TOPIC@HOST:PORT[,HOST:PORT...].
        max_messages: most messages in one batch.
        options: more of Kafka's consumer settings.

    Raises:
        JobError: `place` is written differently.
    """
    topic, at, servers = place.rpartition("@")
    if not at or not servers:
        raise JobError(
            f"--from kafka:{place}: say kafka:TOPIC@HOST:PORT, as kafka:{DEFAULT_TOPIC}@localhost:9092"
        )
    spark.conf.set(ARROW_ROWS, _MESSAGES_AT_ONCE)
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    # What the topic's retention has taken shows as a gap in the ledger, which says more than a stopped query.
    reader = reader.option("failOnDataLoss", "false").option("maxOffsetsPerTrigger", max_messages)
    for name, value in options.items():
        reader = reader.option(name if name.startswith("kafka.") else f"kafka.{name}", value)
    return reader.load().select("topic", "partition", "offset", "value")


def stream(frame: Any, writer: Writer, checkpoint: str, trigger: dict[str, Any]) -> None:
    """Runs the query to its end, or until SIGTERM or SIGINT.

    Args:
        frame: what to read.
        writer: who writes the batches.
        checkpoint: Spark's notes.
        trigger: arguments of `DataStreamWriter.trigger`.

    Raises:
        JobError: the query failed or the writer refused.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import StreamingQueryException

    asked_to_stop = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.set())
    query = (
        frame.writeStream.foreachBatch(writer)
        .option("checkpointLocation", checkpoint)
        .trigger(**trigger)
        .start()
    )
    try:
        # In steps: a handler of signals must not talk to the JVM in the middle of another call.
        while not query.awaitTermination(_LOOK_EVERY_S):
            if asked_to_stop.is_set():
                break
    except StreamingQueryException as exc:
        raise writer.failure or JobError(f"the stream failed: {str(exc)[:2000]}") from exc
    except Py4JError as exc:
        # Whoever ends a whole process group ends the JVM as well; the next run tries the batch again.
        raise JobError("Spark's JVM has ended") from exc
    finally:
        signal.signal(signal.SIGTERM, before)
        with contextlib.suppress(Py4JError):
            query.stop()


def _trigger(text: str) -> dict[str, Any]:
    if text == "available-now":
        return {"availableNow": True}
    match = re.fullmatch(r"([1-9]\d{0,4})s", text)
    if match is None:
        raise JobError(f"--trigger {text!r}: say available-now, or seconds as 30s")
    return {"processingTime": f"{match[1]} seconds"}


def _tell(writer: Writer, out: str, spark: Any) -> None:
    """What was read, and what never arrived, on standard output."""
    total = {
        name: sum(batch[name] for batch in writer.told) for name in ("lines", "rows", "duplicates", "torn")
    }
    print(
        f"{len(writer.told)} batches: {total['lines']} lines with {total['rows']} rows; "
        f"{total['duplicates']} lines had been read before, {total['torn']} could not be read (quarantine)"
    )
    ledger = read_ledger(out, spark)
    gaps = list(ledger.gaps())
    for gap in gaps[:_SHOWN_GAPS]:
        print(f"missing: {gap.lines} lines of {gap.gw}, started {gap.boot}: {gap.first} to {gap.last}")
    if len(gaps) > _SHOWN_GAPS:
        print(f"missing: {len(gaps) - _SHOWN_GAPS} more gaps: see sluice-pipeline status", file=sys.stdout)
    for day, completeness in ledger.days().items():
        print(f"{day_name(day)}: {completeness.lines} lines, {completeness.share:.2%} complete")
