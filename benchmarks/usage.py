"""The cost of usage records: per frame on the data path, per row once a second and on disk, and the longest call.

    python -m benchmarks.usage [--rows 1000 10000] [--seconds 60] [--output benchmarks/results]

The parts are those of the gateway. Only the timer is replaced, so that every call of the loop can be measured.
Clients, sizes and throttles are random with a seed: lognormal rates, one client in ten above its quota. Figures are
the thread's CPU time; for the data path and for encoding the best of five rounds. Goals: encode at most 0.3 us per
row, at most 30 B per row in the files, no call of the loop longer than 5 ms.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine, load_average
from gateway.usage.line import Line
from gateway.usage.part_file import PartFile
from gateway.usage.recorder import Recorder
from gateway.usage.table import UsageTable
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import RateQuotas, RateSettings, RateTracker
from quotas.usage_record import UsageApi

RESULTS: Final = Path(__file__).parent / "results"
FRAMES: Final = 400_000
ENCODE_US, FILE_BYTES, CALL_MS = 0.3, 30.0, 5.0
EPOCH_MS: Final = 1_700_000_000_000


class Clients:
    """Clients that are active every second. Each has a row, and every other one a quota."""

    def __init__(self, count: int) -> None:
        self.rng = random.Random(count)
        self.table = UsageTable(max_rows=count)
        limits = Limits()
        limits.set(QuotaEntity(DEFAULT, DEFAULT), QuotaKey.PRODUCER_BYTE_RATE, 1_000_000.0)
        quotas = RateQuotas(limits, QuotaKey.PRODUCER_BYTE_RATE, RateSettings())
        self.clients: list[tuple[str, str, UsageApi, int, RateTracker | None, float]] = []
        for at in range(count):
            user, client_id = f"team-{at % 40}", f"service-{at}-{self.rng.randrange(10):x}"
            limited = at % 2 == 0
            tracker = quotas.tracker(user, client_id, now_ms=0) if limited else None
            api = UsageApi.PRODUCE if limited else UsageApi.FETCH
            self.clients.append((user, client_id, api, at % 3 + 1, tracker, self.rng.lognormvariate(8, 2)))

    def second(self, now_ms: int) -> None:
        """Play one second of all clients."""
        rng = self.rng
        for at, (user, client_id, api, node, tracker, mean) in enumerate(self.clients):
            row = self.table.row("default", user, client_id, api, node, tracker)
            for number in range(1 + rng.randrange(3)):
                size = 70 + int(rng.expovariate(1 / mean))
                row.use(number if at % 3 else row, now_ms=now_ms - 400 + rng.randrange(1_000))
                row.count(size)
                if tracker is not None:
                    tracker.record_unchecked(size, now_ms=now_ms)
            if at % 10 == 0:
                row.delay(rng.randrange(1, 3_000))
                row.mute(now_ms + rng.randrange(1, 1_500), now_ms=now_ms)


class BatchScheduler:
    """A loop for a recorder: the benchmark itself runs and measures the calls that are due."""

    def __init__(self) -> None:
        self.due: list[Any] = []

    def call_later(self, _delay_s: float, call: Any) -> None:
        self.due.append(call)

    def call_soon(self, call: Any) -> None:
        self.due.append(call)


class Kept:
    """A sink that keeps lines."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def offer(self, line: Line) -> bool:
        self.lines.append(line)
        return True


def emission(count: int, seconds: int, folder: Path) -> dict[str, float]:
    """Write one line a second with `count` rows."""
    clients = Clients(count)
    turns, kept = BatchScheduler(), Kept()
    now_ms = 0
    recorder = Recorder(
        clients.table,
        kept,
        gateway="gateway-1",
        boot=EPOCH_MS,
        algorithm="token_bucket",
        scope=str,
        loop=turns,  # type: ignore[arg-type]
        now_ms=lambda: now_ms,
        wall_ms=lambda: EPOCH_MS + now_ms,
    )
    recorder.start()
    calls_ms: list[float] = []
    spent_s = 0.0
    gc.collect()
    began = time.thread_time()
    gc.collect()
    collection_ms = (time.thread_time() - began) * 1000
    gc.freeze()  # as the gateway does with the objects of its start; later objects count in `collection_ms`
    for _ in range(seconds):
        now_ms += 400
        clients.second(now_ms)
        now_ms += 600
        lines = len(kept.lines)
        while len(kept.lines) == lines:
            call = turns.due.pop()
            began = time.thread_time()
            call()
            took = time.thread_time() - began
            spent_s += took
            calls_ms.append(took * 1000)
    rows = sum(line.rows for line in kept.lines)
    values = [json.loads(line.data)["rows"] for line in kept.lines[-5:]]
    rounds_s = []
    for _ in range(5):
        began = time.thread_time()
        for each in values:
            orjson.dumps(each)
        rounds_s.append(time.thread_time() - began)
    part = PartFile(folder, "gateway-1", EPOCH_MS, count)
    began = time.thread_time()
    for line in kept.lines:
        part.append(line)
    write_s = time.thread_time() - began
    part.publish()
    return {
        "rows_per_line": rows / len(kept.lines),
        "encode_us": min(rounds_s) / sum(len(each) for each in values) * 1e6,
        "loop_us": spent_s / rows * 1e6,
        "thread_us": write_s / rows * 1e6,
        "line_bytes": sum(len(line.data) for line in kept.lines) / rows,
        "file_bytes": part.bytes / rows,
        "worst_call_ms": max(calls_ms),
        "collection_ms": collection_ms,
        "p99_call_ms": statistics.quantiles(calls_ms, n=100)[98],
    }


