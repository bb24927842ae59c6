"""``sluice-pipeline ingest``: reads usage files or the usage topic into the raw table, each line exactly once."""

from __future__ import annotations

import argparse
import re
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.errors import ArgumentError, Exit
from pipeline.jobs.arguments import add_master, add_out
from pipeline.spark.jars import connector_settings
from pipeline.spark.session import open_session
from pipeline.storage.coverage import Expectation, coverage, day_name
from pipeline.storage.offset_index import DAY_S
from quotas.entities import counted
from quotas.record_signature import MIN_SECRET_BYTES

if TYPE_CHECKING:
    from pipeline.ingest.writer import Writer

_SHOWN_GAPS: Final = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    parser.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="SOURCE",
        help="files:DIR, or kafka:TOPIC@HOST:PORT[,...]",
    )
    add_out(parser)
    parser.add_argument(
        "--checkpoint",
        help="a folder for Spark's notes on what it has read of this source (one in OUT/checkpoints for each source)",
    )
    parser.add_argument(
        "--trigger",
        default="available-now",
        help="available-now: read what is there, then end; 30s: keep running, read all that has come every 30 s",
    )
    parser.add_argument(
        "--max-files", type=int, default=400, help="files in one batch, which bounds memory (%(default)s)"
    )
    parser.add_argument(
        "--max-messages",
        type=int,
        default=20_000,
        help="messages in one batch, which bounds memory (%(default)s)",
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
    parser.add_argument(
        "--secret-file",
        action="append",
        default=[],
        metavar="FILE",
        help="of the topic only lines signed with what is in one of these are read; others count as torn",
    )
    parser.add_argument("--jars", help="a folder with Spark's Kafka connector, instead of the pinned one")
    parser.add_argument("--packages", help="the connector's Maven coordinates, for Spark to fetch")
    add_master(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Runs the job."""
    # `--help` must work without the packages of the extra.
    from pipeline.ingest.checkpoints import checkpoint_of
    from pipeline.ingest.sources import files_stream, stream, topic_stream
    from pipeline.ingest.writer import Writer, files_to_rows, messages_to_rows
    from pipeline.spark.runner import OnSpark

    kind, _, place = arguments.source.partition(":")
    if kind not in ("files", "kafka") or not place:
        raise ArgumentError(f"--from {arguments.source!r}: say files:DIR or kafka:TOPIC@HOST:PORT")
    if arguments.secret_file and kind != "kafka":
        raise ArgumentError("--secret-file: only lines of a topic are signed")
    secrets = [_secret(file) for file in arguments.secret_file]
    settings = connector_settings(arguments.jars, arguments.packages) if kind == "kafka" else {}
    out = arguments.out.rstrip("/")
    checkpoint = checkpoint_of(out, arguments.checkpoint, kind, place)
    every_s = _every_s(arguments.trigger)
    spark = open_session("sluice ingest", master=arguments.master, settings=settings)
    try:
        if kind == "files":
            frame = files_stream(spark, place, max_files=arguments.max_files, after=arguments.after)
        else:
            options = dict(option.partition("=")[::2] for option in arguments.kafka_option)
            frame = topic_stream(
                spark, place, max_messages=arguments.max_messages, options=options, signed=bool(secrets)
            )
        collect = files_to_rows if kind == "files" else partial(messages_to_rows, secrets=secrets)
        writer = Writer(out, checkpoint, collect, OnSpark(spark))
        stream(frame, writer, checkpoint, every_s)
        _print_result(writer, out)
    finally:
        spark.stop()
    return Exit.DONE if writer.written else Exit.NOTHING_TO_DO


def _secret(file: str) -> bytes:
    try:
        secret = Path(file).read_bytes().rstrip(b"\r\n")
    except OSError as exc:
        raise ArgumentError(f"--secret-file {file}: {exc.strerror}") from None
    if len(secret) < MIN_SECRET_BYTES:
        raise ArgumentError(f"--secret-file {file}: a secret has at least {MIN_SECRET_BYTES} bytes")
    return secret


def _every_s(text: str) -> int | None:
    if text == "available-now":
        return None
    match = re.fullmatch(r"([1-9]\d{0,4})s", text)
    if match is None:
        raise ArgumentError(f"--trigger {text!r}: say available-now, or seconds as 30s")
    return int(match[1])


def _print_result(writer: Writer, out: str) -> None:
    """Prints on standard output what was read, and which lines never arrived."""
    from pipeline.storage.raw_table import read_raw_state

    lines, rows, duplicates, torn = (
        sum(getattr(batch, name) for batch in writer.written)
        for name in ("lines", "rows", "duplicates", "torn")
    )
    index = read_raw_state(out).index
    too_old = f" or from before {day_name(index.forgotten_s // DAY_S)}" if index.forgotten_s else ""
    print(
        f"{counted(len(writer.written), 'batch')}: {counted(lines, 'line')} with {counted(rows, 'row')}; "
        f"{counted(duplicates, 'line')} read before{too_old}, {torn} not readable (kind torn in {out}/raw)"
    )
    gaps = list(index.gaps())
    for gap in gaps[:_SHOWN_GAPS]:
        print(
            f"missing: {counted(gap.lines, 'line')} of {gap.gw}, started {gap.boot}: {gap.first} to {gap.last}"
        )
    if len(gaps) > _SHOWN_GAPS:
        print(f"missing: {len(gaps) - _SHOWN_GAPS} more gaps: see sluice-pipeline status")
    for day, found in coverage(index, Expectation(int(time.time()))).items():
        print(
            f"{day}: {found.covered_s} s of {counted(len(found.gateways), 'gateway')}, {found.share:.2%} complete"
        )
