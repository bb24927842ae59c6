"""Usage files and the usage topic as streams, and the query over them.

Structured Streaming keeps track of what it has seen (the checkpoint); `pipeline.ingest.writer` writes the batches.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Any, Final

from pipeline.errors import ArgumentError, JobError
from pipeline.ingest.writer import Writer
from pipeline.spark.runner import cores_of
from pipeline.spark.session import ARROW_ROWS
from pipeline.storage.files import is_local, local_path

DEFAULT_TOPIC: Final = "__sluice_usage"
# Whole files, up to 64 MiB each, or lines of up to some hundred KB: few at a time between JVM and Python.
_FILES_AT_ONCE: Final = "4"
_MESSAGES_AT_ONCE: Final = "200"
_LOOK_EVERY_S: Final = 1
_MIN_PARTITIONS: Final = "minPartitions"
_FILE_SCHEMA: Final = "path string, modificationTime timestamp, length bigint, content binary"


def files_stream(spark: Any, folder: str, *, max_files: int, after: str = "keep") -> Any:
    """Usage files of a folder as a stream of whole files.

    Hidden files are not read: a gateway writes `.name.part` and renames.

    Args:
        spark: the session.
        folder: where the files are.
        max_files: most files in one batch.
        after: keep, delete or archive:DIR.

    Raises:
        ArgumentError: the folder is not there or `after` is something else.
    """
    if is_local(folder) and not set("*?[{") & set(folder) and not local_path(folder).is_dir():
        raise ArgumentError(f"{folder} is not a folder: name the one that gateways write usage files to")
    spark.conf.set(ARROW_ROWS, _FILES_AT_ONCE)
    reader = spark.readStream.format("binaryFile").schema(_FILE_SCHEMA)
    reader = reader.option("pathGlobFilter", "*.{jsonl,jsonl.gz}").option("maxFilesPerTrigger", max_files)
    # The default, a week before the newest file, passes over late files without a word.
    reader = reader.option("maxFileAge", "3650d")
    what, _, archive = after.partition(":")
    if what not in ("keep", "delete", "archive") or (what == "archive") != bool(archive):
        raise ArgumentError(f"--after {after!r}: say keep, delete or archive:DIR")
    if what != "keep":
        reader = reader.option("cleanSource", what)
    if archive:
        reader = reader.option("sourceArchiveDir", archive)
    return reader.load(folder).select("path", "content")


def topic_stream(
    spark: Any, place: str, *, max_messages: int, options: dict[str, str], signed: bool = False
) -> Any:
    """The usage topic as a stream.

    Args:
        spark: the session, with Spark's Kafka connector.
        place: TOPIC@HOST:PORT[,HOST:PORT...].
        max_messages: most messages in one batch.
        options: more of Kafka's consumer settings; minPartitions is Spark's own, else as many as there are cores.
        signed: with what signatures are checked by.

    Raises:
        ArgumentError: `place` is written differently.
    """
    topic, at, servers = place.rpartition("@")
    if not at or not servers:
        raise ArgumentError(
            f"--from kafka:{place}: say kafka:TOPIC@HOST:PORT, as kafka:{DEFAULT_TOPIC}@localhost:9092"
        )
    spark.conf.set(ARROW_ROWS, _MESSAGES_AT_ONCE)
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    # What the topic's retention has taken shows as a gap in the index, which says more than a stopped query.
    reader = reader.option("failOnDataLoss", "false").option("maxOffsetsPerTrigger", max_messages)
    # A topic has few partitions, and one with one would be read by one core.
    reader = reader.option(_MIN_PARTITIONS, cores_of(spark))
    for name, value in options.items():
        own = name == _MIN_PARTITIONS or name.startswith("kafka.")
        reader = reader.option(name if own else f"kafka.{name}", value)
    more = ("key", "headers") if signed else ()
    reader = reader.option("includeHeaders", str(signed).lower())
    return reader.load().select("topic", "partition", "offset", "value", *more)


def stream(frame: Any, writer: Writer, checkpoint: str, trigger: dict[str, Any]) -> None:
    """Runs the query to its end, or until SIGTERM or SIGINT.

    Args:
        frame: what to read.
        writer: writes the batches.
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
        # A signal to the whole process group ends the JVM as well; the next run tries the batch again.
        raise JobError("Spark's JVM has ended") from exc
    finally:
        signal.signal(signal.SIGTERM, before)
        with contextlib.suppress(Py4JError):
            query.stop()