def counting(entities: int) -> dict[str, float]:
    """Cost of counting a frame when the session already has its row, and when the row is looked up."""
    rng = random.Random(entities)
    table = UsageTable(max_rows=entities)
    names = [(f"user-{at % 100}", f"client-{at}") for at in range(entities)]
    rows = [table.row("in", *name, UsageApi.PRODUCE, 1) for name in names]
    order = [rng.randrange(entities) for _ in range(FRAMES)]
    held = [rows[at] for at in order]
    looked_up = [names[at] for at in order]

    def nothing() -> Iterator[None]:
        for _ in held:
            pass
        yield None

    def count() -> Iterator[None]:
        for row in held:
            row.use(table, now_ms=1_000)
            row.count(1_000)
        yield None

    def look_up() -> Iterator[None]:
        for user, client_id in looked_up:
            row = table.row("in", user, client_id, UsageApi.PRODUCE, 1)
            row.use(table, now_ms=1_000)
            row.count(1_000)
        yield None

    best = {}
    for name, run in (("loop", nothing), ("held", count), ("looked_up", look_up)):
        times = []
        for _ in range(5):
            began = time.thread_time()
            next(run())
            times.append((time.thread_time() - began) / FRAMES * 1e6)
        best[name] = min(times)
    return {
        "entities": entities,
        "held_us": best["held"] - best["loop"],
        "looked_up_us": best["looked_up"] - best["loop"],
    }


def page(document: dict[str, Any]) -> str:
    """The results as a table."""
    machine = document["machine"]
    lines = [
        "# What usage records cost",
        "",
        f"`python -m benchmarks.usage`, {document['date']}, commit {machine['commit']}. {machine['cpu']}, "
        f"{machine['cores']} cores, Python {machine['python']}, orjson {document['orjson']}; load average before "
        f"{machine['load_average_before']}, after {machine['load_average_after']}: measured with other load on the "
        "machine. CPU time.",
        "",
        "## Once a second",
        "",
        "| | "
        + " | ".join(f"{each['rows_per_line']:.0f} rows" for each in document["emission"])
        + " | goal |",
        "|---|" + "---|" * (len(document["emission"]) + 1),
    ]
    for key, title, digits, goal in (
        ("encode_us", "encoding a row (orjson), us", 2, ENCODE_US),
        ("loop_us", "all of the loop's time for a row: taking, limit and rate, encoding; us", 2, None),
        ("thread_us", "the thread's time for a row: compressing, writing; us", 2, None),
        ("line_bytes", "bytes of a row in the line", 0, None),
        ("file_bytes", "bytes of a row in the file", 1, FILE_BYTES),
        ("worst_call_ms", "longest call of the loop, ms", 2, CALL_MS),
        ("p99_call_ms", "99 of 100 calls take at most, ms", 2, None),
        (
            "collection_ms",
            "a full collection of garbage, which walks through rows and counters too, ms",
            1,
            None,
        ),
    ):
        cells = [f"{each[key]:.{digits}f}" for each in document["emission"]]
        met = "-"
        if goal is not None:
            met = f"{goal:g}, " + (
                "met" if all(each[key] <= goal for each in document["emission"]) else "missed"
            )
        lines.append(f"| {title} | {' | '.join(cells)} | {met} |")
    lines += [
        "",
        "## On the data path, per frame",
        "",
        "| clients | row at hand, us | row looked up, us |",
        "|---|---|---|",
        *(
            f"| {each['entities']:.0f} | {each['held_us']:.3f} | {each['looked_up_us']:.3f} |"
            for each in document["counting"]
        ),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, print, keep; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description="What usage records cost.")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        found = [emission(rows, options.seconds, Path(folder)) for rows in options.rows]
    document = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "orjson": orjson.__version__,
        "emission": found,
        "counting": [counting(entities) for entities in (100, 10_000)],
        "machine": machine | {"load_average_after": load_average()},
    }
    text = page(document)
    print(text)
    keep_results(document, text, options.output, "usage")
    goals = (("encode_us", ENCODE_US), ("file_bytes", FILE_BYTES), ("worst_call_ms", CALL_MS))
    return int(any(each[key] > goal for each in found for key, goal in goals))


if __name__ == "__main__":
    sys.exit(main())
