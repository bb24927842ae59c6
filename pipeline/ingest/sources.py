"""Usage files and the usage topic as streams, and the query that reads them.

Structured Streaming records what it has read (the checkpoint); `pipeline.ingest.writer` writes the batches.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from typing import Any, Final

from pipeline.errors import ArgumentError, JobError
from pipeline.ingest.writer import Writer
from pipeline.spark.runner import cores_of
from pipeline.spark.session import ARROW_ROWS
from pipeline.storage.files import is_local, local_path

DEFAULT_TOPIC: Final = "__sluice_usage"
# Arrow batches between JVM and Python are small: whole files have up to 64 MiB, and lines some hundred KB.
_FILES_AT_ONCE: Final = "4"
_MESSAGES_AT_ONCE: Final = "200"
_LOOK_EVERY_S: Final = 1
_MIN_PARTITIONS: Final = "minPartitions"
_FILE_SCHEMA: Final = "path string, modificationTime timestamp, length bigint, content binary"


def files_stream(spark: Any, folder: str, *, max_files: int, after: str = "keep") -> Any:
    """Usage files of a folder as a stream of whole files.

    Hidden files are not read: a gateway writes `.name.part` and then renames it.

    Args:
        spark: the session.
        folder: the folder with the files.
        max_files: the most files in one batch.
        after: what happens to a file that was read: keep, delete or archive:DIR.

    Raises:
        ArgumentError: the folder does not exist or `after` is something else.
    """
    if is_local(folder) and not set("*?[{") & set(folder) and not local_path(folder).is_dir():
        raise ArgumentError(f"{folder} is not a folder: name the one that gateways write usage files to")
    spark.conf.set(ARROW_ROWS, _FILES_AT_ONCE)
    reader = spark.readStream.format("binaryFile").schema(_FILE_SCHEMA)
    reader = reader.option("pathGlobFilter", "*.{jsonl,jsonl.gz}").option("maxFilesPerTrigger", max_files)
    # By default Spark silently skips files that are a week older than the newest one.
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
        max_messages: the most messages in one batch.
        options: further settings of Kafka's consumer. minPartitions is Spark's own; default: the number of cores.
        signed: whether to read keys and headers too, with which signatures are checked.

    Raises:
        ArgumentError: `place` has another form.
    """
    topic, at, servers = place.rpartition("@")
    if not at or not servers:
        raise ArgumentError(
            f"--from kafka:{place}: say kafka:TOPIC@HOST:PORT, as kafka:{DEFAULT_TOPIC}@localhost:9092"
        )
    spark.conf.set(ARROW_ROWS, _MESSAGES_AT_ONCE)
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    # Messages that retention has deleted show as a gap in the index, which is clearer than a stopped query.
    reader = reader.option("failOnDataLoss", "false").option("maxOffsetsPerTrigger", max_messages)
    # A topic has few partitions, and a topic with one partition would be read by one core.
    reader = reader.option(_MIN_PARTITIONS, cores_of(spark))
    for name, value in options.items():
        own = name == _MIN_PARTITIONS or name.startswith("kafka.")
        reader = reader.option(name if own else f"kafka.{name}", value)
    more = ("key", "headers") if signed else ()
    reader = reader.option("includeHeaders", str(signed).lower())
    return reader.load().select("topic", "partition", "offset", "value", *more)


class Pace:
    """Checks whether reading keeps up with the interval between rounds."""

    def __init__(self, every_s: int) -> None:
        """Args: every_s: the interval between rounds, each of which reads all new data."""
        self._every_s = every_s
        self._was_late = False

    def after(self, took_s: float) -> str | None:
        """A warning for the operator after a round; None: reading keeps up.

        One long round catches up with data that had accumulated before. Two in a row do not.

        Args:
            took_s: how long this round took.
        """
        late, before = took_s > self._every_s, self._was_late
        self._was_late = late
        if not (late and before):
            return None
        return (
            f"ingest falls behind: reading what came in {self._every_s} s took {took_s:.0f} s. Give it more cores "
            "(--master), or divide the topic's gateways among several topics and ingests"
        )


def stream(frame: Any, writer: Writer, checkpoint: str, every_s: int | None = None) -> None:
    """Reads all available data, once or repeatedly until SIGTERM or SIGINT.

    Each round reads all data that is there, in as many batches as necessary. So `max_files` and `max_messages` bound
    a batch and its memory, but not how much is read per second.

    Args:
        frame: the stream to read.
        writer: writes the batches.
        checkpoint: the folder of Spark's checkpoint.
        every_s: time from the start of a round to the start of the next; None: a single round.

    Raises:
        JobError: the query failed or the writer refused a batch.
    """
    asked_to_stop = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.set())
    pace = Pace(every_s or 0)
    try:
        while True:
            began = time.monotonic()
            _read_all(frame, writer, checkpoint, asked_to_stop)
            took_s = time.monotonic() - began
            if every_s is None or asked_to_stop.is_set():
                return
            if (note := pace.after(took_s)) is not None:
                print(note, file=sys.stderr, flush=True)
            if asked_to_stop.wait(max(0.0, every_s - took_s)):
                return
    finally:
        signal.signal(signal.SIGTERM, before)


def _read_all(frame: Any, writer: Writer, checkpoint: str, asked_to_stop: threading.Event) -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import StreamingQueryException

    query = (
        frame.writeStream.foreachBatch(writer)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        # Waits in short steps, because a signal handler must not call the JVM in the middle of another call.
        while not query.awaitTermination(_LOOK_EVERY_S):
            if asked_to_stop.is_set():
                break
    except StreamingQueryException as exc:
        raise writer.failure or JobError(f"the stream failed: {str(exc)[:2000]}") from exc
    except Py4JError as exc:
        # A signal to the whole process group ends the JVM as well; the next run tries the batch again.
        raise JobError("Spark's JVM has ended") from exc
    finally:
        with contextlib.suppress(Py4JError):
            query.stop()
