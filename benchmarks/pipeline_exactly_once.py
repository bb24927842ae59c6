"""``python -m benchmarks.pipeline_exactly_once``: ingests killed in the middle of a batch, counted in two engines.

Files arrive in random order; some arrive twice, some truncated, some never. Some lines occur twice. The second part
uses the usage topic of a Kafka whose broker is killed and restarted meanwhile. Exit code 1 when a row was lost or
counted twice, or a missing line was not reported. `--part` updates one half of the page.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.relay.machine import describe_machine, load_average
from campaigns.exactly_once.ingests import (
    KILLED,
    Count,
    count_by_duckdb,
    count_by_spark,
    ingest,
    log_tail,
    reported_missing,
    shuffle_arrival,
)
from campaigns.exactly_once.victim import POINTS
from embedded_kafka.kafka import KafkaCluster
from pipeline.errors import Exit
from pipeline.spark.session import open_session
from pipeline.storage.raw_table import read_raw_state
from testkit.pipeline.object_store import new_bucket, s3_server
from testkit.pipeline.spark import QUICK
from testkit.pipeline.usage_files import Faults, Load, Truth, lines_of, write_usage

RESULTS: Final = Path(__file__).resolve().parent / "results"
_TOPIC: Final = "__sluice_usage"
_PARTITIONS: Final = 3
_HOST: Final = "127.77.3.1"
_FAULTS: Final = Faults(lost=0.06, doubled=0.15, torn=0.06, repeated_lines=0.1)


@dataclass(slots=True)
class Part:
    """One source of usage records, and the result."""

    name: str
    kills: dict[str, int] = field(default_factory=dict)
    batches: int = 0
    duplicates: int = 0
    expected: dict[str, int] = field(default_factory=dict)
    spark: dict[str, int] = field(default_factory=dict)
    duckdb: dict[str, int] = field(default_factory=dict)
    missing: int = 0
    reported: int = 0
    wrongly_reported: int = 0
    seconds: float = 0.0
    broker_restarts: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """The number of missing rows, in the engine that finds fewer rows."""
        return self.expected["rows"] - min(self.spark["rows"], self.duckdb["rows"])

    @property
    def right(self) -> bool:
        """Whether in both engines no row is lost or counted twice, and every gap is reported."""
        return (
            self.spark == self.duckdb == self.expected
            and self.missing == self.reported
            and not self.wrongly_reported
        )


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline_exactly_once", description=__doc__)
    parser.add_argument("--kills", type=int, default=21, help="of the ingest of files")
    parser.add_argument("--topic-kills", type=int, default=7, help="of the ingest of the topic")
    parser.add_argument("--part", choices=("files", "topic", "s3", "all"), default="all")
    parser.add_argument("--entities", type=int, default=150)
    parser.add_argument("--seconds", type=int, default=3_600, help="of usage")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = describe_machine()
    started = datetime.now(UTC).isoformat(timespec="seconds")
    load = Load(
        seed=options.seed,
        entities=options.entities,
        seconds=options.seconds,
        restart_after_s=1_000,
        rotate_s=40,
    )
    parts = []
    with tempfile.TemporaryDirectory(prefix="exactly-once-") as folder:
        if options.part in ("files", "all"):
            parts.append(from_files("files", Path(folder, "files"), load, options.kills))
        if options.part in ("topic", "all"):
            parts.append(from_topic(Path(folder, "topic"), load, options.topic_kills))
        if options.part in ("s3", "all"):
            with s3_server() as address:
                out = f"{new_bucket(address)}/out"
                parts.append(from_files("s3", Path(folder, "s3"), load, options.kills, out))
    words = f"--kills {options.kills} --topic-kills {options.topic_kills} --entities {options.entities}"
    run = {
        "command": f"python -m benchmarks.pipeline_exactly_once {words} --seconds {options.seconds} "
        f"--seed {options.seed}",
        "started": started,
        "commit": machine["commit"],
        "load_average": [machine["load_average_before"], load_average()],
    }
    options.output.mkdir(parents=True, exist_ok=True)
    kept = options.output / "pipeline-exactly-once.json"
    rows = {row["name"]: row for row in json.loads(kept.read_text())["parts"]} if kept.exists() else {}
    rows |= {part.name: asdict(part) | {"run": run, "right": part.right} for part in parts}
    document = {"machine": machine, "parts": [rows[name] for name in sorted(rows)]}
    kept.write_text(json.dumps(document, indent=1) + "\n")
    page = render(document["parts"])
    (options.output / "pipeline-exactly-once.md").write_text(page)
    print(page)
    return int(not all(part.right for part in parts))


def from_files(name: str, folder: Path, load: Load, kills: int, remote: str | None = None) -> Part:
    """Kill the ingest of files repeatedly, then let it finish; onto this machine's disk or an object store."""
    part = Part(name)
    out = remote or str(folder / "out")
    truth = write_usage(folder / "in", load, _FAULTS)
    shuffle_arrival(folder / "in", load.seed)
    files = len(list((folder / "in").iterdir()))
    part.notes.append(
        f"{files} files in random order, {truth.torn_files} of them cut off; {len(truth.missing)} lines never arrive"
    )
    arguments = ["--from", f"files:{folder / 'in'}", "--out", out, "--master", "local[2]"]
    arguments += ["--checkpoint", str(folder / "checkpoint")]
    # There are enough batches for the last kill: a kill after a batch, or in the next one, uses up two.
    arguments += ["--max-files", str(max(files // (2 * kills + 4), 1))]
    _kill_and_finish(part, arguments, folder, kills)
    _judge(part, out, truth)
    return part


def from_topic(folder: Path, load: Load, kills: int) -> Part:
    """Ingest the topic, and kill the broker in the middle of it."""
    part = Part("topic")
    truth, messages = _messages(load)
    folder.mkdir(parents=True)
    with KafkaCluster(1, host=_HOST) as cluster:
        _produce(cluster.bootstrap, messages)
        part.notes.append(
            f"{len(messages)} messages in random order; {len(truth.missing)} lines never arrive"
        )
        arguments = ["--from", f"kafka:{_TOPIC}@{cluster.bootstrap}", "--out", str(folder / "out")]
        arguments += ["--master", "local[2]", "--max-messages", str(len(messages) // (kills + 4))]
        _kill_and_finish(part, arguments, folder, kills, cluster)
    _judge(part, str(folder / "out"), truth)
    return part


def _kill_and_finish(
    part: Part, arguments: Sequence[str], folder: Path, kills: int, cluster: KafkaCluster | None = None
) -> None:
    log = folder / "log"
    begun = time.monotonic()
    for kill in range(kills):
        point = POINTS[kill % len(POINTS)] + ("-driver" if kill % 4 == 3 else "")
        with _broker_restart(cluster if kill == 1 else None, folder / "out", part):
            code = ingest(arguments, log, point=point, batch=1 + kill % 2)
        if code != KILLED:
            # The ingest ended before the kill: no batch was in flight, so this does not count.
            part.notes.append(f"kill {kill} at {point}: the ingest had ended with {code}")
        else:
            part.kills[point] = part.kills.get(point, 0) + 1
        print(f"{part.name}: kill {kill + 1} at {point}: {code}", file=sys.stderr, flush=True)
    with _broker_restart(cluster, folder / "out", part):
        code = ingest(arguments, log)
    if code not in (Exit.DONE, Exit.NOTHING_TO_DO):  # the killed ingest may have read the last lines
        raise RuntimeError("\n".join([f"the last ingest ended with {code}", *log_tail(log)]))
    part.seconds = round(time.monotonic() - begun, 1)


@contextlib.contextmanager
def _broker_restart(cluster: KafkaCluster | None, out: Path, part: Part) -> Iterator[None]:
    """Kills the broker when the next batch of an ingest begins, and starts it again two seconds later."""
    if cluster is None:
        yield
        return
    over = threading.Event()
    before = set(out.glob("raw/date=*/*"))

    def restart() -> None:
        while not set(out.glob("raw/date=*/*")) - before:
            if over.wait(0.01):
                return
        (broker,) = cluster.running
        cluster.kill_broker(broker)
        time.sleep(2)
        cluster.start_broker(broker)
        part.broker_restarts += 1

    thread = threading.Thread(target=restart)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _messages(load: Load) -> tuple[Truth, list[tuple[str, bytes]]]:
    """The messages in the order of sending: lines in random order, some twice, some never, some broken."""
    chance = random.Random(load.seed)
    truth = Truth()
    messages = []
    last: dict[tuple[str, int], int] = {}
    lost = set()
    for gw, text in lines_of(load):
        told = orjson.loads(text)
        identity = (gw, told["boot"], told["seq"])
        if chance.random() < 0.05:
            lost.add(identity)
            if chance.random() < 0.2:
                messages.append((gw, text[: len(text) // 2]))
                truth.torn_files += 1
            continue
        messages += [(gw, text)] * (2 if chance.random() < 0.1 else 1)
        truth.lines += 1
        truth.rows += len(told["rows"])
        truth.events += len(told["events"])
        truth.units += int(sum(row[8] for row in told["rows"]))
        last[identity[:2]] = max(last.get(identity[:2], -1), told["seq"])
    truth.missing = {(gw, boot, seq) for gw, boot, seq in lost if seq < last.get((gw, boot), -1)}
    chance.shuffle(messages)
    return truth, messages


def _produce(bootstrap: str, messages: list[tuple[str, bytes]]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, 1)])[_TOPIC].result(30)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 10**6}
    )
    for index, (gw, text) in enumerate(messages):
        producer.produce(_TOPIC, text, gw, partition=index % _PARTITIONS)
        producer.poll(0)
    if producer.flush(60):
        raise RuntimeError("messages could not be produced")


def _judge(part: Part, out: str, truth: Truth) -> None:
    part.expected = Count(truth.rows, truth.units, truth.events, truth.lines, 0, 0).as_row()
    part.duckdb = count_by_duckdb(out).as_row()
    spark = open_session("count", master="local[2]", settings=QUICK)
    part.spark = count_by_spark(spark, out).as_row()
    spark.stop()
    state = read_raw_state(out)
    part.batches, part.duplicates = state.batches, state.duplicates
    reported = reported_missing(out)
    part.missing = len(truth.missing)
    part.reported = len(reported & truth.missing)
    part.wrongly_reported = len(reported - truth.missing)


def render(parts: list[dict[str, Any]]) -> str:
    """The page."""
    lines = [
        "# Exactly once, under kills",
        "",
        "| from | kills with a batch in flight | expected rows | Spark | DuckDB | counted twice, Spark / DuckDB | "
        "lines left out as repeated | missing lines, of them reported | s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for part in parts:
        expected, spark, duck = part["expected"], part["spark"], part["duckdb"]
        lines.append(
            f"| {part['name']} | {sum(part['kills'].values())} | {expected['rows']:,} | {spark['rows']:,} | "
            f"{duck['rows']:,} | {spark['duplicated_rows']} / {duck['duplicated_rows']} | {part['duplicates']:,} | "
            f"{part['missing']:,}, {part['reported']:,} | {part['seconds']:,.0f} |"
        )
    for part in parts:
        run, restarts = part["run"], part.get("broker_restarts", 0)
        kills = ", ".join(f"{count} {point}" for point, count in sorted(part["kills"].items()))
        agree = part["spark"] == part["duckdb"] == part["expected"]
        lines += [
            "",
            f"**{part['name']}**: {'right' if part['right'] else 'WRONG'}. {part['batches']} batches. Kills: {kills}."
            f" Reported as missing though there: {part['wrongly_reported']}. Rows, lines, events and sums of units "
            f"are {'' if agree else 'NOT '}as expected in both engines. "
            + (f"The broker was killed in the middle of {restarts} batches. " if restarts else "")
            + " ".join(f"{note}." for note in part["notes"]),
            "",
            f"`{run['command']}`, {run['started']}, commit {run['commit']}; load average before and after "
            f"{run['load_average']} on two cores: other work ran beside it, so the seconds say little.",
        ]
    lines += [
        "",
        "Points: `rows` while workers write, `written` before the state is, `state` before the commit, `committed` "
        "after it, `done` before Spark notes that the batch is done. `-driver`: only Python is killed and the JVM "
        "finds itself orphaned; else everything at once. DuckDB reads the Delta table; Spark reads its files, on S3 "
        "copies of them.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
